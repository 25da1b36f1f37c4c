"""Event loops of an experiment's own, wherever it is called: in a script, a notebook, a task."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

from returns.result import Result

from nip_fn.errors import Problem
from nip_fn_adapters.experiments.watching import NOBODY, Watch

P = ParamSpec("P")
T = TypeVar("T")


class Cancellation:
    """A request by one thread to cancel the tasks of another."""

    def __init__(self) -> None:
        """Nothing is requested yet."""
        self._requested = False
        self._running: set[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = set()

    def request(self) -> None:
        """Cancel the tasks that are within `heeded`, and those that will be."""
        self._requested = True
        for loop, task in tuple(self._running):
            loop.call_soon_threadsafe(task.cancel)

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Cancel the current task if that is requested before the block ends."""
        task = asyncio.current_task()
        assert task is not None
        running = (asyncio.get_running_loop(), task)
        self._running.add(running)
        try:
            if self._requested:
                task.cancel()
            yield
        finally:
            self._running.discard(running)


def run_in_own_loop(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of a coroutine: `asyncio.run`, but also where a loop is running already.

    There, as in a notebook, it has a thread of its own, and this one waits for it.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(main())
    cancellation = Cancellation()

    async def cancellable() -> T:
        with cancellation.heeded():
            return await main()

    with ThreadPoolExecutor(1) as thread:
        work = thread.submit(lambda: asyncio.run(cancellable()))
        try:
            return work.result()
        except BaseException:  # such as the notebook's own Ctrl-C
            cancellation.request()
            raise


def asynchronous(
    door: Callable[P, Result[T, Problem]],
) -> Callable[P, Coroutine[Any, Any, Result[T, Problem]]]:
    """An async version of the function, which runs in a separate thread.

    To cancel it is to stop its run, of which all that is recorded is kept.
    """

    @wraps(door)
    async def awaited(*args: P.args, **kwargs: P.kwargs) -> Result[T, Problem]:
        cancellation = Cancellation()
        watch: Any = kwargs.get("watch", NOBODY)
        kwargs["watch"] = _heeding(watch, cancellation)
        with ThreadPoolExecutor(1) as thread:
            loop = asyncio.get_running_loop()
            work = loop.run_in_executor(thread, _unless_cancelled, partial(door, *args, **kwargs))
            try:
                result = await asyncio.shield(work)
            except asyncio.CancelledError:
                cancellation.request()
                await asyncio.wait((work,))
                raise
        assert result is not None
        return result

    awaited.__name__ = f"{door.__name__}_async"
    return awaited


def _unless_cancelled(call: Callable[[], T]) -> T | None:
    try:
        return call()
    except asyncio.CancelledError:
        return None


def _heeding(watch: Watch, cancellation: Cancellation) -> Watch:
    """The watch, extended so that a cancellation also stops runs."""

    @contextmanager
    def stopping(grace: float) -> Iterator[asyncio.Event]:
        with watch.stopping(grace) as stop, cancellation.heeded():
            yield stop

    return watch._replace(stopping=stopping)
