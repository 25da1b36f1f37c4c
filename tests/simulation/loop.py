"""An event loop in virtual time, and the processes whose tasks it runs."""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(Exception):
    """Everything waits for something that nobody will bring."""


class Late(Exception):
    """Work that does not end within its limit."""


class Died(BaseException):
    """The process is dead: no line of its program after this one has an effect."""


class Process:
    """A program that may be killed; its tasks are those that it starts, and those that they do."""

    def __init__(self, name: str) -> None:
        self.name, self.is_dead = name, False
        self.tasks: set[asyncio.Task[Any]] = set()
        self.generators: list[Any] = []  # asynchronous ones, which end with their event loop


OUTSIDE = Process("outside")
PROCESS: ContextVar[Process] = ContextVar("process", default=OUTSIDE)


CLEANING = 1e5  # seconds that a process may take for its end


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time passes only while nothing can be done, and then at once.

    Threads are functions that are called at once and whose results come later.
    """

    def __init__(self, thread_seconds: Callable[[], float], around_thread: Any) -> None:
        super().__init__()
        self.now = 0.0
        self._thread_seconds, self._around_thread = thread_seconds, around_thread
        select = self._selector.select  # type: ignore[attr-defined]

        def pass_time(timeout: float | None = None) -> Any:
            if timeout is None:
                raise Deadlock("nothing will ever happen")
            self.now += max(timeout, 0.0)
            return select(0)

        self._selector.select = pass_time  # type: ignore[attr-defined]
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        return self.now

    def _make_task(self, loop: Any, work: Any, **options: Any) -> "asyncio.Task[Any]":
        task = asyncio.Task(work, loop=self, **options)
        process = options["context"].get(PROCESS, OUTSIDE) if options.get("context") else None
        process = process or PROCESS.get()
        process.tasks.add(task)
        task.add_done_callback(process.tasks.discard)
        if process is OUTSIDE:  # that of a method below, which runs until it is done
            task.add_done_callback(lambda task: self.stop())
        return task

    def _asyncgen_firstiter_hook(self, generator: Any) -> None:
        PROCESS.get().generators.append(generator)

    def run_in_executor(self, executor: Any, function: Any, *arguments: Any) -> Any:
        future = self.create_future()
        outcome, error = None, None
        with self._around_thread() as finish:
            try:
                outcome = function(*arguments)
            except Exception as raised:
                error = raised

        def deliver() -> None:
            finish()
            if not future.done():
                future.set_exception(error) if error else future.set_result(outcome)

        self.call_later(self._thread_seconds(), deliver)
        return future

    def run_to_end(self, process: Process, main: Coroutine[Any, Any, T], limit: float) -> T:
        """The result of a process's main task, as of `asyncio.run`; raises `Died` if it is killed.

        Raises:
            Deadlock: It waits, and so does everything else.
            Late: It does not end within `limit` seconds.
        """
        context = copy_context()
        context.run(PROCESS.set, process)
        task: asyncio.Task[T] = self.create_task(main, context=context)
        task.add_done_callback(lambda task: self.stop())
        self._run_while(lambda: not (task.done() or process.is_dead), limit)
        self.end(process)
        if process.is_dead:
            raise Died
        return task.result()

    def end(self, process: Process) -> None:
        """Cancel what a process has left, and let it clean up."""
        while process.tasks:
            for task in process.tasks:
                task.cancel()
            cleaning = self.create_task(asyncio.wait(tuple(process.tasks)))
            self._run_while(lambda: not cleaning.done(), CLEANING)  # noqa: B023
        for generator in process.generators:
            closing = self.create_task(generator.aclose())
            self._run_while(lambda: not closing.done(), CLEANING)  # noqa: B023
        process.generators.clear()

    def end_all(self) -> None:
        """Cancel all that is under way, of whichever process."""
        while tasks := asyncio.all_tasks(self):
            for task in tasks:
                task.cancel()
            ending = self.create_task(asyncio.wait(tuple(tasks)))
            self._run_while(lambda: not ending.done(), CLEANING)  # noqa: B023

    def _run_while(self, goes_on: Callable[[], bool], limit: float) -> None:
        """Run as long as it holds; whatever ends it calls `stop`."""
        end = self.now + limit
        timer = self.call_at(end, self.stop)
        while goes_on():
            if self.now >= end:
                raise Late(f"not done after {limit:g} s")
            self.run_forever()
        timer.cancel()
