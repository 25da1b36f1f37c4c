"""Agents that continue from an earlier run: its parameters of them, and an adapter it trained."""

import shutil
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from returns.result import Failure, Result, Success

from nip_fn.config.codec import load_agent, spread, to_dict
from nip_fn.errors import Problem, collect
from nip_fn.params.agent import agent_group
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.registry import PROTOCOLS, agent_names
from nip_fn.training.groups import Adapter, group_of
from nip_fn_adapters.experiments.own_server import OWN_SERVER
from nip_fn_adapters.recording.runs import Run, checkpoint_file, load_run
from nip_fn_adapters.recording.store import below
from nip_fn_adapters.trust import trusts_all


class Loaded(NamedTuple):
    """An agent as it was in an earlier run.

    agent: its name, in both runs.
    adapter: the adapter that it continues from; None for the base model.
    folder: the folder of the earlier run.
    fields: the written form of its parameters, as they are to be from now on.
    """

    agent: str
    adapter: Adapter | None
    folder: Path
    fields: dict[str, Any]


def load_agents(table: dict[str, Any], runs: Path) -> Result[tuple[Loaded, ...], Problem]:
    """The agents of a written configuration that continue from an earlier run.

    Their parameters are those of that run, except those that say where to find it and whether the
    agent is frozen.  Where nothing is to be trained, agents that shared a model group may play with
    different versions of it, each in a group of its own.
    """
    protocol, agents = table.get("interaction_protocol", "nip"), table.get("agents", {})
    if not isinstance(protocol, str) or protocol not in PROTOCOLS:
        # Only the protocol tells the names of the agents.
        return Success(())  # refused while reading, with a better message
    loaded = collect(
        _load(name, fields, runs)
        for name, fields in spread(agents, agent_names(protocol)).items()
        if fields.get("load_checkpoint_and_parameters") is True
    )
    if table.get("rl", {}).get("num_iterations") != 0:
        return loaded
    return loaded.map(lambda agents: tuple(map(_in_own_group, agents)))


def _in_own_group(agent: Loaded) -> Loaded:
    return agent._replace(fields={**agent.fields, "shared_model_group": None})


def with_loaded(table: dict[str, Any], loaded: tuple[Loaded, ...]) -> dict[str, Any]:
    """The written configuration with the parameters of the loaded agents."""
    written = {agent.agent: agent.fields for agent in loaded}
    return {**table, "agents": {**table.get("agents", {}), **written}} if written else table


def first_adapters(
    loaded: tuple[Loaded, ...], params: HyperParameters
) -> Result[tuple[tuple[str, Adapter], ...], Problem]:
    """The adapter that each model group begins with; a failure if its agents disagree."""
    begins: dict[str, Loaded] = {}
    groups = {agent.name: agent_group(agent) for agent in params.agents}
    for agent in loaded:
        first = begins.setdefault(groups[agent.agent], agent)
        if first.adapter != agent.adapter:
            return Failure(
                Problem(
                    f"agents.{first.agent} and agents.{agent.agent} share the model group "
                    f"{groups[agent.agent]!r} and cannot load different adapters",
                    remedy="load the same version for both, or give one of them another "
                    "shared_model_group",
                )
            )
    return Success(
        tuple((group, agent.adapter) for group, agent in sorted(begins.items()) if agent.adapter)
    )


def copy_adapters(names: Iterable[str], earlier: Path, run: Path) -> None:
    """Give the run its own copies of an earlier run's adapters, so that this may be deleted."""
    for name in names:
        target = below(run, "adapters", name)
        # An adapter lies with its run, or with the language-model server that the run started.
        for folder in (earlier, earlier / OWN_SERVER):
            source = below(folder, "adapters", name)
            if source.is_dir() and not target.exists():
                shutil.copytree(source, target)


def load_once(name: str, runs: Path) -> Result[Run, Problem]:
    """The run as `load_run` gives it, derived only once while its recording does not change."""
    return checkpoint_file(Path(name), runs).bind(
        lambda path: _derived(
            path.resolve(), path.stat().st_size, path.stat().st_mtime_ns, trusts_all()
        )
    )


# A card loads two agents of one run in each of its cells, and a long run takes a minute to derive.
@lru_cache(maxsize=8)
def _derived(path: Path, size: int, changed: int, trust: bool) -> Result[Run, Problem]:
    return load_run(path, trust=trust)


def _load(agent: str, fields: dict[str, Any], runs: Path) -> Result[Loaded, Problem]:
    """The agent as it was in the run that its parameters name."""
    address, name = f"agents.{agent}.checkpoint_run_id", fields.get("checkpoint_run_id")
    if not isinstance(name, str):
        return Failure(Problem("no run is given", address, "name the run to load, or its folder"))
    return (
        load_once(name, runs)
        .alt(lambda problem: problem.at(address))
        .bind(lambda run: _loaded_from(run, agent, fields))
    )


def _loaded_from(run: Run, agent: str, fields: dict[str, Any]) -> Result[Loaded, Problem]:
    members = [spec.name for spec in run.params.agents]
    source = fields.get("checkpoint_agent") or agent
    if source not in members:
        problem = f"the run {run.path.parent} has no such agent"
        there = f"its agents are: {', '.join(members)}"
        where = f"agents.{agent}" + (".checkpoint_agent" if source != agent else "")
        return Failure(Problem(problem, where, there))
    lineage = group_of(run.state.groups, members.index(source)).lineage
    recorded = {**to_dict(run.params)["agents"][source], "name": agent}
    if recorded["system_prompt_template"] is None:
        # The text of a template is recorded.  A path alone would have a file read here, and sent.
        recorded["system_prompt_template_path"] = None
    return (
        adapter_version(lineage, fields.get("checkpoint_version", "latest"))
        .alt(lambda problem: problem.at(f"agents.{agent}.checkpoint_version"))
        .map(lambda adapter: Loaded(agent, adapter, run.path.parent, load_agent(fields, recorded)))
    )


def adapter_version(
    lineage: tuple[Adapter, ...], version: object
) -> Result[Adapter | None, Problem]:
    """The adapter of a version: the latest, that of an iteration or name; None for the base model.

    The latest of a lineage in which nothing was trained is the base model, too.
    """
    if version == "base":
        return Success(None)
    if version == "latest":
        return Success(lineage[-1] if lineage else None)
    # A loaded adapter keeps the iteration of the run that trained it, so two may have the same one;
    # the run's own comes later.
    matches = [
        adapter for adapter in lineage if str(version) in (adapter.name, str(adapter.iteration))
    ]
    if matches:
        return Success(matches[-1])
    versions = ", ".join([*(str(adapter.iteration) for adapter in lineage), "latest", "base"])
    return Failure(
        Problem(
            f"no adapter was trained in iteration {version!r}", remedy=f"choose from: {versions}"
        )
    )


def version_name(lineage: tuple[Adapter, ...], adapter: Adapter | None) -> str:
    """The version by which `adapter_version` finds an adapter: its iteration, if that is enough."""
    if adapter is None:
        return "base"
    iteration = str(adapter.iteration)
    is_unique = sum(member.iteration == adapter.iteration for member in lineage) == 1
    return iteration if is_unique or adapter == lineage[-1] else adapter.name
