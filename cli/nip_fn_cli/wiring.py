"""Which adapters a run gets."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from returns.result import Result

from nip_fn.agent_params import AgentParameters, agent_group
from nip_fn.events import Publish
from nip_fn.finetune import Job
from nip_fn.params import HyperParameters
from nip_fn.ports import Publisher, Sampler, Tuned, Tuner
from nip_fn.reply import Completion
from nip_fn.requests import Request
from nip_fn_adapters import dummy
from nip_fn_cli.exits import Exit, die


class Models(NamedTuple):
    """The adapters that stand for the models."""

    sampler: Sampler
    tuner: Tuner
    publisher: Publisher


def wire(params: HyperParameters, run: Path) -> Models:
    """The adapters that the agents ask for, each agent and group at its own; the run's adapters
    live in its folder.
    """
    kinds = {_kind(agent) for agent in params.agents}
    models = {kind: _MODELS[kind](params, run) for kind in sorted(kinds)}
    if len(models) == 1:
        return next(iter(models.values()))
    by_agent = {agent.name: models[_kind(agent)] for agent in params.agents}
    by_group = {agent_group(agent): models[_kind(agent)] for agent in params.agents}

    def sample(request: Request) -> Awaitable[Result[tuple[Completion, ...], str]]:
        return by_agent[request.agent].sampler(request)

    def tune(job: Job) -> Awaitable[Result[Tuned, str]]:
        return by_group[job.group].tuner(job)

    def publish(effect: Publish) -> Awaitable[Result[tuple[float, ...], str]]:
        return by_group[effect.group].publisher(effect)

    return Models(sample, tune, publish)


def _kind(agent: AgentParameters) -> str:
    """Which adapters serve an agent; ends the command where this version has none."""
    if agent.use_dummy_api:
        return "dummy"
    if agent.model_provider not in _MODELS:
        die(
            Exit.USAGE,
            f"agents.{agent.name}.model_provider: {agent.model_provider} is not served by this "
            'version; choose "local", or --provider dummy for agents without a model',
        )
    return agent.model_provider


def _dummy(params: HyperParameters, run: Path) -> Models:
    return Models(dummy.dummy_sampler(params.dummy), dummy.dummy_tuner(), dummy.serve_at_once)


def _local(params: HyperParameters, run: Path) -> Models:
    from nip_fn_adapters.local.publisher import local_publisher
    from nip_fn_adapters.local.sampler import local_sampler
    from nip_fn_adapters.local.tuner import local_tuner

    sampler = local_sampler(run / "adapters")
    return Models(sampler, local_tuner(run), local_publisher(sampler))


_MODELS: dict[str, Callable[[HyperParameters, Path], Models]] = {"dummy": _dummy, "local": _local}
