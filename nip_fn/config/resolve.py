"""The values that a run's parameters name, looked up once: when the run starts.

A script may redefine a protocol, a trainer, a pair rule or a strategy while a run is under way; the
next run plays by it, and the one under way does not.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from returns.result import Failure, Result

from nip_fn.config.trainers import find_trainer, trainer_of
from nip_fn.errors import Problem
from nip_fn.game.checkers import CHECKER_OF_KIND
from nip_fn.game.datapoint import Kind
from nip_fn.game.protocol import AgentSpec, Protocol
from nip_fn.params.agent import is_scripted
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.registry import find_protocol, protocol_of
from nip_fn.protocols.strategies import Strategy, strategies_for
from nip_fn.training.trainer import Trainer


class Resolved(msgspec.Struct, frozen=True):
    """The values that a run's parameters name.

    protocol: the game.
    trainer: how its agents learn.
    strategies: `[A]` by name, those of the scripts that may play each agent's part.
    """

    protocol: Protocol
    trainer: Trainer[Any]
    strategies: tuple[Mapping[str, Strategy], ...]

    # Functions are equal only to themselves, and are made anew once a cache has dropped them.  The
    # states that hold these values are told apart by their parameters.
    def __eq__(self, other: object) -> bool:
        """True if both are values of the same names."""
        return isinstance(other, Resolved) and self._names() == other._names()

    def _names(self) -> tuple[str, tuple[tuple[str, ...], ...]]:
        return self.protocol.name, tuple(tuple(scripts) for scripts in self.strategies)


def resolve(params: HyperParameters) -> Result[Resolved, Problem]:
    """The values that the parameters name, or the problem of the first name that is unknown.

    An unknown strategy is a problem only once it is to reply: a replay asks no script.
    """
    return find_protocol(params.interaction_protocol).bind(
        lambda _: _resolved(params, protocol_of(params))
    )


def _resolved(params: HyperParameters, protocol: Protocol) -> Result[Resolved, Problem]:
    names = tuple(spec.name for spec in protocol.agents)
    if tuple(agent.name for agent in params.agents) != names:
        # No configuration leads to these parameters.
        return Failure(Problem(f"its agents are not {', '.join(names)}", "agents"))
    strategies = tuple(_strategies(params, *member) for member in enumerate(protocol.agents))
    return find_trainer(params).map(lambda trainer: Resolved(protocol, trainer, strategies))


def _strategies(params: HyperParameters, index: int, spec: AgentSpec) -> Mapping[str, Strategy]:
    """The strategies of the scripts that may play an agent's part."""
    agent = params.agents[index]
    scripts = {script for rival in params.agents for script in rival.opponent_scripts}
    names = {agent.model_name} if is_scripted(agent) else scripts
    strategies = strategies_for(params.dataset, spec.role)
    return {name: strategies[name] for name in sorted(names & strategies.keys())}


def checker_name(params: HyperParameters, solution_kind: Kind) -> str:
    """The name of the checker: that of the parameters, or else the usual one of the kind."""
    return params.dataset_options.checker or CHECKER_OF_KIND[solution_kind]


# Of `HyperParameters()`, which has no agents: the values of a state before its run has started.
DEFAULTS = Resolved(protocol_of(HyperParameters()), trainer_of(HyperParameters()), ())
