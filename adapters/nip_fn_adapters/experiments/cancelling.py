"""Ending the paid trainings of a run that is abandoned."""

from functools import partial
from pathlib import Path

from nip_fn.config.hosting import provider_kind
from nip_fn.params.agent import agent_group
from nip_fn_adapters.experiments.concurrency import asynchronous, run_in_own_loop
from nip_fn_adapters.experiments.outcomes import outcome, refuse
from nip_fn_adapters.experiments.watching import NOBODY, Tell, Watch
from nip_fn_adapters.recording.runs import Run, load_run
from nip_fn_adapters.trust import server_problem


@outcome
def cancel(run: Path | str, *, tell: Tell | None = None, watch: Watch = NOBODY) -> tuple[str, ...]:
    """Cancel the fine-tuning jobs of a run at a provider, or at a language-model server.

    A run that is stopped or killed leaves its jobs under way, to find their results when it is
    resumed; if it never is, they would still be paid for.  What was uploaded for them is deleted.
    A resumed run trains again, or goes on without with `text_rl.failed_trainings = "skip"`.

    Args:
        run: The folder of a run that no other process carries on, or its name in `runs`.
        tell: Called with what is waited for, and what could not be deleted.
        watch: See `Watch`.

    Returns:
        The ids of the jobs that were under way; a failure if a server cannot be asked.
    """
    loaded = load_run(run).unwrap()
    if problem := server_problem(loaded.params):
        refuse(problem)
    return run_in_own_loop(partial(_cancel, loaded, watch.telling(tell).tell))


cancel_async = asynchronous(cancel)


async def _cancel(run: Run, tell: Tell) -> tuple[str, ...]:
    kinds = {provider_kind(agent) for agent in run.params.agents if not agent.freeze_agent}
    jobs: tuple[str, ...] = ()
    if "api" in kinds:
        jobs += await _at_providers(run, tell)
    if "self-hosted" in kinds:
        jobs += await _at_servers(run, tell)
    return jobs


async def _at_providers(run: Run, tell: Tell) -> tuple[str, ...]:
    from nip_fn_adapters.providers.api.endpoints import environment
    from nip_fn_adapters.providers.api.tuner import cancel_jobs, delete_files, training_servers

    trained = (agent for agent in run.params.agents if not agent.freeze_agent)
    names = {agent_group(agent) for agent in trained if provider_kind(agent) == "api"}
    servers = training_servers(run.params, environment()).unwrap()
    groups = {name: training for name, training in servers.items() if name in names}
    cancelled = await cancel_jobs(run.path.parent, groups)
    awaited = [record.job.name for record in run.state.jobs if not record.ended]
    await delete_files(run.path.parent, groups, awaited, tell)
    return cancelled.unwrap()


async def _at_servers(run: Run, tell: Tell) -> tuple[str, ...]:
    from nip_fn_adapters.providers.api.endpoints import environment
    from nip_fn_adapters.providers.selfhosted.client import Timeouts
    from nip_fn_adapters.providers.selfhosted.host import hosts_of, of_groups
    from nip_fn_adapters.providers.selfhosted.tuner import cancel_jobs

    # A run that is cancelled does not need its server to come up: ten seconds tell if it is there.
    timeouts = Timeouts(ready=10.0)
    hosts = hosts_of(run.params, run.path.parent, environment(), timeouts=timeouts, tell=tell)
    groups = of_groups(run.params, hosts.unwrap())
    under_way = (record.job for record in run.state.jobs if record.created and not record.ended)
    jobs = [job for job in under_way if job.group in groups]
    return tuple((await cancel_jobs(groups, jobs)).unwrap())
