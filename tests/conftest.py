"""Hypothesis draws the same examples in every run; `EXPLORE=1` draws new ones, and more.

No test writes to the user's cache.
"""

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("same", deadline=None, max_examples=50, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=200)
# A shell that starts the tests in the background has them ignore Ctrl-C, and so do their children.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.load_profile("explore" if os.environ.get("EXPLORE") else "same")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NIP_FN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
