"""The canary: what the trainer measures on probes is what the sampler then serves."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from nip_fn.run.events import Publish
from nip_fn.run.ports import Served, Tuned
from nip_fn.training.canary import FLOAT32, NUM_PROBES, canary_problem
from nip_fn.training.losses import SFT
from nip_fn.training.rows import imitated, preference
from nip_fn.training.tuning import Job
from nip_fn_adapters.providers.local.models import (
    encode_chat,
    encode_reply,
    token_log_probabilities,
)
from nip_fn_adapters.providers.local.policy import load_policy, probe_scores
from nip_fn_adapters.providers.local.publisher import local_publisher
from nip_fn_adapters.providers.local.sampler import local_sampler

from .tiny_llama import CONTEXT, chat, make_tiny_llama
from .training import CHOSEN, REJECTED, log_probability, make_job, rows, tune

# One worker: these share a server that trainings are forked from, and trl's imports.
pytestmark = pytest.mark.xdist_group("trainings")

LONG = "x" * (CONTEXT - 16 - 4)  # leaves room for four tokens of a reply


@pytest.fixture(scope="module", params=["dpo", "sft", "whole"])
def tuned(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Job, Tuned]:
    """A training of each kind; one of its probes is longer than the model holds."""
    run = tmp_path_factory.mktemp("run")
    job = make_job(make_tiny_llama(run / "model"))
    job = replace(job, rows=(preference(chat(LONG), CHOSEN, REJECTED), *rows(15)))
    if request.param == "sft":
        supervised = tuple(imitated(row.prompt, CHOSEN) for row in job.rows)
        job = replace(job, rows=supervised, loss=SFT())
    if request.param == "whole":
        job = replace(job, use_lora=False, learning_rate=1e-3)
    return run, job, tune(run, job)[0].unwrap()


def published(run: Path, effect: Publish) -> Served:
    """The scores of what is served."""

    async def publish() -> Served:
        return (await local_publisher(local_sampler(run / "adapters"))(effect)).unwrap()

    return asyncio.run(publish())


def effect_of(job: Job, tuned: Tuned) -> Publish:
    """The effect that the core emits after the training."""
    assert tuned.adapter is not None
    return Publish(job.group, job.model, tuned.adapter, job.probes, tuned.scores)


def test_what_is_served_scores_the_probes_as_the_trainer_did(
    tuned: tuple[Path, Job, Tuned],
) -> None:
    run, job, result = tuned
    served = published(run, effect_of(job, result))
    assert len(job.probes) == NUM_PROBES
    assert served.scores == pytest.approx([score.after for score in result.scores], abs=1e-3)
    assert canary_problem(result.scores, served.scores, served.dtype) is None
    assert dict(result.report)["truncated"] == 1


def test_the_scores_before_are_those_of_what_the_training_began_with(
    tuned: tuple[Path, Job, Tuned],
) -> None:
    """Of the base, and for a further training of the adapter; a stale server would be noticed."""
    run, job, result = tuned
    base = probe_scores(load_policy(job.model, run / "adapters", None).unwrap(), job.probes)
    assert base == pytest.approx([score.before for score in result.scores], abs=1e-3)
    assert "before the training" in (canary_problem(result.scores, base, FLOAT32) or "")
    further = replace(job, name="verifier-1", start=result.adapter, num_epochs=1)
    again = tune(run, further)[0].unwrap()
    before = [score.before for score in again.scores]
    assert before == pytest.approx([score.after for score in result.scores], abs=1e-3)


def test_an_adapter_that_is_not_there_is_a_failure(tuned: tuple[Path, Job, Tuned]) -> None:
    run, job, result = tuned
    effect = replace(effect_of(job, result), adapter="verifier-9-nothing")

    async def publish() -> str:
        answer = await local_publisher(local_sampler(run / "adapters"))(effect)
        return str(answer.failure())

    assert "verifier-9-nothing" in asyncio.run(publish())


def test_a_score_is_of_the_tokens_that_the_model_holds(tmp_path: Path) -> None:
    policy = load_policy(str(make_tiny_llama(tmp_path)), tmp_path, None).unwrap()
    prompt = encode_chat(policy.tokenizer, chat(LONG))
    reply = encode_reply(policy.tokenizer, CHOSEN)[: CONTEXT - len(prompt)]
    assert len(reply) == 4
    expected = float(token_log_probabilities(policy.model, prompt, reply).sum())
    assert log_probability(policy, chat(LONG), CHOSEN) == pytest.approx(expected)
    assert log_probability(policy, chat(LONG + "xxxx"), CHOSEN) == 0.0
