"""The adapters of a run, as its agents ask for them."""

import resource
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from nip_fn.config.hosting import provider_kind
from nip_fn.config.resolve import resolve
from nip_fn.errors import Eventual, Problem
from nip_fn.game.reply import Completion
from nip_fn.params.agent import OPTIONS, AgentParameters, agent_group, is_frozen
from nip_fn.params.run import HyperParameters
from nip_fn.params.training import TextRlParameters
from nip_fn.run.events import Publish
from nip_fn.run.ports import (
    Follow,
    Progress,
    Publisher,
    Sampler,
    Served,
    Tuned,
    Tuner,
    Unanswered,
    nothing_to_drain,
)
from nip_fn.run.request import Request
from nip_fn.run.stages import Growing
from nip_fn.run.state import RunState
from nip_fn.training.tuning import Job
from nip_fn_adapters.costs.budget import Meter, within_budget
from nip_fn_adapters.experiments.outcomes import refuse
from nip_fn_adapters.experiments.watching import NOBODY, Tell, Watch
from nip_fn_adapters.providers import dummy, scripted
from nip_fn_adapters.providers.api.endpoints import address_problem
from nip_fn_adapters.providers.api.pace import Bounds
from nip_fn_adapters.providers.api.retries import RetryPolicy
from nip_fn_adapters.trust import server_problem

# Descriptors that a process needs besides its connections: the checkpoint, data sets, child
# processes, the files of libraries.
OTHER_FILES = 128


async def nothing_to_tidy(state: RunState) -> None:
    """A `tidy` that does nothing, for adapters that upload nothing."""


class Models(NamedTuple):
    """The adapters that sample and train.

    sampler: samples replies.
    tuner: trains adapters.
    publisher: makes adapters answer.
    drain: see `World`.
    progress: forwards the progress of trainings; None if the tuner reports none.
    meter: charges the sampler's requests to a budget, once there is one.
    tidy: deletes what was uploaded and, in that state of the run, is not needed any more; to be
        called between stages and at the end of a session.
    """

    sampler: Sampler
    tuner: Tuner
    publisher: Publisher
    drain: Callable[[], None] = nothing_to_drain
    progress: "ProgressForwarder | None" = None
    meter: Meter | None = None
    tidy: Callable[[RunState], Awaitable[None]] = nothing_to_tidy


class ProgressForwarder:
    """Forwards the progress of trainings to a display that is made later than the tuners."""

    def __init__(self) -> None:
        """Forward to nobody, until `follow` is set."""
        self.follow: Follow | None = None

    def __call__(self, job: str, progress: Progress) -> None:
        """Forward the progress of one job."""
        if self.follow is not None:
            self.follow(job, progress)


class WiringContext(NamedTuple):
    """The parts of a run that all of its adapters share.

    params: the run's parameters.
    run: its folder.
    progress: forwards the progress of trainings.
    meter: charges requests to a budget.
    tell: takes lines for people.
    """

    params: HyperParameters
    run: Path
    progress: ProgressForwarder
    meter: Meter
    tell: Tell


def wire(params: HyperParameters, run: Path, watch: Watch = NOBODY) -> Models:
    """The adapters that the agents ask for, each agent and each group with its own.

    Args:
        params: The run's parameters.
        run: The run's folder, in which adapters and records of jobs are kept.
        watch: Told of servers and trainings that are waited for.

    Returns:
        The adapters.  Refuses if one cannot be made: a key or a package is missing.
    """
    if problem := server_problem(params):
        refuse(problem)
    providers = {provider_kind(a) for a in params.agents}
    context = WiringContext(params, run, ProgressForwarder(), Meter(), watch.tell)
    if any(agent.opponent_scripts for agent in params.agents):
        providers.add("scripted")
    models = {provider: _MODELS[provider](context) for provider in sorted(providers)}
    if len(models) == 1:
        return next(iter(models.values()))._replace(progress=context.progress, meter=context.meter)
    by_agent = {agent.name: models[provider_kind(agent)] for agent in params.agents}
    by_group = {agent_group(agent): models[provider_kind(agent)] for agent in params.agents}

    def sample(request: Request) -> Eventual[tuple[Completion | Unanswered, ...]]:
        served = models["scripted"] if request.script else by_agent[request.agent]
        return served.sampler(request)

    def tune(job: Job) -> Eventual[Tuned]:
        return by_group[job.group].tuner(job)

    def publish(effect: Publish) -> Eventual[Served]:
        return by_group[effect.group].publisher(effect)

    def drain() -> None:
        for provider_models in models.values():
            provider_models.drain()

    async def tidy(state: RunState) -> None:
        for provider_models in models.values():
            await provider_models.tidy(state)

    return Models(sample, tune, publish, drain, context.progress, context.meter, tidy)


def _dummy(context: WiringContext) -> Models:
    sampler = within_budget(dummy.dummy_sampler(context.params.dummy), context.meter)
    return Models(sampler, dummy.dummy_tuner(), dummy.serve_at_once)


def _scripted(context: WiringContext) -> Models:
    # Nothing is ever trained, so the tuner and the publisher are never called.
    sampler = scripted.scripted_sampler(resolve(context.params).unwrap())
    return Models(sampler, dummy.dummy_tuner(), dummy.serve_at_once)


# The adapters are imported where they are wired: each kind needs packages of an extra that may not
# be installed, and torch takes seconds.
def _local(context: WiringContext) -> Models:
    from nip_fn_adapters.providers.local.models import installed, is_on_hub, model_directory
    from nip_fn_adapters.providers.local.publisher import local_publisher
    from nip_fn_adapters.providers.local.sampler import local_sampler
    from nip_fn_adapters.providers.local.tuner import local_tuner

    # All of the extra, trained or not: one that was half installed would stop hours later.
    installed("torch", "transformers", "peft", "trl").unwrap()
    for agent in context.params.agents:
        # A model of the hub may have to be downloaded first, which the sampler does.
        if provider_kind(agent) == "local" and not is_on_hub(agent.model_name):
            with_address = partial(Problem.at, address=f"agents.{agent.name}.model_name")
            model_directory(agent.model_name).alt(with_address).unwrap()
    sampler = local_sampler(context.run / "adapters")
    tuner, publisher = local_tuner(context.run, follow=context.progress), local_publisher(sampler)
    return Models(within_budget(sampler, context.meter), tuner, publisher)


def _self_hosted(context: WiringContext) -> Models:
    try:
        from nip_fn_adapters.providers.api.endpoints import environment
        from nip_fn_adapters.providers.api.sampler import ClientSettings
        from nip_fn_adapters.providers.selfhosted.client import Timeouts
        from nip_fn_adapters.providers.selfhosted.host import hosts_of, of_groups
        from nip_fn_adapters.providers.selfhosted.publisher import hosted_publisher
        from nip_fn_adapters.providers.selfhosted.sampler import Assignment, HostedSampler
        from nip_fn_adapters.providers.selfhosted.tuner import hosted_tuner
    except ModuleNotFoundError as error:
        refuse(_missing("language-model servers need", error))
    params, run, progress, meter, tell = context
    text_rl = params.text_rl
    timeouts = Timeouts(
        # The parameter is meant for providers; a server of one's own may be asked more often.
        poll=min(text_rl.fine_tune_poll_seconds, Timeouts().poll),
        limit=text_rl.fine_tune_limit_hours * 3600,
    )
    hosts = hosts_of(params, run, environment(), timeouts=timeouts, tell=tell).unwrap()
    groups = of_groups(params, hosts)
    bounds = _open_files(text_rl.max_requests_in_flight)
    # vLLM refuses nothing: what it cannot serve yet waits there.
    bounds = bounds._replace(first=bounds.highest)
    settings = ClientSettings(
        _policy(text_rl), bounds, text_rl.request_timeout_seconds, tell=tell, meter=meter
    )
    agents = {agent.name: agent for agent in params.agents}
    assignments = {name: Assignment(agents[name], host) for name, host in hosts.items()}
    sampler = HostedSampler(assignments, settings)
    tuner = hosted_tuner(groups, follow=progress)
    return Models(sampler, tuner, hosted_publisher(groups), sampler.drain)


def _api(context: WiringContext) -> Models:
    try:
        from nip_fn_adapters.providers.api.batches import BatchApiSampler, Times, batch_sampler
        from nip_fn_adapters.providers.api.endpoints import environment
        from nip_fn_adapters.providers.api.publisher import api_publisher
        from nip_fn_adapters.providers.api.sampler import ClientSettings, api_sampler, served_by
        from nip_fn_adapters.providers.api.tuner import (
            Timeouts,
            api_tuner,
            delete_files,
            training_servers,
        )
    except ModuleNotFoundError as error:
        refuse(_missing("models behind an API need", error))
    params, run, _, meter, tell = context
    check_apis(params)
    agents = [agent for agent in params.agents if provider_kind(agent) == "api"]
    variables = environment()
    served = {agent.name: served_by(agent, variables).unwrap() for agent in agents}
    groups = training_servers(params, variables).unwrap()
    wandb_project = variables.get("WANDB_OPENAI_FINETUNE_PROJECT")
    text_rl, poll = params.text_rl, params.text_rl.fine_tune_poll_seconds
    bounds = _open_files(text_rl.max_requests_in_flight)
    policy = _policy(text_rl)
    settings = ClientSettings(
        policy, bounds, text_rl.request_timeout_seconds, tell=tell, meter=meter
    )
    retries = policy._replace(max_seconds=Timeouts().retries.max_seconds)
    timeouts = Timeouts(poll=poll, limit=text_rl.fine_tune_limit_hours * 3600, retries=retries)
    # One sampler serves all agents at APIs, so that those at one server share its limit; it either
    # uses batches or does not.
    batched = {agent.use_batch_api for agent in agents}
    if len(batched) > 1:
        problem = Problem(
            "some agents at an API use batches and some do not",
            "agents.*.use_batch_api",
            "use batches for all of them or for none, as with agents._default.use_batch_api=true",
        )
        refuse(problem)
    sampler = (
        batch_sampler(run, served, settings=settings, times=Times(poll=poll))
        if batched == {True}
        else api_sampler(served, settings)
    )
    tuner = api_tuner(
        run,
        groups,
        timeouts=timeouts,
        wandb_project=wandb_project,
        again=text_rl.failed_trainings != "skip",
        tell=tell,
    )

    async def tidy(state: RunState) -> None:
        awaited = [entry.job.name for entry in state.jobs if not entry.ended]
        # The replies of batches are surely recorded once their stage is over.
        if isinstance(sampler, BatchApiSampler) and not isinstance(state.stage, Growing):
            await sampler.delete_files()
        await delete_files(run, groups, awaited, tell)

    publisher = api_publisher(groups, tell=tell)
    return Models(sampler, tuner, publisher, sampler.drain, tidy=tidy)


def _policy(text_rl: TextRlParameters) -> RetryPolicy:
    return RetryPolicy(
        max_outage=text_rl.outage_limit_seconds, max_unreached=text_rl.unreached_limit_seconds
    )


def _missing(who: str, error: ModuleNotFoundError) -> Problem:
    return Problem(f"{who} {error.name}", remedy='install it with: pip install "nip-fn[api]"')


def _open_files(highest: int) -> Bounds:
    """Bounds with that many requests in flight, or as many as the process may have connections."""
    # Many systems allow 1,024 descriptors by default, fewer than the requests of a wide forest.
    bounds, (soft, hard) = Bounds(highest=highest), resource.getrlimit(resource.RLIMIT_NOFILE)
    num_files = bounds.highest + OTHER_FILES
    most = num_files if hard == resource.RLIM_INFINITY else min(num_files, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return bounds._replace(highest=max(1, most - OTHER_FILES))


def check_apis(params: HyperParameters) -> None:
    """Refuse an agent whose model no API can serve, or none can train."""
    for agent in params.agents:
        if provider_kind(agent) == "api":
            _check_api(agent, is_trained=params.rl.num_iterations > 0 and not is_frozen(agent))
            if problem := address_problem(agent):
                refuse(problem)


def _check_api(agent: AgentParameters, *, is_trained: bool) -> None:
    address, provider = f"agents.{agent.name}", OPTIONS[agent.model_provider]
    if agent.model_name.startswith("builtin:"):
        problem = Problem(
            f"{agent.model_name} is served by provider local alone",
            f"{address}.model_name",
            f"name a model that {provider} serves",
        )
        refuse(problem)
    if agent.repetition_penalty and provider == "openai" and agent.api_base_url is None:
        problem = Problem(
            "OpenAI's API has no repetition penalty",
            f"{address}.repetition_penalty",
            "leave it out, or name the compatible server that has one (api_base_url)",
        )
        refuse(problem)
    if is_trained and provider != "openai":
        problem = Problem(
            f"{provider} trains no models",
            f"{address}.model_provider",
            f"freeze the agent ({address}.freeze_agent=true), or choose provider "
            "self-hosted, openai, local or dummy",
        )
        refuse(problem)


_MODELS: dict[str, Callable[[WiringContext], Models]] = {
    "api": _api,
    "dummy": _dummy,
    "local": _local,
    "scripted": _scripted,
    "self-hosted": _self_hosted,
}
