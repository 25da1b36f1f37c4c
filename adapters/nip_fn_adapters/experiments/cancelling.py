"""Ending the paid trainings of a run that is abandoned."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from returns.pipeline import is_successful
from returns.result import Failure, Result

from nip_fn.config.hosting import kind_of
from nip_fn.errors import Problem, collect
from nip_fn.params.agent import agent_group
from nip_fn_adapters.recording.runs import Run, load_run
from nip_fn_adapters.trust import server_problem

Tell = Callable[[str], None]  # takes a line for people


def cancel(run: Path | str, *, tell: Tell = lambda line: None) -> Result[tuple[str, ...], Problem]:
    """Cancel the fine-tuning jobs of a run at a provider, or at a language-model server.

    A run that is stopped or killed leaves its jobs under way, to find their results when it is
    resumed; if it never is, they would still be paid for.  What was uploaded for them is deleted.
    A resumed run trains again, or goes on without with `text_rl.failed_trainings = "skip"`.

    Args:
        run: The folder of a run that no other process carries on, or its name in `runs`.
        tell: Called with what is waited for, and what could not be deleted.

    Returns:
        The ids of the jobs that were under way; a failure if a server cannot be asked.
    """

    def cancelled(loaded: Run) -> Result[tuple[str, ...], Problem]:
        if problem := server_problem(loaded.params):
            return Failure(problem)
        # In a thread of its own: the caller may be inside an event loop, as a notebook is.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, _cancel(loaded, tell)).result()

    return load_run(run).bind(cancelled)


async def _cancel(run: Run, tell: Tell) -> Result[tuple[str, ...], Problem]:
    kinds = {kind_of(agent) for agent in run.params.agents if not agent.freeze_agent}
    parts = {"api": _at_providers, "self-hosted": _at_servers}
    cancelled = [await part(run, tell) for kind, part in parts.items() if kind in kinds]
    return collect(cancelled).map(lambda ids: sum(ids, ()))


async def _at_providers(run: Run, tell: Tell) -> Result[tuple[str, ...], Problem]:
    from nip_fn_adapters.providers.api.endpoints import environment
    from nip_fn_adapters.providers.api.tuner import cancel_jobs, delete_files, trainings

    all_trainings = trainings(run.params, environment())
    if not is_successful(all_trainings):
        return all_trainings.map(lambda _: ())
    trained = (agent for agent in run.params.agents if not agent.freeze_agent)
    names = {agent_group(agent) for agent in trained if kind_of(agent) == "api"}
    groups = {name: each for name, each in all_trainings.unwrap().items() if name in names}
    cancelled = await cancel_jobs(run.path.parent, groups)
    awaited = [record.job.name for record in run.state.jobs if not record.ended]
    await delete_files(run.path.parent, groups, awaited, tell)
    return cancelled


async def _at_servers(run: Run, tell: Tell) -> Result[tuple[str, ...], Problem]:
    from nip_fn_adapters.providers.api.endpoints import environment
    from nip_fn_adapters.providers.selfhosted.client import Timeouts
    from nip_fn_adapters.providers.selfhosted.host import hosts_of, of_groups
    from nip_fn_adapters.providers.selfhosted.tuner import cancel_jobs

    # A run that is cancelled does not need its server to come up: ten seconds tell if it is there.
    timeouts = Timeouts(ready=10.0)
    hosts = hosts_of(run.params, run.path.parent, environment(), timeouts=timeouts, tell=tell)
    if not is_successful(hosts):
        return hosts.map(lambda _: ())
    groups = of_groups(run.params, hosts.unwrap())
    under_way = (record.job for record in run.state.jobs if record.created and not record.ended)
    jobs = [job for job in under_way if job.group in groups]
    return (await cancel_jobs(groups, jobs)).map(tuple)
