"""Agents that go on from an earlier run: its parameters of them, and an adapter that it trained."""

import shutil
from pathlib import Path
from typing import Any, NamedTuple

from nip_fn.config.codec import load_agent, spread, to_dict
from nip_fn.params.agent import agent_group
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.registry import PROTOCOLS, agent_names
from nip_fn.run.state import RunState
from nip_fn.training.groups import Adapter, group_of
from nip_fn_adapters.store import CHECKPOINT
from nip_fn_cli.exits import Exit, die
from nip_fn_cli.recordings import read_recording, replay_recording
from nip_fn_cli.serving_child import OWN_SERVER


class Loaded(NamedTuple):
    """What an agent goes on from."""

    agent: str
    adapter: Adapter | None  # None: the base model
    folder: Path  # of the earlier run


def with_loaded(table: dict[str, Any], runs: Path) -> tuple[dict[str, Any], tuple[Loaded, ...]]:
    """The table with the parameters of every agent that is to be loaded, and what it goes on from.

    All its parameters are those of the earlier run, except those that say where to find it, and
    whether it is frozen.
    """
    protocol, agents = table.get("interaction_protocol", "nip"), table.get("agents", {})
    if not isinstance(protocol, str) or protocol not in PROTOCOLS:
        return table, ()  # refused elsewhere, with a better line
    written, loaded = {}, []
    for name, fields in spread(agents, agent_names(protocol)).items():
        if fields.get("load_checkpoint_and_parameters") is True:
            found, state = _find(name, fields, runs)
            recorded = to_dict(state.params)["agents"][name]
            written[name] = load_agent(fields, recorded)
            loaded.append(found)
    return {**table, "agents": {**agents, **written}}, tuple(loaded)


def lineages(
    loaded: tuple[Loaded, ...], params: HyperParameters
) -> tuple[tuple[str, Adapter], ...]:
    """The adapter that each model group begins with; ends the command where agents disagree."""
    begins: dict[str, tuple[str, Adapter | None]] = {}
    groups = {agent.name: agent_group(agent) for agent in params.agents}
    for one in loaded:
        group = groups[one.agent]
        other, adapter = begins.setdefault(group, (one.agent, one.adapter))
        if adapter != one.adapter:
            die(
                Exit.USAGE,
                f"agents.{other} and agents.{one.agent} share the model group {group!r} and "
                "cannot load different adapters",
            )
    return tuple((group, adapter) for group, (_, adapter) in sorted(begins.items()) if adapter)


def copy_adapters(loaded: tuple[Loaded, ...], run: Path) -> None:
    """Give the run its own copies of the adapters, so that it needs the earlier run no more."""
    for one in loaded:
        if one.adapter is None:
            continue
        target = run / "adapters" / one.adapter.name
        # It lies with the run, or with the server of its own that the run had.
        for place in (one.folder, one.folder / OWN_SERVER):
            source = place / "adapters" / one.adapter.name
            if source.is_dir() and not target.exists():
                shutil.copytree(source, target)


def _find(agent: str, fields: dict[str, Any], runs: Path) -> tuple[Loaded, RunState]:
    """What the agent goes on from, and the run that it comes from."""
    where, name = f"agents.{agent}", fields.get("checkpoint_run_id")
    if not isinstance(name, str):
        die(Exit.USAGE, f"{where}.checkpoint_run_id: name the run to load, or its folder")
    folder = Path(name) if (Path(name) / CHECKPOINT).exists() else runs / name
    if not (folder / CHECKPOINT).exists():
        die(Exit.USAGE, f"{where}.checkpoint_run_id: there is no run {name!r} here or in {runs}")
    state = replay_recording(folder / CHECKPOINT, read_recording(folder / CHECKPOINT)).state
    members = [spec.name for spec in state.params.agents]
    if agent not in members:
        die(Exit.USAGE, f"{where}: {folder} has no such agent; it has {', '.join(members)}")
    lineage = group_of(state.groups, members.index(agent)).lineage
    version = fields.get("checkpoint_version", "latest")
    return Loaded(agent, chosen_version(where, lineage, version), folder), state


def chosen_version(where: str, lineage: tuple[Adapter, ...], version: Any) -> Adapter | None:
    """The adapter of a version: the latest, or that of an iteration; None: none was trained."""
    if version == "latest":
        return lineage[-1] if lineage else None
    found = [adapter for adapter in lineage if str(adapter.iteration) == str(version)]
    if not found:
        known = ", ".join(str(adapter.iteration) for adapter in lineage) or "none"
        die(
            Exit.USAGE,
            f"{where}.checkpoint_version: no training in iteration {version!r}; there are "
            f"{known}, and latest",
        )
    return found[-1]
