"""`nip-fn cancel`: end what a run still has under way at a provider."""

import asyncio
from pathlib import Path

from returns.result import Failure

from nip_fn_adapters.store import CHECKPOINT
from nip_fn_cli.exits import Exit, die
from nip_fn_cli.recordings import read_recording, replay_recording


def cancel_command(run: Path) -> None:
    """Cancel the run's fine-tuning jobs that have not ended, and print their ids."""
    try:
        from nip_fn_adapters.api.endpoints import environment
        from nip_fn_adapters.api.tuner import cancel_jobs, trainings
    except ModuleNotFoundError as error:
        die(Exit.USAGE, f"models behind an API need {error.name}: install nip-fn[api]")
    folder = run.parent if run.name == CHECKPOINT else run
    path = folder / CHECKPOINT
    params = replay_recording(path, read_recording(path)).state.params
    groups = trainings(params, environment())
    if isinstance(groups, Failure):
        die(Exit.USAGE, groups.failure())
    cancelled = asyncio.run(cancel_jobs(folder, groups.unwrap()))
    if isinstance(cancelled, Failure):
        die(Exit.ADAPTER, cancelled.failure())
    for job in cancelled.unwrap():
        print(f"cancelled {job}")
    if not cancelled.unwrap():
        print(f"{folder} has no job under way at a provider")
