"""`nip-fn cancel`: end the trainings of a run at a provider, or at a language-model server."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

from returns.result import Result

from nip_fn.config.hosting import kind_of
from nip_fn.errors import Problem
from nip_fn.params.agent import agent_group
from nip_fn.run.state import RunState
from nip_fn_adapters.recording.store import CHECKPOINT
from nip_fn_adapters.trust import server_problem
from nip_fn_cli.recordings import read_recording, replay_recording
from nip_fn_cli.shown.exits import Exit, die, or_exit, say


def cancel_command(run: Path) -> None:
    """Cancel the run's fine-tuning jobs that have not ended, and print their ids."""
    folder = run.parent if run.name == CHECKPOINT else run
    path = folder / CHECKPOINT
    state = replay_recording(path, read_recording(path)).state
    if problem := server_problem(state.params):
        die(Exit.USAGE, problem)
    kinds = {kind_of(agent) for agent in state.params.agents if not agent.freeze_agent}
    jobs: list[str] = []
    try:
        if "api" in kinds:
            jobs += or_exit(_at_providers(state, folder), Exit.ADAPTER)
        if "self-hosted" in kinds:
            jobs += or_exit(_at_servers(state, folder), Exit.ADAPTER)
    except ModuleNotFoundError as error:
        missing = f"models behind an API need {error.name}"
        die(Exit.USAGE, Problem(missing, remedy='install it with: pip install "nip-fn[api]"'))
    for job in jobs:
        print(f"cancelled {job}")
    if jobs:
        say("resuming the run trains again; with --set text_rl.failed_trainings=skip it does not")
    else:
        print(f"{folder} has no job under way at a provider")


def _at_providers(state: RunState, folder: Path) -> Result[Iterable[str], Problem]:
    from nip_fn_adapters.providers.api.endpoints import environment
    from nip_fn_adapters.providers.api.tuner import cancel_jobs, delete_files, trainings

    groups = or_exit(trainings(state.params, environment()))
    trained = (agent for agent in state.params.agents if not agent.freeze_agent)
    own = {agent_group(agent) for agent in trained if kind_of(agent) == "api"}
    at_providers = {name: one for name, one in groups.items() if name in own}
    awaited = [one.job.name for one in state.jobs if not one.ended]

    async def cancel() -> Result[tuple[str, ...], Problem]:
        cancelled = await cancel_jobs(folder, at_providers)
        await delete_files(folder, at_providers, awaited, say)
        return cancelled

    return asyncio.run(cancel())


def _at_servers(state: RunState, folder: Path) -> Result[Iterable[str], Problem]:
    from nip_fn_adapters.providers.api.endpoints import environment
    from nip_fn_adapters.providers.selfhosted.client import Timeouts
    from nip_fn_adapters.providers.selfhosted.host import hosts_of, of_groups
    from nip_fn_adapters.providers.selfhosted.tuner import cancel_jobs

    # A run that is cancelled does not need its server to come up: ten seconds tell if it is there.
    timeouts = Timeouts(ready=10.0)
    hosts = or_exit(hosts_of(state.params, folder, environment(), timeouts=timeouts, tell=say))
    groups = of_groups(state.params, hosts)
    under_way = (one for one in state.jobs if one.created and not one.ended)
    jobs = [one.job for one in under_way if one.job.group in groups]
    return asyncio.run(cancel_jobs(groups, jobs))
