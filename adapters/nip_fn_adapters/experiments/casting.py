"""Who plays the agents of a test: models of the configuration, agents of earlier runs, scripts."""

from pathlib import Path
from typing import Any, NamedTuple

from nip_fn.config.codec import merge, to_dict
from nip_fn.errors import Problem
from nip_fn.game.protocol import Protocol, Role
from nip_fn.params.run import DEFAULT_AGENT, HyperParameters
from nip_fn.protocols.registry import PROTOCOLS, protocol_of
from nip_fn.training.groups import Adapter
from nip_fn_adapters.experiments.loading import load_once, version_name
from nip_fn_adapters.experiments.outcomes import refuse
from nip_fn_adapters.recording.runs import Run

Cast = dict[str, dict[str, Any]]  # agent -> its parameters, as written

# The fields by which an agent is loaded, as they are for one that is not.
_NOT_LOADED = {
    "load_checkpoint_and_parameters": False,
    "checkpoint_run_id": None,
    "checkpoint_agent": None,
    "shared_model_group": None,
}


class Version(NamedTuple):
    """The agents of a run, after one of its iterations.

    given: as the user names it: RUN, or RUN@ITERATION.
    name: the run in it.
    run: the run.
    iteration: the last one whose training counts; None for the run's last.
    """

    given: str
    name: str
    run: Run
    iteration: int | None

    @property
    def agents(self) -> dict[Role, tuple[str, ...]]:
        """The names of the run's agents by role."""
        specs = protocol_of(self.run.params).agents
        return {
            role: tuple(spec.name for spec in specs if spec.role == role)
            for role in ("prover", "verifier")
        }

    def adapter(self, agent: str) -> Adapter | None:
        """The adapter with which an agent plays in this version; None for the base model."""
        # After the training of an iteration is in the next one; there is none after the last.
        last = self.run.state.iteration
        then = None if self.iteration is None else min(self.iteration + 1, last)
        return self.run.adapter(agent, then)


def version_of(given: Run | Path | str, runs: Path) -> Version:
    """The version that RUN or RUN@ITERATION names; refuses one that does not exist."""
    if isinstance(given, Run):
        folder = given.path.parent
        name = folder.name if folder.parent == runs else str(folder)
        return Version(name, name, given, None)
    given = str(given)
    name, at, iteration = given.rpartition("@")
    if at and not iteration.isdecimal():
        refuse(Problem("the iteration is not a number", given, "as in RUN@3, or just RUN"))
    run = name if at else given
    return Version(given, run, load_once(run, runs).unwrap(), int(iteration) if at else None)


def parts(protocol: str, role: Role) -> tuple[str, ...]:
    """The names of a protocol's agents with that role."""
    made: Protocol = protocol_of(HyperParameters(interaction_protocol=protocol))
    return tuple(spec.name for spec in made.agents if spec.role == role)


def players(protocol: str) -> tuple[str, ...]:
    """The names of a protocol's agents."""
    return (*parts(protocol, "verifier"), *parts(protocol, "prover"))


def is_protocol(name: str) -> bool:
    """True if the protocol is known; one that is not is refused while the parameters are read."""
    return name in PROTOCOLS


def recast(agents: Cast, protocol: str) -> Cast:
    """The agents of a configuration, as far as another protocol has them.

    A prover that the configuration does not know by its name is as the first one that it names.
    """
    if not is_protocol(protocol):
        return agents
    judges, provers = parts(protocol, "verifier"), parts(protocol, "prover")
    first = next((agents[name] for name in ("prover", "prover0") if name in agents), None)
    known = (DEFAULT_AGENT, *judges, *provers)
    own = {name: fields for name, fields in agents.items() if name in known}
    return own if first is None else {**dict.fromkeys(provers, first), **own}


def without_agents(params: HyperParameters, changes: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run with changes to them, but for its agents, which are loaded one by one.

    The agents of the changes are kept.
    """
    return merge({**to_dict(params), "agents": {}}, changes)


def loaded(version: Version, protocol: str, role: Role, *, source: str | None = None) -> Cast:
    """The protocol's agents with that role, as they are in a version of a run.

    An agent that the run has by another name, or not at all, is played by the run's first one with
    that role.

    Args:
        version: The run and the iteration.
        protocol: The protocol that they play.
        role: The role of the agents.
        source: The agent of the run that plays them all, whatever their names.
    """
    known = version.agents[role]
    cast = {}
    for name in parts(protocol, role):
        if source is None and not known:
            problem = f"the run has no {role} that could play {name} of {protocol}"
            refuse(Problem(problem, version.given, "choose other protocols (`protocols`)"))
        own = source or (name if name in known else known[0])
        adapter = version.adapter(own)
        cast[name] = {
            **_NOT_LOADED,
            "load_checkpoint_and_parameters": True,
            "checkpoint_run_id": version.name,
            "checkpoint_version": version_name(version.run.lineage(own), adapter),
            "checkpoint_agent": None if own == name else own,
        }
    return cast


def untrained(cast: Cast) -> Cast:
    """The same agents with the models that they began with."""
    return {name: {**fields, "checkpoint_version": "base"} for name, fields in cast.items()}


def scripted(protocol: str, strategy: str) -> Cast:
    """The protocol's provers, all following a strategy."""
    fields = {**_NOT_LOADED, "model_provider": "scripted", "model_name": strategy}
    return dict.fromkeys(parts(protocol, "prover"), fields)
