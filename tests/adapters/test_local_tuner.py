"""The embedded tuner: real DPO by trl on real LoRA adapters, in child processes."""

import asyncio
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil
import pytest
from msgspec.structs import replace
from returns.pipeline import is_successful
from returns.result import Result

from nip_fn.errors import Problem
from nip_fn.keys import key
from nip_fn.run.ports import Progress, Tuned
from nip_fn.training.losses import DPO, SFT
from nip_fn.training.rows import preference
from nip_fn.training.tuning import Job
from nip_fn_adapters.providers.local.decode import DecodeRequest, Timings, decode
from nip_fn_adapters.providers.local.jobs import JobFiles
from nip_fn_adapters.providers.local.models import (
    encode_chat,
    encode_reply,
    load_adapter,
    load_base,
    load_tokenizer,
)
from nip_fn_adapters.providers.local.policy import load_policy
from nip_fn_adapters.providers.local.rows import encode_rows
from nip_fn_adapters.providers.local.train import loss_problem
from nip_fn_adapters.providers.local.tuner import local_tuner

from .forked import forked_trainings
from .tiny_llama import chat, make_tiny_llama
from .training import (
    CHOSEN,
    REJECTED,
    log_probability,
    make_job,
    make_trainer,
    rows,
    supervised_rows,
    tune,
)

BETA = DPO().beta

# One worker: these share a server that trainings are forked from, and trl's imports.
pytestmark = pytest.mark.xdist_group("trainings")


class Trained(NamedTuple):
    """A run with two adapters."""

    run: Path
    job: Job
    first: Tuned
    second: Tuned  # the first, trained further on the same rows, with the base as reference

    @property
    def name(self) -> str:
        """The first adapter's."""
        assert self.first.adapter is not None
        return self.first.adapter

    def margin(self, adapter: str | None) -> float:
        """The mean log-probability ratio of the preferred reply to the other, in nats."""
        policy = load_policy(self.job.model, self.run / "adapters", adapter).unwrap()
        margins = [
            log_probability(policy, row.prompt, row.replies[0])
            - log_probability(policy, row.prompt, row.replies[1])
            for row in self.job.rows
            if row.is_preference
        ]
        return sum(margins) / len(margins)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Two real trainings, one after the other."""
    run = tmp_path_factory.mktemp("run")
    job = make_job(make_tiny_llama(run / "model"))
    first = tune(run, job)[0].unwrap()
    further = replace(job, name="verifier-1", iteration=1, start=first.adapter)
    return Trained(run, job, first, tune(run, further)[0].unwrap())


def test_training_raises_the_margin_of_the_preferred_replies(trained: Trained) -> None:
    first = trained.margin(trained.first.adapter)
    assert first > trained.margin(None) + 1.0
    assert trained.margin(trained.second.adapter) > first + 1.0


def test_an_adapter_is_named_after_its_job_and_holds_no_path_of_this_machine(
    trained: Trained,
) -> None:
    folder = trained.run / "adapters" / trained.name
    name, _, digest = trained.name.rpartition("-")
    assert (name, len(digest)) == ("verifier-0", 8)
    assert {file.name for file in folder.iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }


def test_a_report_holds_finite_numbers(trained: Trained) -> None:
    report = dict(trained.first.report)
    assert all(math.isfinite(value) for value in report.values())
    assert report["rows"] == 24
    assert report["truncated"] == report["dropped"] == 0
    assert report["steps"] == 6
    assert report["loss_first"] == pytest.approx(math.log(2), abs=1e-4)  # policy = reference
    assert report["loss_last"] < report["loss_first"]
    assert report["reward_accuracy"] > 0.9
    assert report["log_ratio_margin"] > 0
    assert report["chosen_log_ratio"] >= report["chosen_log_ratio_min"]
    assert report["chosen_log_ratio"] > 0.1
    prompt, replies = 16 + sum(range(24)) / 24, len(CHOSEN) + len(REJECTED) + 2
    assert report["train_tokens"] == 2 * 24 * (2 * prompt + replies)


def test_an_adapter_is_trained_further_from_where_it_was(trained: Trained) -> None:
    """With the base as reference, the first loss is that of the first adapter's margin."""
    job = trained.job
    lead = trained.margin(trained.first.adapter) - trained.margin(None)
    expected = math.log1p(math.exp(-BETA * lead))
    assert dict(trained.second.report)["loss_first"] == pytest.approx(expected, abs=0.1)
    assert dict(trained.second.report)["loss_first"] < dict(trained.first.report)["loss_first"]
    assert job.start is None


def test_a_finished_job_is_looked_up_and_a_changed_one_is_not(trained: Trained) -> None:
    run, job = trained.run, trained.job
    log = JobFiles(run, job.name).log
    before = log.stat().st_mtime_ns
    assert tune(run, job) == [trained_result(trained)]
    assert log.stat().st_mtime_ns == before
    changed = replace(job, model="nowhere")
    assert not is_successful(tune(run, changed)[0])
    assert log.stat().st_mtime_ns != before
    assert tune(run, job) == [trained_result(trained)]  # the failure took nothing away


def trained_result(trained: Trained) -> Result[Tuned, Problem]:
    """The first training's answer."""
    return Result.from_value(trained.first)


def test_the_same_job_trains_the_same_weights(trained: Trained, tmp_path: Path) -> None:
    one, other = tune(tmp_path, trained.job, replace(trained.job, name="verifier-5", seed=2))
    assert one.unwrap().adapter == trained.first.adapter
    assert str(other.unwrap().adapter)[-8:] != trained.name[-8:]


def test_a_merged_adapter_answers_like_the_adapter(trained: Trained) -> None:
    run, adapter = trained.run, trained.name
    policy = load_policy(trained.job.model, run / "adapters", adapter).unwrap()
    unmerged = load_adapter(load_base(Path(trained.job.model)), run / "adapters" / adapter).eval()
    one = log_probability(policy, chat("x"), CHOSEN)
    other = log_probability(policy._replace(model=unmerged), chat("x"), CHOSEN)
    assert one == pytest.approx(other, abs=1e-4)
    base = load_policy(trained.job.model, run / "adapters", None).unwrap()
    assert abs(one - log_probability(base, chat("x"), CHOSEN)) > 0.1


NAMES = (None, "first", "second")
SAMPLE = {("first", None), ("second", "first"), ("second", "second")}


@pytest.mark.parametrize(
    ("start", "reference"),
    [
        pytest.param(*names, marks=() if names in SAMPLE else pytest.mark.exhaustive)
        for names in product(NAMES, NAMES)
    ],
)
def test_the_reference_is_the_policy_that_the_job_names(
    trained: Trained, start: str | None, reference: str | None
) -> None:
    """The log-probabilities before a step are those of the named policies."""
    names = {"first": trained.first.adapter, "second": trained.second.adapter, None: None}
    job = replace(
        trained.job,
        name="verifier-2",
        start=names[start],
        reference=names[reference],
        batch_size=4,
        rows=rows(4),
    )
    files = JobFiles(trained.run, job.name)
    trainer, _ = make_trainer(job, files)
    batch = next(iter(trainer.get_train_dataloader()))
    trainer.model.eval()
    loss = float(trainer.compute_loss(trainer.model, batch))
    policy, named = (
        load_policy(job.model, files.adapters, adapter).unwrap()
        for adapter in (job.start, job.reference)
    )
    ratios = [
        log_probability(policy, row.prompt, CHOSEN)
        - log_probability(named, row.prompt, CHOSEN)
        - log_probability(policy, row.prompt, REJECTED)
        + log_probability(named, row.prompt, REJECTED)
        for row in job.rows
    ]
    expected = [math.log1p(math.exp(-BETA * ratio)) for ratio in ratios]
    assert loss == pytest.approx(sum(expected) / len(expected), abs=1e-3)
    for row, scores in zip(job.rows, trainer.reference, strict=True):
        named_scores = [log_probability(named, row.prompt, reply) for reply in row.replies]
        assert [reply.sum() for reply in scores] == pytest.approx(named_scores, abs=1e-3)
    trainable = [name for name, weight in trainer.model.named_parameters() if weight.requires_grad]
    assert trainable
    assert all("lora_" in name for name in trainable)


def test_what_is_trained_on_is_what_the_sampler_reads_and_writes(trained: Trained) -> None:
    """Also where the chat template writes more after the end token, as this model's does."""
    policy = load_policy(trained.job.model, trained.run / "adapters", None).unwrap()
    prompt = encode_chat(policy.tokenizer, chat("ab"))
    keys = tuple(key(i) for i in range(64))
    drawn = next(
        reply
        for reply in decode(policy, [DecodeRequest(prompt, keys, 1.0, 60)], Timings())[0]
        if reply.ended and not set(reply.tokens[:-1]) & set(policy.tokenizer.all_special_ids)
    )
    text = policy.tokenizer.decode(drawn.tokens[:-1], skip_special_tokens=True)
    row = preference(chat("ab"), text, REJECTED)
    job = replace(trained.job, name="verifier-3", rows=(row,))
    trainer, encoded = make_trainer(job, JobFiles(trained.run, job.name))
    (tokens,) = encoded.rows
    assert tokens.prompt == prompt
    assert tokens.replies == (drawn.tokens, encode_reply(policy.tokenizer, REJECTED))
    batch = next(iter(trainer.get_train_dataloader()))
    assert batch["input_ids"][0].tolist()[: len(prompt) + len(drawn.tokens)] == [
        *prompt,
        *drawn.tokens,
    ]
    assert encoded.max_length == len(prompt) + max(len(drawn.tokens), len(REJECTED) + 1)


def test_only_rows_that_the_model_cannot_hold_are_cut_and_they_are_counted(
    trained: Trained,
) -> None:
    tokenizer = load_tokenizer(Path(trained.job.model))
    some = (*rows(3), preference(chat("x" * 50), CHOSEN, REJECTED))
    whole = encode_rows(tokenizer, some, None)
    assert (len(whole.rows), whole.truncated) == (4, 0)
    assert whole.max_length == 16 + 50 + len(REJECTED) + 1
    cut = encode_rows(tokenizer, some, 16 + 50 + 3)
    assert (len(cut.rows), cut.max_length, cut.truncated, cut.dropped) == (4, 16 + 50 + 3, 1, 0)
    assert [len(reply) for reply in cut.rows[3].replies] == [3, 3]
    left_out = encode_rows(tokenizer, some, 16 + 50)
    assert (len(left_out.rows), left_out.truncated, left_out.dropped) == (3, 0, 1)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_the_dropout_is_the_jobs(trained: Trained, dropout: float) -> None:
    job = replace(trained.job, name="verifier-4", lora_dropout=dropout)
    trainer, _ = make_trainer(job, JobFiles(trained.run, job.name))
    rates = {getattr(module, "p", None) for module in trainer.model.modules()} - {None}
    assert rates <= {dropout}
    assert dropout in rates or not dropout


def test_what_a_training_lacks_is_a_failure_that_names_it(trained: Trained, tmp_path: Path) -> None:
    failures = tune(
        tmp_path,
        replace(trained.job, name="verifier-1", start="verifier-0-nothing"),
        replace(trained.job, name="verifier-2", model="nowhere"),
        replace(trained.job, name="verifier-3", rows=()),
        replace(trained.job, name="verifier-4", rows=(preference(chat("x" * 256), "", ""),)),
    )
    causes = [str(failed.failure()) for failed in failures]
    words = ("verifier-0-nothing", "nowhere", "no rows", "can hold")
    for cause, word in zip(causes, words, strict=True):
        assert word in cause
        assert "log.txt" in cause
        assert "\n" not in cause
    assert list((tmp_path / "adapters").iterdir()) == []


def test_a_training_that_comes_to_nothing_is_a_result_and_is_not_repeated(
    trained: Trained, tmp_path: Path
) -> None:
    """A loss that is no number, and one that has grown."""
    sft = replace(trained.job, name="verifier-1", rows=supervised_rows(24), loss=SFT())
    jobs = (
        replace(trained.job, learning_rate=1e30),
        replace(sft, learning_rate=100.0, use_lora=False),
    )
    first = tune(tmp_path, *jobs)
    for answer, words in zip(first, ("not a finite number", "the loss grew from"), strict=True):
        tuned = answer.unwrap()
        assert (tuned.adapter, tuned.scores) == (None, ())
        assert words in tuned.problem
        assert "rl.lr" in tuned.problem
        assert "\n" not in tuned.problem
        report = dict(tuned.report)
        assert report["rows"] == 24
        assert report["seconds"] > 0
        assert all(map(math.isfinite, report.values()))
    assert list((tmp_path / "adapters").iterdir()) == []
    logs = [JobFiles(tmp_path, job.name).log for job in jobs]
    before = [log.stat().st_mtime_ns for log in logs]
    assert tune(tmp_path, *jobs) == first
    assert [log.stat().st_mtime_ns for log in logs] == before


@pytest.mark.parametrize(
    ("losses", "last_epoch", "word"),
    [
        ([0.69, 0.5], 0.6, ""),
        ([0.69, 3.0], 3.0, ""),  # above three times the first, but no more than five
        ([4.0, 11.0], 11.0, ""),  # above five, but not three times the first
        ([4.0, 13.0], 12.5, "grew"),
        ([0.0, 6.0], 5.5, "grew"),
        ([1.0, math.nan, 1.0], math.nan, "finite"),
        ([1.0, math.inf], math.inf, "finite"),
    ],
)
def test_a_loss_has_diverged_when_it_is_large_and_several_times_the_first(
    losses: list[float], last_epoch: float, word: str
) -> None:
    problem = loss_problem(losses, last_epoch)
    assert word in problem
    assert bool(problem) == bool(word)


def test_a_child_that_is_killed_is_a_failure_and_a_second_try_leaves_one_adapter(
    trained: Trained, tmp_path: Path
) -> None:
    job = trained.job

    async def kill_in_the_middle(which: slice) -> Result[Tuned, Problem]:
        """The answer where some are killed of the training and the process it is forked from."""
        files = JobFiles(tmp_path, job.name)
        long = replace(job, num_epochs=10_000)
        training = asyncio.ensure_future(local_tuner(tmp_path)(long))
        await asyncio.to_thread(_wait_for, lambda: _has_begun(files))
        started = _started(files)
        assert len(started) == 2
        for child in started[which]:
            os.kill(child, signal.SIGKILL)
        answer = await training
        files.log.unlink()
        return answer

    for which in (slice(0, 1), slice(1, 2)):
        failed = asyncio.run(kill_in_the_middle(which))
        assert "SIGKILL" in str(failed.failure())
    files = JobFiles(tmp_path, job.name)
    files.unfinished.mkdir()
    (files.unfinished / "adapter_model.safetensors").write_bytes(b"half")
    (done,) = tune(tmp_path, job)
    assert [folder.name for folder in files.adapters.iterdir()] == [done.unwrap().adapter]
    assert not files.unfinished.exists()


def test_whoever_follows_a_training_sees_it_begin_and_end(trained: Trained, tmp_path: Path) -> None:
    heard: list[tuple[str, Progress]] = []
    job = replace(trained.job, num_epochs=20)

    async def train() -> Tuned:
        tuner = local_tuner(tmp_path, follow=lambda name, progress: heard.append((name, progress)))
        return (await tuner(job)).unwrap()

    with forked_trainings():
        report = dict(asyncio.run(train()).report)
    assert {name for name, _ in heard} == {job.name}
    steps = [progress.step for _, progress in heard]
    assert steps == sorted(steps)
    assert steps[0] < steps[-1] == report["steps"]
    assert {progress.steps for _, progress in heard} == {report["steps"]}
    assert [progress.seconds_left is None for _, progress in heard] == [not step for step in steps]
    last = heard[-1][1]
    assert (last.seconds_left, last.loss) == (0, report["loss_last"])


def test_a_training_ends_with_whoever_asked_for_it(trained: Trained, tmp_path: Path) -> None:
    files = JobFiles(tmp_path, trained.job.name)
    script = (
        "import asyncio, sys, msgspec\n"
        "from pathlib import Path\n"
        "from nip_fn.training.tuning import Job\n"
        "from nip_fn_adapters.providers.local.tuner import local_tuner\n"
        "job = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Job)\n"
        "async def tune(): await local_tuner(Path(sys.argv[1]))(job)\n"
        "asyncio.run(tune())\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE
    ) as parent:
        assert parent.stdin is not None
        parent.stdin.write(msgspec.msgpack.encode(replace(trained.job, num_epochs=10_000)))
        parent.stdin.close()
        _wait_for(lambda: _has_begun(files))
        children = _children(parent.pid)
        parent.kill()
    assert children
    _wait_for(lambda: not any(map(_runs, children)))
    assert list(files.adapters.iterdir()) == []


def test_a_training_ends_when_it_is_no_longer_wanted(trained: Trained, tmp_path: Path) -> None:
    async def cancel() -> list[int]:
        training = asyncio.ensure_future(local_tuner(tmp_path)(trained.job))
        files = JobFiles(tmp_path, trained.job.name)
        await asyncio.to_thread(_wait_for, lambda: _started(files))
        children = _started(files)
        training.cancel()
        await asyncio.gather(training, return_exceptions=True)
        return children

    assert not any(map(_runs, asyncio.run(cancel())))


def _has_begun(files: JobFiles) -> bool:
    """True if the training has logged its first step."""
    return files.log.exists() and "step 1/" in files.log.read_text("utf-8")


def _wait_for(condition: Callable[[], object], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _children(parent: int) -> list[int]:
    """The processes that `parent` has started, for trainings, and those that train."""
    return [process.pid for process in psutil.Process(parent).children(recursive=True)]


def _started(files: JobFiles) -> list[int]:
    """Of this process's children those that print to the job's log: it and what forks it."""
    outputs = ((child, Path(f"/proc/{child}/fd/2")) for child in _children(os.getpid()))
    return [child for child, output in outputs if output.resolve() == files.log.resolve()]


def _runs(process: int) -> bool:
    """True if the process is there, and is more than a zombie."""
    listed = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True, check=False
    )
    return bool(listed.stdout.strip()) and not listed.stdout.strip().startswith("Z")
