"""`nip-fn cancel`: end what a run still has under way at a provider, or a language-model server."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

from returns.result import Failure, Result

from nip_fn.params.agent import agent_group
from nip_fn.run.state import RunState
from nip_fn_adapters.store import CHECKPOINT
from nip_fn_cli.exits import Exit, die, say
from nip_fn_cli.recordings import read_recording, replay_recording
from nip_fn_cli.wiring import kind_of


def cancel_command(run: Path) -> None:
    """Cancel the run's fine-tuning jobs that have not ended, and print their ids."""
    folder = run.parent if run.name == CHECKPOINT else run
    path = folder / CHECKPOINT
    state = replay_recording(path, read_recording(path)).state
    kinds = {kind_of(agent) for agent in state.params.agents if not agent.freeze_agent}
    jobs: list[str] = []
    try:
        if "api" in kinds:
            jobs += _or_die(_at_providers(state, folder))
        if "self-hosted" in kinds:
            jobs += _or_die(_at_servers(state, folder))
    except ModuleNotFoundError as error:
        die(Exit.USAGE, f"models behind an API need {error.name}: install nip-fn[api]")
    for job in jobs:
        print(f"cancelled {job}")
    if not jobs:
        print(f"{folder} has no job under way at a provider")


def _at_providers(state: RunState, folder: Path) -> Result[Iterable[str], str]:
    from nip_fn_adapters.api.endpoints import environment
    from nip_fn_adapters.api.tuner import cancel_jobs, trainings

    groups = trainings(state.params, environment())
    if isinstance(groups, Failure):
        die(Exit.USAGE, groups.failure())
    trained = (agent for agent in state.params.agents if not agent.freeze_agent)
    own = {agent_group(agent) for agent in trained if kind_of(agent) == "api"}
    at_providers = {name: one for name, one in groups.unwrap().items() if name in own}
    return asyncio.run(cancel_jobs(folder, at_providers))


def _at_servers(state: RunState, folder: Path) -> Result[Iterable[str], str]:
    from nip_fn_adapters.api.endpoints import environment
    from nip_fn_adapters.selfhosted.client import Timeouts
    from nip_fn_adapters.selfhosted.host import hosts_of, of_groups
    from nip_fn_adapters.selfhosted.tuner import cancel_jobs

    hosts = hosts_of(state.params, folder, environment(), timeouts=Timeouts(ready=10.0), tell=say)
    if isinstance(hosts, Failure):
        die(Exit.USAGE, hosts.failure())
    groups = of_groups(state.params, hosts.unwrap())
    under_way = (one for one in state.jobs if one.created and not one.ended)
    jobs = [one.job for one in under_way if one.job.group in groups]
    return asyncio.run(cancel_jobs(groups, jobs))


def _or_die(cancelled: Result[Iterable[str], str]) -> Iterable[str]:
    if isinstance(cancelled, Failure):
        die(Exit.ADAPTER, cancelled.failure())
    return cancelled.unwrap()
