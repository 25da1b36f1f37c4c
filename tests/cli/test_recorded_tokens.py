"""The tokens that a run records are those that the model drew, with the model's probabilities."""

from pathlib import Path

import numpy as np
import pytest

from tests.adapters.forked import forked_trainings
from tests.adapters.rescoring import recorded_replies, rescored
from tests.cli.conftest import RunCli

# The worker whose server trainings are forked from.
pytestmark = pytest.mark.xdist_group("trainings")

# In float32 a token's differ by the order of sums alone: 2e-5 nats at most were measured.
MOST_NATS = 1e-4
SMALL = (
    *("--dataset", "builtin:tea", "--iterations", "2", "--set", "rl.rollouts_per_iteration=6"),
    *("--set", "dataset_options.max_test_size=4"),
)


def test_the_training_s_scorer_gives_every_reply_the_recorded_log_probabilities(
    run_cli: RunCli, tmp_path: Path
) -> None:
    """Whatever changed the draws, and however the reply ended."""
    sampling = (
        *(
            "--set",
            "agents.prover.temperature=0.6",
            "--set",
            "agents.prover.repetition_penalty=1.2",
        ),
        *(
            "--set",
            "agents.verifier.top_p=0.9",
            "--set",
            "agents.verifier.max_tokens_per_message=5",
        ),
        *("--set", "text_rl.test_scheme=last", "--set", "text_rl.test_temperature=0.0"),
    )
    with forked_trainings():
        trained = run_cli("train", *SMALL, *sampling, "--run", "a")
    assert trained.returncode == 0, trained.stderr
    policies = list(rescored(tmp_path / "runs/a"))
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


def test_no_tokens_are_recorded_where_they_are_not_wanted(run_cli: RunCli, tmp_path: Path) -> None:
    test_only = ("--iterations", "0", "--set", "text_rl.test_scheme=all")
    tested = run_cli(
        "train", *SMALL, *test_only, "--set", "text_rl.record_tokens=false", "--run", "a"
    )
    assert tested.returncode == 0, tested.stderr
    replies = [completion for _, completion in recorded_replies(tmp_path / "runs/a")]
    assert replies
    assert {reply.tokens for reply in replies} == {None}
