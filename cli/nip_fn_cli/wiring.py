"""Which adapters a run gets."""

import resource
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from returns.result import Failure, Result

from nip_fn.config.hosting import is_hosted
from nip_fn.game.reply import Completion
from nip_fn.params.agent import AgentParameters, agent_group
from nip_fn.params.run import HyperParameters
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
from nip_fn.training.jobs import Job
from nip_fn_adapters import dummy
from nip_fn_adapters.api.pace import Bounds
from nip_fn_cli.exits import Exit, die, say

T = TypeVar("T")

OTHER_FILES = 128  # that a process may have open besides its connections to servers


class Models(NamedTuple):
    """The adapters that stand for the models."""

    sampler: Sampler
    tuner: Tuner
    publisher: Publisher
    drain: Callable[[], None] = nothing_to_drain  # see `World`
    relay: "ProgressForwarder | None" = None  # by which tuners tell how far they are


class ProgressForwarder:
    """Passes on how far trainings are, from when there is somebody to tell."""

    def __init__(self) -> None:
        """Nobody is told yet."""
        self.follow: Follow | None = None

    def __call__(self, job: str, progress: Progress) -> None:
        """A `Follow` for tuners."""
        if self.follow is not None:
            self.follow(job, progress)


def wire(params: HyperParameters, run: Path) -> Models:
    """The adapters that the agents ask for, each agent and group at its own; the run's adapters
    live in its folder.  Ends the command where a key is missing.
    """
    kinds, relay = {kind_of(agent) for agent in params.agents}, ProgressForwarder()
    models = {kind: _MODELS[kind](params, run, relay) for kind in sorted(kinds)}
    if len(models) == 1:
        return next(iter(models.values()))._replace(relay=relay)
    by_agent = {agent.name: models[kind_of(agent)] for agent in params.agents}
    by_group = {agent_group(agent): models[kind_of(agent)] for agent in params.agents}

    def sample(request: Request) -> Awaitable[Result[tuple[Completion | Unanswered, ...], str]]:
        return by_agent[request.agent].sampler(request)

    def tune(job: Job) -> Awaitable[Result[Tuned, str]]:
        return by_group[job.group].tuner(job)

    def publish(effect: Publish) -> Awaitable[Result[Served, str]]:
        return by_group[effect.group].publisher(effect)

    def drain() -> None:
        for one in models.values():
            one.drain()

    return Models(sample, tune, publish, drain, relay)


def kind_of(agent: AgentParameters) -> str:
    """Which adapters serve an agent."""
    if agent.use_dummy_api:
        return "dummy"
    if is_hosted(agent):
        return "self-hosted"
    return "local" if agent.model_provider == "local" else "api"


def _dummy(params: HyperParameters, run: Path, relay: ProgressForwarder) -> Models:
    return Models(dummy.dummy_sampler(params.dummy), dummy.dummy_tuner(), dummy.serve_at_once)


def _local(params: HyperParameters, run: Path, relay: ProgressForwarder) -> Models:
    from nip_fn_adapters.local.publisher import local_publisher
    from nip_fn_adapters.local.sampler import local_sampler
    from nip_fn_adapters.local.tuner import local_tuner

    sampler = local_sampler(run / "adapters")
    return Models(sampler, local_tuner(run, follow=relay), local_publisher(sampler))


def _self_hosted(params: HyperParameters, run: Path, relay: ProgressForwarder) -> Models:
    try:
        from nip_fn_adapters.api.endpoints import environment
        from nip_fn_adapters.api.sampler import ClientSettings
        from nip_fn_adapters.selfhosted.client import Timeouts
        from nip_fn_adapters.selfhosted.host import hosts_of, of_groups
        from nip_fn_adapters.selfhosted.publisher import hosted_publisher
        from nip_fn_adapters.selfhosted.sampler import Assignment, HostedSampler
        from nip_fn_adapters.selfhosted.tuner import hosted_tuner
    except ModuleNotFoundError as error:
        die(Exit.USAGE, f"language-model servers need {error.name}: install nip-fn[api]")
    own = params.text_rl
    timeouts = Timeouts(
        poll=min(own.fine_tune_poll_seconds, Timeouts().poll),
        limit=own.fine_tune_limit_hours * 3600,
    )
    hosts = _or_die(hosts_of(params, run, environment(), timeouts=timeouts, tell=say))
    groups = of_groups(params, hosts)
    manners = ClientSettings(
        bounds=_open_files(own.max_requests_in_flight),
        timeout=own.request_timeout_seconds,
        tell=say,
    )
    agents = {agent.name: agent for agent in params.agents}
    assignments = {name: Assignment(agents[name], host) for name, host in hosts.items()}
    sampler = HostedSampler(assignments, manners)
    tuner = hosted_tuner(groups, follow=relay)
    return Models(sampler, tuner, hosted_publisher(groups), sampler.drain)


def _api(params: HyperParameters, run: Path, relay: ProgressForwarder) -> Models:
    try:
        from nip_fn_adapters.api.batches import Times, batch_sampler
        from nip_fn_adapters.api.endpoints import environment
        from nip_fn_adapters.api.publisher import api_publisher
        from nip_fn_adapters.api.sampler import ClientSettings, api_sampler, served_by
        from nip_fn_adapters.api.tuner import Timeouts, api_tuner, trainings
    except ModuleNotFoundError as error:
        die(Exit.USAGE, f"models behind an API need {error.name}: install nip-fn[api]")
    agents = [agent for agent in params.agents if kind_of(agent) == "api"]
    for agent in agents:
        _check_api(agent, is_trained=params.rl.num_iterations > 0 and not agent.freeze_agent)
    variables = environment()
    served = {agent.name: _or_die(served_by(agent, variables)) for agent in agents}
    groups = _or_die(trainings(params, variables))
    wandb_project = variables.get("WANDB_OPENAI_FINETUNE_PROJECT")
    own, poll = params.text_rl, params.text_rl.fine_tune_poll_seconds
    bounds = _open_files(own.max_requests_in_flight)
    manners = ClientSettings(tell=say, bounds=bounds, timeout=own.request_timeout_seconds)
    patience = Timeouts(poll=poll, limit=own.fine_tune_limit_hours * 3600)
    batched = {agent.use_batch_api for agent in agents}
    if len(batched) > 1:
        die(Exit.USAGE, "agents.*.use_batch_api: all agents at an API, or none")
    sampler = (
        batch_sampler(run, served, manners=manners, times=Times(poll=poll))
        if batched == {True}
        else api_sampler(served, manners)
    )
    tuner = api_tuner(run, groups, patience=patience, wandb_project=wandb_project, tell=say)
    return Models(sampler, tuner, api_publisher(groups, tell=say), sampler.drain)


def _open_files(highest: int) -> Bounds:
    """That many requests in flight, or as many as the system lets this process have connections."""
    bounds, (soft, hard) = Bounds(highest=highest), resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = bounds.highest + OTHER_FILES
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return bounds._replace(highest=max(1, most - OTHER_FILES))


def _check_api(agent: AgentParameters, *, is_trained: bool) -> None:
    """End the command where an agent's model cannot be had from an API, or not be trained there."""
    where, provider = f"agents.{agent.name}", agent.model_provider
    if agent.model_name.startswith("builtin:"):
        die(
            Exit.USAGE,
            f"{where}.model_name: {agent.model_name} is served by provider local alone; name a "
            f"model that {provider} serves, as in --model NAME",
        )
    if is_trained and provider != "OpenAI":
        die(
            Exit.USAGE,
            f"{where}.model_provider: {provider} trains no models; freeze the agent (--set "
            f"{where}.freeze_agent=true), or choose --provider self-hosted, openai, local or dummy",
        )


def _or_die(result: Result[T, str]) -> T:
    if isinstance(result, Failure):
        die(Exit.USAGE, result.failure())
    return result.unwrap()


_MODELS: dict[str, Callable[[HyperParameters, Path, ProgressForwarder], Models]] = {
    "api": _api,
    "dummy": _dummy,
    "local": _local,
    "self-hosted": _self_hosted,
}
