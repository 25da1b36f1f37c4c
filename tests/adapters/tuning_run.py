"""A run that trains at the fake provider: `python -m tests.adapters.tuning_run FOLDER URL`.

It starts or goes on, samples without a model, and prints the stage that it ended in.
"""

import asyncio
import os
import sys
from pathlib import Path

from nip_fn.config.codec import from_dict
from nip_fn.run.events import RunStarted
from nip_fn.run.ports import World
from nip_fn.run.replay import replay
from nip_fn.run.state import EMPTY
from nip_fn_adapters.data.opening import in_memory
from nip_fn_adapters.interpreter import interpret
from nip_fn_adapters.providers import dummy
from nip_fn_adapters.providers.api.publisher import api_publisher
from nip_fn_adapters.providers.api.tuner import Timeouts, api_tuner
from nip_fn_adapters.recording import store

from .conftest import no_tracker, small_dataset
from .tuning import RETRIES, groups

# Three iterations, each of which trains both agents.
PARAMS = from_dict(
    {
        "seed": 3,
        "agents": {"_default": {"model_name": "gpt-4.1-nano", "fine_tune_from_scratch": False}},
        "rl": {"num_iterations": 3, "rollouts_per_iteration": 20},
        "malt": {
            "num_responses_per_timestep": 3,
            "pair_selection_method": "interval",
            "interval_threshold_proportion": 0.0,
        },
        "nip_protocol": {"max_message_rounds": 3},
    }
).unwrap()


def main(folder: Path, url: str) -> str:
    """The stage that the run ended in, or why it failed."""
    if (folder / store.CHECKPOINT).exists():
        opened, recording = store.reopen(folder).unwrap()
        state = replay(recording.events).unwrap().state if recording.events else EMPTY
        assert state.faults == ()
    else:
        opened, state = store.create(folder).unwrap(), EMPTY
    data = in_memory(small_dataset())
    timeouts = Timeouts(poll=0.05, limit=30.0, settle=0.5, answer=5.0, retries=RETRIES)
    world = World(
        sampler=dummy.dummy_sampler(PARAMS.dummy),
        tuner=api_tuner(folder, groups(url), timeouts=timeouts),
        publisher=api_publisher(groups(url), timeouts=timeouts),
        source=data.source,
        store=opened,
        tracker=no_tracker,
    )
    first = () if state.stage.name != "start" else (RunStarted(PARAMS, data.info, "0"),)
    ended = asyncio.run(interpret(state, world, first=first))
    return ended.map(lambda state: state.stage.name).value_or(str(ended))


if __name__ == "__main__":
    print("ready", os.getpid(), flush=True)
    print(main(Path(sys.argv[1]), sys.argv[2]))
