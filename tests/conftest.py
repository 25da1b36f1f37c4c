"""Settings of all tests.

Hypothesis draws the same examples in every run: profile `fast` in `make test`, `full` otherwise;
`EXPLORE=1` draws new ones, and more.  No test writes to the user's cache
or configuration.
"""

import asyncio
import gc
import inspect
import os
import signal
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import settings

from .provider import Provider

settings.register_profile("fast", deadline=None, max_examples=25, derandomize=True)
settings.register_profile("full", deadline=None, max_examples=50, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=200)
settings.load_profile("explore" if os.environ.get("EXPLORE") else "full")

# A shell that starts the tests in the background has them ignore Ctrl-C, and so do their children.
signal.signal(signal.SIGINT, signal.default_int_handler)

# torch's threads, one per core, would only wait for each other, and for those of other workers.
os.environ["OMP_NUM_THREADS"] = "1"


# What is collected lives until the end: to look for garbage in it, again and again, takes seconds.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NIP_FN_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(scope="module")
def running() -> Iterator[Provider]:
    """A fake provider of models for all tests of a file: to start one takes most of a second."""
    with Provider() as provider:
        yield provider


# ---------------------------------------------- exhaustive tests take their time, and are counted

_left_out: set[str] = set()


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    for item in items:
        # The limit is there for what hangs: on two busy cores minutes become quarters of an hour.
        if item.get_closest_marker("exhaustive") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(2400))


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    _left_out.update(item.nodeid for item in items if item.get_closest_marker("exhaustive"))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = sorted(_left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    # Only workers collect under xdist, and each of them collects everything.
    _left_out.update(getattr(node, "workeroutput", {}).get("left_out", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _left_out:
        terminalreporter.write_line(
            f"{len(_left_out)} exhaustive tests were left out; `make test-all` runs them, too."
        )
