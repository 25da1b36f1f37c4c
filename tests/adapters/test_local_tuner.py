"""The embedded tuner: real DPO by trl on real LoRA adapters, in real child processes."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec.structs import replace
from returns.result import Failure, Result

from nip_fn.chat import Message
from nip_fn.finetune import Job, PreferenceRow
from nip_fn.ports import Tuned
from nip_fn_adapters.local.jobs import JobFiles
from nip_fn_adapters.local.models import (
    encode_chat,
    encode_reply,
    load_adapter,
    load_base,
    load_policy,
    log_probability,
    model_directory,
)
from nip_fn_adapters.local.train import load_reference, make_trainer
from nip_fn_adapters.local.tuner import local_tuner

TINY = "builtin:tiny"
CHOSEN, REJECTED = "Step 1: add 3, code x + 3: same.\nDecision: accept", "Decision: reject"


def rows(number: int) -> tuple[PreferenceRow, ...]:
    """Rows that all prefer the same reply."""
    return tuple(
        PreferenceRow((Message("system", "Verify."), Message("user", f"{i}")), CHOSEN, REJECTED)
        for i in range(number)
    )


JOB = Job(
    name="verifier-0",
    group="verifier",
    iteration=0,
    model=TINY,
    start=None,
    reference=None,
    learning_rate=1e-3,
    num_epochs=2,
    beta=0.1,
    lora_rank=8,
    lora_alpha=8,
    lora_dropout=0.0,
    batch_size=8,
    seed=1,
    rows=rows(24),
)


def tune(run: Path, *jobs: Job) -> list[Result[Tuned, str]]:
    """All jobs, asked for at once."""

    async def ask() -> list[Result[Tuned, str]]:
        tuner = local_tuner(run)
        return list(await asyncio.gather(*map(tuner, jobs)))

    return asyncio.run(ask())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run with one adapter, and its name."""
    run = tmp_path_factory.mktemp("run")
    (done,) = tune(run, JOB)
    return run, done.unwrap().adapter


def margin(run: Path, adapter: str | None) -> float:
    """How much likelier the preferred reply is, in nats."""
    policy = load_policy(TINY, run / "adapters", adapter).unwrap()
    chat = JOB.rows[0].prompt
    return log_probability(policy, chat, CHOSEN) - log_probability(policy, chat, REJECTED)


def test_training_raises_the_margin_of_the_preferred_reply(trained: tuple[Path, str]) -> None:
    run, adapter = trained
    assert margin(run, adapter) > margin(run, None) + 1.0
    assert adapter.startswith("verifier-0-")
    files = {file.name for file in (run / "adapters" / adapter).iterdir()}
    assert {"adapter_model.safetensors", "adapter_config.json"} <= files


def test_a_finished_job_is_looked_up_and_another_job_of_that_name_is_not(
    trained: tuple[Path, str],
) -> None:
    run, adapter = trained
    log = JobFiles(run, JOB.name).log
    before = log.stat().st_mtime_ns
    (again,) = tune(run, JOB)
    assert again.unwrap().adapter == adapter
    assert log.stat().st_mtime_ns == before


def test_the_same_job_trains_the_same_weights(trained: tuple[Path, str], tmp_path: Path) -> None:
    (other,) = tune(tmp_path, JOB)
    assert other.unwrap().adapter == trained[1]


def test_a_merged_adapter_answers_like_the_adapter(trained: tuple[Path, str]) -> None:
    run, adapter = trained
    policy = load_policy(TINY, run / "adapters", adapter).unwrap()
    unmerged = load_adapter(
        load_base(model_directory(TINY).unwrap()), run / "adapters" / adapter
    ).eval()
    chat = JOB.rows[0].prompt
    one = log_probability(policy, chat, CHOSEN)
    other = log_probability(policy._replace(model=unmerged), chat, CHOSEN)
    assert one == pytest.approx(other, abs=1e-4)


@pytest.mark.parametrize("start", [None, "adapter"])
@pytest.mark.parametrize("reference", [None, "adapter"])
def test_the_reference_is_the_policy_that_the_job_names(
    trained: tuple[Path, str], start: str | None, reference: str | None
) -> None:
    """What trl computes as reference log-probabilities, against the named policy itself."""
    run, adapter = trained
    job = replace(
        JOB,
        name="verifier-1",
        start=start and adapter,
        reference=reference and adapter,
        batch_size=4,
        rows=rows(4),
    )
    files, folder = JobFiles(run, job.name), model_directory(TINY).unwrap()
    trainer, truncated = make_trainer(job, folder, files)
    assert truncated == 0
    batch = next(iter(trainer.get_train_dataloader()))
    chosen, rejected = trainer.compute_ref_log_probs(trainer.ref_model, batch)
    policy = load_policy(TINY, run / "adapters", job.reference).unwrap()
    expected = sorted(log_probability(policy, row.prompt, CHOSEN) for row in job.rows)
    assert sorted(chosen.tolist()) == pytest.approx(expected, abs=1e-3)
    expected = sorted(log_probability(policy, row.prompt, REJECTED) for row in job.rows)
    assert sorted(rejected.tolist()) == pytest.approx(expected, abs=1e-3)
    assert not any(weight.requires_grad for weight in trainer.ref_model.parameters())


def test_what_is_trained_on_is_what_the_sampler_reads_and_writes(
    trained: tuple[Path, str],
) -> None:
    run, _ = trained
    job = replace(JOB, name="verifier-2", rows=rows(2))
    trainer, _ = make_trainer(job, model_directory(TINY).unwrap(), JobFiles(run, job.name))
    tokenizer = load_policy(TINY, run / "adapters", None).unwrap().tokenizer
    for example, row in zip(trainer.train_dataset, job.rows, strict=True):
        assert example["prompt_ids"] == encode_chat(tokenizer, row.prompt)
        assert example["chosen_ids"] == encode_reply(tokenizer, row.chosen)
        assert example["rejected_ids"] == encode_reply(tokenizer, row.rejected)
    longest = max(
        len(example["prompt_ids"]) + len(example["chosen_ids"]) for example in trainer.train_dataset
    )
    assert trainer.args.max_length == longest


def test_a_loss_that_is_no_number_fails_the_job_and_leaves_no_adapter(tmp_path: Path) -> None:
    (failed,) = tune(tmp_path, replace(JOB, learning_rate=1e30))
    assert isinstance(failed, Failure)
    assert "rl.lr" in failed.failure()
    assert "log.txt" in failed.failure()
    assert list((tmp_path / "adapters").iterdir()) == []


def test_a_training_dies_with_its_parent_and_is_done_once_afterwards(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from tests.adapters.test_local_tuner import JOB, tune\n"
        f"tune(Path({str(tmp_path)!r}), JOB)\n"
    )
    root = Path(__file__).parents[2]
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=root)
    files = JobFiles(tmp_path, JOB.name)
    deadline = time.monotonic() + 60
    while not files.log.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(1.0)
    children = _children(parent.pid)
    assert children
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    while any(map(_alive, children)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (done,) = tune(tmp_path, JOB)
    assert [folder.name for folder in (tmp_path / "adapters").iterdir()] == [done.unwrap().adapter]


def _children(parent: int) -> list[int]:
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True, check=False
    )
    return [int(line) for line in listed.stdout.split()]


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{process}/stat")
    return not (state.exists() and state.read_text().rsplit(")", 1)[1].split()[0] == "Z")


def test_the_reference_model_is_frozen_and_apart_from_the_policy(
    trained: tuple[Path, str],
) -> None:
    run, adapter = trained
    folder = model_directory(TINY).unwrap()
    base = load_reference(JOB, folder, run / "adapters")
    named = load_reference(replace(JOB, reference=adapter), folder, run / "adapters")
    assert sum(weight.requires_grad for weight in base.parameters()) == 0
    assert any(
        not one.equal(other)
        for one, other in zip(base.parameters(), named.parameters(), strict=True)
    )
