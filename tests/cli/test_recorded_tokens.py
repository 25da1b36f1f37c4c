"""The tokens that a run records: drawn by the model, with its probabilities, and trained on."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from nip_fn.run.events import CreateJob
from nip_fn.run.state import EMPTY
from nip_fn.run.step import step
from nip_fn.training.tuning import Job
from nip_fn_adapters.providers.local.tuner import local_tuner
from nip_fn_adapters.recording import store
from nip_fn_adapters.recording.store import CHECKPOINT
from tests.adapters.forked import forked_trainings
from tests.adapters.rescoring import recorded_replies, rescored
from tests.cli.conftest import RunCli, call_cli

# The worker whose server trainings are forked from.
pytestmark = pytest.mark.xdist_group("trainings")

# In float32 a token's differ by the order of sums alone: 2e-5 nats at most were measured.
MOST_NATS = 1e-4
SMALL = (
    *("--dataset", "builtin:tea", "--iterations", "2", "--set", "rl.rollouts_per_iteration=6"),
    *("--set", "dataset_options.max_test_size=4"),
    *("--set", "agents.verifier.opponent_scripts=[]"),
)


# Whatever changes the draws, and replies that end in either way.
SAMPLING = (
    *("--set", "agents.prover.temperature=0.6", "--set", "agents.prover.repetition_penalty=1.2"),
    *("--set", "agents.verifier.top_p=0.9", "--set", "agents.verifier.max_tokens_per_message=5"),
    *("--set", "text_rl.test_scheme=last", "--set", "text_rl.test_temperature=0.0"),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that recorded its tokens and trained on them."""
    folder = tmp_path_factory.mktemp("tokens")
    with forked_trainings():
        trained = call_cli(folder, "train", *SMALL, *SAMPLING, "--run", "a")
    assert trained.returncode == 0, trained.stderr
    return folder / "runs/a"


def test_the_training_s_scorer_gives_every_reply_the_recorded_log_probabilities(run: Path) -> None:
    policies = list(rescored(run))
    assert {policy.adapter is None for policy in policies} == {True, False}
    reasons = set()
    for policy, _, completions, packed, plain in policies:
        assert np.abs(packed).max() < MOST_NATS
        assert np.abs(plain).max() < MOST_NATS
        for reply in completions:
            assert reply.tokens is not None
            ids = reply.tokens.ids.tolist()
            assert policy.tokenizer.decode(ids, skip_special_tokens=True) == reply.text
            assert (ids[-1] in policy.stops) == (reply.finish_reason == "stop")
            assert not set(ids[:-1]) & set(policy.stops)
            assert len(ids) == reply.completion_tokens
            reasons.add(reply.finish_reason)
    assert reasons == {"stop", "length"}


def test_a_recording_that_is_trained_on_twice_gives_the_same_adapters(
    run: Path, tmp_path: Path
) -> None:
    """In processes that share nothing with those of the run, such as the hashes of strings."""
    jobs: list[Job] = []
    state = EMPTY
    for event in store.read_recording(run / CHECKPOINT).unwrap().events:
        state, effects = step(state, event)
        created = [effect.job for effect in effects if isinstance(effect, CreateJob)]
        jobs += [job for job in created if job.group == "verifier"]
    assert {job.start is None for job in jobs} == {True, False}
    assert all(tokens for job in jobs for row in job.rows for tokens in row.tokens)

    async def train_again() -> None:
        tuner = local_tuner(tmp_path)
        for job in jobs:  # in order: the second begins where the first ends
            (await tuner(job)).unwrap()

    asyncio.run(train_again())
    assert verifiers(tmp_path) == verifiers(run)


def verifiers(run: Path) -> dict[Path, bytes]:
    """All files of the verifier's adapters."""
    files = (run / "adapters").glob("verifier-*/*")
    return {file.relative_to(run): file.read_bytes() for file in files}


def test_no_tokens_are_recorded_where_they_are_not_wanted(run_cli: RunCli, tmp_path: Path) -> None:
    test_only = ("--iterations", "0", "--set", "text_rl.test_scheme=all")
    tested = run_cli(
        "train", *SMALL, *test_only, "--set", "text_rl.record_tokens=false", "--run", "a"
    )
    assert tested.returncode == 0, tested.stderr
    replies = [completion for _, completion in recorded_replies(tmp_path / "runs/a")]
    assert replies
    assert {reply.tokens for reply in replies} == {None}
