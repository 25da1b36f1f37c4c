"""A run that stops on a problem says so before it waits for what is under way."""

import asyncio
from contextlib import closing
from pathlib import Path

from returns.result import Failure, Result

from nip_fn.errors import Problem
from nip_fn.game.reply import Completion
from nip_fn.run.events import RunStarted
from nip_fn.run.ports import Unanswered, World
from nip_fn.run.request import Request
from nip_fn.run.state import EMPTY
from nip_fn_adapters.data.opening import in_memory
from nip_fn_adapters.interpreter import interpret
from nip_fn_adapters.providers import dummy
from nip_fn_adapters.recording import store

from ..core.games import one_by_one
from .conftest import no_tracker, small_dataset, small_params


def test_a_problem_is_told_while_replies_are_under_way_and_these_are_kept(tmp_path: Path) -> None:
    params, told, asked = small_params(), asyncio.Event(), 0
    lines: list[tuple[str, int]] = []  # with the number of replies that were recorded before

    def replies() -> int:
        events = store.read_recording(tmp_path / store.CHECKPOINT).unwrap().events
        return len(one_by_one(events))

    def tell(line: str) -> None:
        lines.append((line, replies()))
        told.set()

    play = dummy.dummy_sampler(params.dummy)

    async def sample(
        request: Request,
    ) -> Result[tuple[Completion | Unanswered, ...], Problem]:
        nonlocal asked
        asked += 1
        if asked == 1:
            return Failure(Problem("the key is refused"))
        # Under way until the problem has been told: were it told at the end, nothing would be.
        await asyncio.wait_for(told.wait(), timeout=60)
        return await play(request)

    with closing(store.create(tmp_path).unwrap()) as opened:
        world = World(
            sampler=sample,
            tuner=dummy.dummy_tuner(),
            publisher=dummy.serve_at_once,
            source=in_memory(small_dataset()).source,
            store=opened,
            tracker=no_tracker,
        )
        start = RunStarted(params, in_memory(small_dataset()).info, "0")
        ended = asyncio.run(interpret(EMPTY, world, first=(start,), tell=tell))
    assert str(ended.failure()) == "the key is refused"
    ((line, before),) = lines
    assert line.startswith("the key is refused; waiting for the replies that are under way (at ")
    assert before == 0 < replies()
