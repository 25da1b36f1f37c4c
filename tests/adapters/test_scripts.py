"""A script of a user: a whole run of a model that is awaited, without a provider for it."""

import asyncio
from pathlib import Path

from returns.result import Result, Success

import nip_fn as nip
from nip_fn.run.ports import World
from nip_fn_adapters import load_run
from nip_fn_adapters.data.opening import in_memory
from nip_fn_adapters.interpreter import interpret
from nip_fn_adapters.providers import dummy
from nip_fn_adapters.recording import store

from .conftest import no_tracker, small_dataset, small_params

TEXTS = ("Decision: accept", "Decision: reject", "What?", "All is well.")


def test_a_model_in_an_event_loop_plays_a_whole_run(tmp_path: Path) -> None:
    async def sampler(
        request: nip.run.Request,
    ) -> Result[tuple[nip.Completion, ...], nip.Problem]:
        await asyncio.sleep(0)
        texts = (TEXTS[nip.randint(key, len(TEXTS))] for key in request.keys)
        return Success(tuple(nip.Completion(text, "stop", "toy") for text in texts))

    dataset = small_dataset()
    source, file = in_memory(dataset).source, store.create(tmp_path / "run").unwrap()
    world = World(sampler, dummy.dummy_tuner(), dummy.serve_at_once, source, file, no_tracker)
    start = nip.run.started(small_params(), dataset)
    state = asyncio.run(interpret(nip.run.EMPTY, world, first=(start,))).unwrap()
    file.close()
    assert state.stage.name == "done"
    assert load_run(tmp_path / "run").unwrap().digest == nip.digest(state)
