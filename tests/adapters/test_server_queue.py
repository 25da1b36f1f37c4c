"""Laws of the queue: jobs are trained in the order in which they came, each once, and what a
server has accepted or ended is so after a restart.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from returns.result import Failure

from nip_fn.training.tuning import Job
from nip_fn_adapters.providers.local.jobs import (
    JobFiles,
    JobResult,
    job_hash,
    read_job,
    write_result,
)
from nip_fn_adapters.serving.queue import Queue

from .serving import MODEL
from .training import make_job

JOB: Job = replace(make_job(Path("m")), model=MODEL)


class Trainer:
    """Trainings that end when they are told to."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.running: set[str] = set()
        self.inside = self.visits = 0  # of what is put around trainings
        self._ends: dict[str, asyncio.Future[int]] = {}
        self._changed = asyncio.Event()

    async def __call__(self, state: Path, id: str, started: Callable[[], None]) -> int:
        assert self.inside == 1
        self.began.append(id)
        self.running.add(id)
        started()
        end = self._ends.setdefault(id, asyncio.get_running_loop().create_future())
        self._changed.set()
        files = JobFiles(state, id)
        try:
            code = await end
        finally:
            self.running.discard(id)
            self._changed.set()
        if code == 0:
            (files.adapters / f"{id}-trained").mkdir()
            write_result(files, JobResult(job_hash(read_job(files)), f"{id}-trained", ()))
        else:
            files.log.write_text("Traceback (most recent call last):\nMemoryError: too big\n")
        return code

    @asynccontextmanager
    async def around(self) -> AsyncIterator[None]:
        self.inside, self.visits = self.inside + 1, self.visits + 1
        yield
        self.inside -= 1

    async def has(self, *ids: str) -> None:
        """Return once exactly these run."""
        async with asyncio.timeout(60):
            while self.running != set(ids):
                self._changed.clear()
                await self._changed.wait()

    def end(self, id: str, code: int = 0) -> None:
        self._ends[id].set_result(code)


@asynccontextmanager
async def working(state: Path, trainer: Trainer, parallel: int = 1) -> AsyncIterator[Queue]:
    queue = Queue(state, trainer, trainer.around, parallel)
    task = asyncio.create_task(queue.work())
    try:
        yield queue
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert trainer.running == set()


async def ended(queue: Queue, id: str) -> str:
    """The status of a job that has ended."""
    async with asyncio.timeout(60):
        while queue.info(id).status in ("pending", "starting", "running"):
            await asyncio.sleep(0)
    return queue.info(id).status


def put(queue: Queue, *ids: str) -> None:
    for id in ids:
        assert queue.put(id, replace(JOB, name=id)).unwrap().status == "pending"


async def test_jobs_are_trained_one_after_the_other(tmp_path: Path) -> None:
    trainer = Trainer()
    async with working(tmp_path, trainer) as queue:
        put(queue, "c", "a", "b")
        assert [info.place for info in queue.infos()] == [0, 1, 2]
        for id in ("c", "a", "b"):
            await trainer.has(id)
            assert queue.info(id).status == "running"
            trainer.end(id)
        assert await ended(queue, "b") == "succeeded"
        assert queue.info("b").adapter == "b-trained"
        async with asyncio.timeout(60):
            while trainer.inside:
                await asyncio.sleep(0)
    assert trainer.began == ["c", "a", "b"]
    assert trainer.visits == 1  # vLLM's memory is taken once for all of them


async def test_as_many_as_wanted_are_trained_at_once(tmp_path: Path) -> None:
    trainer = Trainer()
    async with working(tmp_path, trainer, parallel=2) as queue:
        put(queue, "a")
        await trainer.has("a")
        put(queue, "b", "c")
        await trainer.has("a", "b")
        trainer.end("b")
        await trainer.has("a", "c")


async def test_the_same_job_is_trained_once(tmp_path: Path) -> None:
    trainer = Trainer()
    async with working(tmp_path, trainer) as queue:
        put(queue, "a")
        await trainer.has("a")
        assert queue.put("a", replace(JOB, name="a")).unwrap().status == "running"
        refused = queue.put("a", replace(JOB, name="a", seed=2))
        assert isinstance(refused, Failure)
        assert refused.failure().status == 409
        trainer.end("a")
        assert await ended(queue, "a") == "succeeded"
        assert queue.put("a", replace(JOB, name="a")).unwrap().adapter == "a-trained"
    async with working(tmp_path, trainer) as queue:
        assert queue.put("a", replace(JOB, name="a")).unwrap().status == "succeeded"
    assert trainer.began == ["a"]


async def test_a_cancelled_job_stays_cancelled_and_the_next_is_trained(tmp_path: Path) -> None:
    trainer = Trainer()
    async with working(tmp_path, trainer) as queue:
        put(queue, "a", "b", "c")
        await trainer.has("a")
        (await queue.cancel("b")).unwrap()
        (await queue.cancel("a")).unwrap()
        assert "a" not in trainer.running
        await trainer.has("c")
        assert isinstance(await queue.cancel("a"), Failure)
        trainer.end("c")
        await ended(queue, "c")
        assert (await queue.cancel("c")).failure().status == 409
    async with working(tmp_path, trainer) as queue:
        assert [info.status for info in queue.infos()] == [
            "cancelled",
            "cancelled",
            "succeeded",
        ]
    assert trainer.began == ["a", "c"]


async def test_a_job_that_is_cancelled_before_its_first_step_frees_its_place(
    tmp_path: Path,
) -> None:
    trainer = Trainer()
    async with working(tmp_path, trainer) as queue:
        put(queue, "a", "b")
        while queue.info("a").status == "pending":
            await asyncio.sleep(0)
        assert trainer.began == []  # its task has not run yet
        (await queue.cancel("a")).unwrap()
        await trainer.has("b")


async def test_a_failed_training_says_why_and_the_next_is_trained(tmp_path: Path) -> None:
    trainer = Trainer()
    async with working(tmp_path, trainer) as queue:
        put(queue, "a", "b")
        await trainer.has("a")
        trainer.end("a", code=1)
        assert await ended(queue, "a") == "failed"
        assert queue.info("a").reason == "MemoryError: too big"
        await trainer.has("b")
    async with working(tmp_path, trainer) as queue:
        assert queue.info("a").status == "failed"


async def test_a_failed_job_that_is_put_again_is_trained_again(tmp_path: Path) -> None:
    for code in (1, 0):
        trainer = Trainer()
        async with working(tmp_path, trainer) as queue:
            put(queue, "a")
            await trainer.has("a")
            assert queue.put("a", replace(JOB, name="a")).unwrap().status == "running"
            trainer.end("a", code)
            assert await ended(queue, "a") == ("failed" if code else "succeeded")
    assert queue.put("a", replace(JOB, name="a")).unwrap().adapter == "a-trained"


async def test_what_was_waiting_or_under_way_is_trained_after_a_restart(tmp_path: Path) -> None:
    first = Trainer()
    async with working(tmp_path, first) as queue:
        put(queue, "b", "a")
        await first.has("b")
    second = Trainer()
    async with working(tmp_path, second) as queue:
        for id in ("b", "a"):
            await second.has(id)
            second.end(id)
        assert await ended(queue, "a") == "succeeded"
    assert second.began == ["b", "a"]


async def test_a_training_that_ended_while_the_server_was_dead_is_not_repeated(
    tmp_path: Path,
) -> None:
    first = Trainer()
    async with working(tmp_path, first) as queue:
        put(queue, "a")
        await first.has("a")
    files = JobFiles(tmp_path, "a")
    (files.adapters / "a-1").mkdir()
    write_result(files, JobResult(job_hash(read_job(files)), "a-1", ()))
    second = Trainer()
    async with working(tmp_path, second) as queue:
        assert await ended(queue, "a") == "succeeded"
        assert queue.info("a").adapter == "a-1"
    assert second.began == []


async def test_adapters_are_needed_until_the_job_ends(tmp_path: Path) -> None:
    trainer = Trainer()
    async with working(tmp_path, trainer) as queue:
        queue.put("a", replace(JOB, start="x", reference="y")).unwrap()
        assert queue.needed() == {"x", "y"}
        await trainer.has("a")
        assert queue.needed() == {"x", "y"}
        trainer.end("a")
        await ended(queue, "a")
        assert queue.needed() == set()


async def test_a_number_that_no_training_can_use_is_refused(tmp_path: Path) -> None:
    refused = Queue(tmp_path, Trainer(), Trainer().around).put("a", replace(JOB, seed=1 << 70))
    assert refused.failure().status == 422


@pytest.mark.parametrize("parallel", [1, 3])
async def test_a_bug_around_one_job_does_not_end_the_queue(tmp_path: Path, parallel: int) -> None:
    trainer = Trainer()
    async with working(tmp_path, trainer, parallel) as queue:
        put(queue, "a")
        (JobFiles(tmp_path, "a").folder / "job.msgpack").unlink()
        assert await ended(queue, "a") == "failed"
        put(queue, "b")
        await trainer.has("b")
