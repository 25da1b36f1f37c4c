"""The loss of direct preference optimisation, against plain torch."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from nip_fn.training.losses import DPO
from nip_fn.training.rows import preference
from nip_fn.training.tuning import Job
from nip_fn_adapters.providers.local.jobs import JobFiles
from nip_fn_adapters.providers.local.models import (
    encode_chat,
    encode_reply,
    load_adapter,
    load_base,
    load_model,
    load_tokenizer,
)
from nip_fn_adapters.providers.local.rows import encode_rows
from nip_fn_adapters.providers.local.steps import log_ratios, plain_scores

from ..lazily import functional, torch
from .tiny_llama import chat, make_tiny_llama
from .training import CHOSEN, REJECTED, make_job, make_trainer, tune

# One worker: these share a server that trainings are forked from, and trl's imports.
pytestmark = pytest.mark.xdist_group("trainings")


@pytest.fixture(scope="module")
def run_and_job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Job, str, str]:
    """A run with two adapters, one trained on from the other."""
    run = tmp_path_factory.mktemp("run")
    job = make_job(make_tiny_llama(run / "model"))
    first = tune(run, job)[0].unwrap().adapter
    further = replace(job, name="verifier-1", start=first, num_epochs=1)
    second = tune(run, further)[0].unwrap().adapter
    assert first is not None
    assert second is not None
    return run, job, first, second


def log_probability(model: Any, prompt: list[int], reply: list[int]) -> Any:
    """Of the reply after the prompt, token by token, with its gradient."""
    total: Any = torch.zeros(())
    logits = model(torch.tensor([prompt + reply])).logits[0]
    for at, token in enumerate(reply, start=len(prompt)):
        total = total + logits[at - 1].log_softmax(-1)[token]
    return total


def dpo_loss(policy: Any, reference: Any, tokenizer: Any, job: Job) -> Any:
    """Equation 7 of Rafailov et al. (2023), the mean over the rows."""
    losses = []
    for row in job.rows:
        prompt = encode_chat(tokenizer, row.prompt)
        ratios = []
        for text in row.replies:
            reply = encode_reply(tokenizer, text)
            with torch.no_grad():
                named = log_probability(reference, prompt, reply)
            ratios.append(log_probability(policy, prompt, reply) - named)
        losses.append(-functional.logsigmoid(job.loss.beta * (ratios[0] - ratios[1])))
    return torch.stack(losses).mean()


def sft_loss(policy: Any, tokenizer: Any, job: Job) -> Any:
    """The mean over all tokens of all chosen replies of their negative log-probability."""
    total, tokens = torch.zeros(()), 0
    for row in job.rows:
        reply = encode_reply(tokenizer, row.replies[0])
        total = total - log_probability(policy, encode_chat(tokenizer, row.prompt), reply)
        tokens += len(reply)
    return total / tokens


@pytest.mark.parametrize(
    ("reference", "sft_weight"),
    [("previous", 0.0), ("earlier", 0.0), ("base", 0.0), ("previous", 0.25)],
)
def test_loss_and_gradients_are_those_of_plain_torch(
    run_and_job: tuple[Path, Job, str, str], reference: str, sft_weight: float
) -> None:
    run, job, first, second = run_and_job
    replies = (CHOSEN, "no", "the proof is wrong.")
    job = replace(
        job,
        rows=tuple(preference(chat("x" * i), r, REJECTED) for i, r in enumerate(replies)),
        start=second,
        reference={"previous": second, "earlier": first, "base": None}[reference],
        batch_size=3,
        loss=DPO(sft_weight=sft_weight),
    )
    base, adapters = Path(job.model), run / "adapters"
    plain = load_adapter(load_base(base), adapters / second, train_with_dropout=0.0)
    named = load_model(base, adapters / job.reference if job.reference else None)
    tokenizer = load_tokenizer(base)
    expected = dpo_loss(plain, named, tokenizer, job)
    if sft_weight:
        expected = expected + sft_weight * sft_loss(plain, tokenizer, job)
    expected.backward()
    trainer, _ = make_trainer(job, JobFiles(run, "verifier-5"))
    batch = next(iter(trainer.get_train_dataloader()))
    loss = trainer.compute_loss(trainer.model.train(), batch)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), abs=1e-5)
    weights = {n: w for n, w in plain.named_parameters() if w.requires_grad}
    compared = {n: w for n, w in trainer.model.named_parameters() if w.requires_grad}
    assert weights.keys() == compared.keys()
    for name, weight in compared.items():
        torch.testing.assert_close(weight.grad, weights[name].grad, atol=1e-5, rtol=1e-5)
    assert any(float(weight.grad.abs().max()) > 1e-3 for weight in compared.values())


def test_the_log_ratio_of_a_chosen_reply_is_the_sum_over_its_tokens_computed_by_hand(
    run_and_job: tuple[Path, Job, str, str],
) -> None:
    run, job, first, _ = run_and_job
    base = Path(job.model)
    tokenizer, reference = load_tokenizer(base), load_base(base)
    policy = load_model(base, run / "adapters" / first)
    row = preference(chat("ab"), "no", REJECTED)
    encoded = encode_rows(tokenizer, (row,), None)
    named = plain_scores(reference, encoded.rows)
    assert log_ratios(encoded, named, partial(plain_scores, reference)) == (0.0,)
    prompt, expected = encode_chat(tokenizer, row.prompt), 0.0
    for token in encode_reply(tokenizer, "no"):
        with torch.no_grad():
            of_policy, of_reference = (
                float(model(torch.tensor([prompt])).logits[0, -1].double().log_softmax(-1)[token])
                for model in (policy, reference)
            )
        expected += of_policy - of_reference
        prompt = [*prompt, token]
    assert abs(expected) > 0.1
    (ratio,) = log_ratios(encoded, named, partial(plain_scores, policy))
    assert ratio == pytest.approx(expected, rel=1e-4)
