"""Supervised fine-tuning by the embedded tuner."""

import json
import math
from pathlib import Path

import pytest
from msgspec.structs import replace

from nip_fn.training.losses import SFT
from nip_fn.training.rows import imitated
from nip_fn.training.tuning import Job
from nip_fn_adapters.providers.local.jobs import JobFiles
from nip_fn_adapters.providers.local.models import (
    encode_chat,
    encode_reply,
    load_base,
    load_tokenizer,
)
from nip_fn_adapters.providers.local.policy import load_policy
from nip_fn_adapters.providers.local.rows import encode_rows

from ..lazily import torch
from .tiny_llama import chat, make_tiny_llama
from .training import CHOSEN, log_probability, make_job, make_trainer, supervised_rows, tune

# One worker: these share a server that trainings are forked from, and trl's imports.
pytestmark = pytest.mark.xdist_group("trainings")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A supervised training of six steps."""
    model = make_tiny_llama(tmp_path_factory.mktemp("model"))
    return replace(make_job(model), rows=supervised_rows(24), loss=SFT())


def test_training_makes_the_replies_likelier(job: Job, tmp_path: Path) -> None:
    """And the first loss is that of the base model, a batch's mean over its replies' tokens."""
    (tuned,) = (answer.unwrap() for answer in tune(tmp_path, replace(job, batch_size=24)))
    base, after = (
        load_policy(job.model, tmp_path / "adapters", adapter).unwrap()
        for adapter in (None, tuned.adapter)
    )
    scores = [
        [log_probability(policy, row.prompt, CHOSEN) for row in job.rows]
        for policy in (base, after)
    ]
    before_mean, after_mean = (sum(values) / len(values) for values in scores)
    assert after_mean > before_mean + 5
    report = dict(tuned.report)
    assert set(report) == {
        *("rows", "truncated", "dropped", "retokenized", "steps"),
        *("train_tokens", "forwarded_tokens"),
        *("loss_first", "loss_last", "token_accuracy", "seconds"),
    }
    assert report["loss_first"] == pytest.approx(-before_mean / (len(CHOSEN) + 1), abs=1e-3)
    assert report["loss_last"] < report["loss_first"]
    assert report["steps"] == 2
    assert 0 <= report["token_accuracy"] <= 1
    assert report["train_tokens"] == 2 * sum(16 + i + len(CHOSEN) + 1 for i in range(24))


def test_the_loss_is_that_of_the_replys_tokens_only(job: Job, tmp_path: Path) -> None:
    """Loss and gradients of a padded batch equal those of plain torch, row by row."""
    replies = (CHOSEN, "no", "all is right", "")
    rows = tuple(imitated(chat("x" * i), reply) for i, reply in enumerate(replies))
    trained = replace(job, rows=rows, use_lora=False, batch_size=4)
    trainer, _ = make_trainer(trained, JobFiles(tmp_path, job.name))
    batch = next(iter(trainer.get_train_dataloader()))
    tokenizer, plain = load_tokenizer(Path(job.model)), load_base(Path(job.model))
    total, count = torch.zeros(()), 0
    for row in rows:
        prompt, reply = encode_chat(tokenizer, row.prompt), encode_reply(tokenizer, row.replies[0])
        logits = plain(torch.tensor([prompt + reply])).logits[0]
        for at, token in enumerate(reply, start=len(prompt)):
            total, count = total - logits[at - 1].log_softmax(-1)[token], count + 1
    (total / count).backward()
    loss = trainer.compute_loss(trainer.model.train(), batch)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(float(total.detach() / count), abs=1e-5)
    expected = dict(plain.named_parameters())
    for name, weight in trainer.model.named_parameters():
        torch.testing.assert_close(weight.grad, expected[name].grad, atol=1e-5, rtol=1e-4)


def test_tokens_are_what_the_sampler_reads_and_draws(job: Job, tmp_path: Path) -> None:
    """With nothing after the end token but what fills the batch up."""
    rows = (imitated(chat("a"), "no"), imitated(chat("abc"), "bug: no."))
    trainer, _ = make_trainer(replace(job, rows=rows), JobFiles(tmp_path, job.name))
    batch = trainer.data_collator(list(trainer.train_dataset))
    tokenizer = load_tokenizer(Path(job.model))
    for index, row in enumerate(rows):
        prompt = encode_chat(tokenizer, row.prompt)
        reply = encode_reply(tokenizer, row.replies[0])
        assert reply[-1] == tokenizer.eos_token_id
        sequence = batch["input_ids"][index].tolist()
        assert sequence[: len(prompt) + len(reply)] == prompt + reply
        assert set(sequence[len(prompt) + len(reply) :]) <= {0}


def test_rows_that_the_model_cannot_hold_are_cut_or_dropped(job: Job) -> None:
    tokenizer = load_tokenizer(Path(job.model))
    some = (*supervised_rows(3), imitated(chat("x" * 50), CHOSEN))
    whole = encode_rows(tokenizer, some, None)
    assert (len(whole.rows), whole.truncated, whole.dropped) == (4, 0, 0)
    assert whole.max_length == 16 + 50 + len(CHOSEN) + 1
    cut = encode_rows(tokenizer, some, 16 + 50 + 3)
    assert (len(cut.rows), cut.truncated, cut.dropped) == (4, 1, 0)
    assert {len(sequence) for sequence in cut.rows[3].sequences} == {16 + 50 + 3}
    left_out = encode_rows(tokenizer, some, 16 + 50)
    assert (len(left_out.rows), left_out.truncated, left_out.dropped) == (3, 0, 1)


@pytest.mark.parametrize("use_lora", [True, False])
def test_a_dropout_that_the_base_model_brings_is_turned_off(
    job: Job, tmp_path: Path, use_lora: bool
) -> None:
    model = make_tiny_llama(tmp_path / "model")
    config = json.loads((model / "config.json").read_text("utf-8"))
    (model / "config.json").write_text(json.dumps({**config, "attention_dropout": 0.5}), "utf-8")
    dropping = replace(job, model=str(model), use_lora=use_lora)
    trainer, _ = make_trainer(dropping, JobFiles(tmp_path, job.name))
    batch = next(iter(trainer.get_train_dataloader()))
    trainer.model.train()
    assert trainer.model.config.attention_dropout == 0.5
    first, second = (float(trainer.compute_loss(trainer.model, batch).detach()) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_the_dropout_is_the_jobs_and_reaches_only_lora_layers(
    job: Job, tmp_path: Path, dropout: float
) -> None:
    trainer, _ = make_trainer(replace(job, lora_dropout=dropout), JobFiles(tmp_path, job.name))
    rates = {getattr(module, "p", None) for module in trainer.model.modules()} - {None}
    assert rates == ({dropout} if dropout else set())
    batch = next(iter(trainer.get_train_dataloader()))
    trainer.model.train()
    for name, weight in trainer.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight)
    first, second = (float(trainer.compute_loss(trainer.model, batch).detach()) for _ in range(2))
    assert (first == second) == (dropout == 0)
    assert math.isfinite(first)
