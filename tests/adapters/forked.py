"""Children that train, forked from processes that all tests of a worker share.

A training of the tests takes half a second, and the imports before it take six.  Tests of the
processes themselves (signals, parents, progress) have their own.
"""

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar
from unittest.mock import patch

from nip_fn_adapters.providers.local import children, tuner, warm

PRELOADED = [
    "torch",
    "datasets",
    "peft",
    "trl.trainer.dpo_trainer",
    "trl.trainer.sft_trainer",
    "transformers.models.llama.modeling_llama",
    *tuner.PRELOADED,
]
LOOK_SECONDS = 0.05

T = TypeVar("T")

_shared = warm.warm_children(*PRELOADED)
_context = multiprocessing.get_context("forkserver")


@contextmanager
def forked_trainings() -> Iterator[None]:
    """Inside, trainings in child processes are forked."""
    with (
        patch.object(tuner, "warm_children", lambda *modules: _shared),
        patch.object(children, "run_child", _shared),
        patch.object(warm, "LOOK_SECONDS", LOOK_SECONDS),
    ):
        yield


def in_forked_process(function: Callable[..., T], *arguments: Any) -> T:
    """The value of a function of a module, in a process that has none of this one's state."""
    _context.set_forkserver_preload(PRELOADED)
    with ProcessPoolExecutor(1, mp_context=_context) as pool:
        return pool.submit(function, *arguments).result()
