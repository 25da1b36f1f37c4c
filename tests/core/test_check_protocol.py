"""Every built-in protocol holds every law, and no law can be broken unseen."""

from collections.abc import Callable
from itertools import count
from math import inf
from typing import Any

import numpy as np
import pytest

from nip_fn.game import episode
from nip_fn.game.protocol import AgentSpec, Move, Protocol, Status
from nip_fn.keys import Key
from nip_fn.params.protocol import CommonProtocolParameters
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.build import in_turn, make_protocol
from nip_fn.protocols.debate import debate
from nip_fn.protocols.nip import nip
from nip_fn.protocols.pvg import pvg
from nip_fn.protocols.registry import PROTOCOLS, MakeProtocol
from nip_fn.testing import laws
from nip_fn.testing.check import GAME_LAWS, LAWS, ProtocolError, check_protocol

PARAMS = HyperParameters()
PROVER0, PROVER1, VERIFIER = 0, 1, 2  # of debate


def broken(make: MakeProtocol, params: HyperParameters | None = PARAMS) -> list[str]:
    """The violations of a protocol, a few games long."""
    with pytest.raises(ProtocolError) as raised:
        check_protocol(make, params, num_games=12)
    return str(raised.value).splitlines()


def mutant(make: MakeProtocol, **fields: Any) -> MakeProtocol:
    return lambda params: make(params)._replace(**fields)


def with_agent(make: MakeProtocol, agent: int, **fields: Any) -> MakeProtocol:
    def changed(params: HyperParameters) -> Protocol:
        protocol = make(params)
        agents = list(protocol.agents)
        agents[agent] = agents[agent]._replace(**fields)
        return protocol._replace(agents=tuple(agents))

    return changed


def says(*turns: tuple[Move, ...]) -> Callable[[int, Key], tuple[Move, ...]]:
    """These turns again and again."""
    return lambda round, key: turns[round % len(turns)]


def headed(first: str, second: str) -> MakeProtocol:
    """A debate whose verifier begins its two parts with these."""
    return with_agent(debate, VERIFIER, headers=((0, first), (1, second)))


def impure(kind: str) -> MakeProtocol:
    """A debate that remembers how often it was asked."""
    asked = count()
    calm, wild = ((Move(VERIFIER, (0, 1)),), (Move(VERIFIER, (1, 0)),))

    def schedule(round: int, key: Key) -> tuple[Move, ...]:
        provers = (Move(PROVER0, (0,)), Move(PROVER1, (1,)))
        return provers if round % 2 else (calm, wild)[next(asked) % 2]

    def order(agent: int, round: int, key: Key) -> tuple[int, ...]:
        return ((0, 1), (1, 0))[next(asked) % 2]

    changed: dict[str, Any] = {"schedule": schedule, "channel_order": order}
    return mutant(debate, **{kind: changed[kind]})


def paid(change: Callable[[tuple[float, ...]], tuple[Any, ...]]) -> MakeProtocol:
    """A debate with other rewards."""

    def changed(params: HyperParameters) -> Protocol:
        protocol = debate(params)
        return protocol._replace(rewards=lambda outcome: change(protocol.rewards(outcome)))

    return changed


ASKS, ANSWERS = (Move(VERIFIER, (0, 1)),), (Move(PROVER0, (0,)), Move(PROVER1, (1,)))
IDLE: tuple[Move, ...] = ()
SEEN = ((True, True),) * 3
NUMPY_0: Any = np.int64(0)
memory = count()

# The law, what the message says, the protocol that breaks it.
MUTANTS: list[tuple[str, str, MakeProtocol]] = [
    ("fields are immutable", "tuples, not lists", mutant(debate, channels=["a", "b"])),
    ("names are unique", "there is 'prover0' already", with_agent(debate, PROVER1, name="prover0")),
    ("names are unique", "'prover.0' cannot stand", with_agent(debate, PROVER0, name="prover.0")),
    ("names are unique", "protocol 0: it has no name", mutant(debate, name="")),
    ("names are unique", "channel 1: there is 'x' already", mutant(debate, channels=("x", "x"))),
    ("verifiers decide together", "none of 0", mutant(debate, agents=(), visibility=())),
    ("verifiers decide together", "1 of 2", with_agent(debate, PROVER0, role="verifier")),
    ("verifiers decide together", "none of 3", with_agent(debate, VERIFIER, role="prover")),
    (
        "answers are written before they are judged",
        "2 answers at once",
        mutant(debate, schedule=says(tuple(m._replace(answers=True) for m in ANSWERS), ASKS)),
    ),
    (
        "answers are written before they are judged",
        "is no prover",
        mutant(debate, schedule=says((Move(VERIFIER, (0, 1), True),), ANSWERS)),
    ),
    (
        "answers are written before they are judged",
        "decisions count from 0 on",
        mutant(pvg, min_message_rounds=1),
    ),
    ("visibility is a table", "3 rows", mutant(debate, visibility=SEEN[:2])),
    ("visibility is a table", "[1, 1, 1]", mutant(debate, visibility=((True,),) * 3)),
    ("stances are verdicts", "agent 'prover0'", mutant(debate, stance=lambda agent, side: 2)),
    ("headers tell channels apart", "channel 'prover1_channel'", headed("To Expert_1:", "")),
    ("headers tell channels apart", "'To expert 1'", headed("To expert 1", "To Expert_12:")),
    (
        "agents speak where they see",
        "no agent 3",
        mutant(debate, schedule=says(ASKS, (Move(3, (0,)),))),
    ),
    (
        "agents speak where they see",
        "no channel 2",
        mutant(debate, schedule=says(ASKS, (Move(0, (2,)),))),
    ),
    (
        "agents speak where they see",
        "in no channel",
        mutant(debate, schedule=says(ASKS, (Move(0, ()),))),
    ),
    (
        "agents speak where they see",
        "round 1, agent 'prover1', channel 'prover1_channel'",
        mutant(debate, visibility=((True, True), (True, False), (True, True))),
    ),
    (
        "nobody speaks over another",
        "round 1, channel 'prover0_channel': 2 messages",
        mutant(debate, schedule=says(ASKS, (Move(PROVER0, (0,)), Move(PROVER1, (0,))))),
    ),
    (
        "nobody speaks over another",
        "round 1, agent 'prover0': it moves 2 times",
        mutant(debate, schedule=says(ASKS, (Move(PROVER0, (0,)), Move(PROVER0, (1,))))),
    ),
    (
        "somebody speaks in every round",
        "round 1",
        mutant(debate, schedule=says(ASKS, IDLE, ANSWERS)),
    ),
    ("every agent speaks", "agent 'prover1'", mutant(debate, schedule=says(ASKS, ANSWERS[:1]))),
    ("every agent speaks", "agent 'prover0'", mutant(debate, max_message_rounds=2)),
    ("the verifier can decide", "rounds () of 8", mutant(debate, schedule=says(ANSWERS))),
    ("the verifier can decide", "count from 8 on", mutant(debate, min_message_rounds=9)),
    ("chance comes from the key", "round 0: the schedule", impure("schedule")),
    ("chance comes from the key", "the channel order", impure("channel_order")),
    ("channel orders are complete", "it reads (0,)", mutant(debate, channel_order=lambda *_: (0,))),
    (
        "channel orders are complete",
        "(0, 1, 0)",
        mutant(debate, channel_order=lambda *_: (0, 1, 0)),
    ),
    (
        "channel orders are complete",
        "(0, 1, 2)",
        mutant(debate, channel_order=lambda *_: (0, 1, 2)),
    ),
    ("games end", "it is open after 1 of 8", mutant(debate, schedule=says(ASKS, IDLE, ANSWERS))),
    ("rewards are finite", "3 agents get", paid(lambda rewards: rewards[:2])),
    ("rewards are finite", "nan", paid(lambda rewards: (*rewards[:2], float("nan")))),
    ("agents hear what they see", "does not hear", mutant(debate, channel_order=lambda *_: (0,))),
    ("agents hear what they see", "too much", mutant(debate, channel_order=lambda *_: (0, 1, 0))),
    ("games can be replayed", "let `rewards`", paid(lambda r: (r[0], r[1], r[2] + next(memory)))),
    ("games can be recorded", "float64", paid(lambda r: (*r[:2], np.float64(r[2])))),
    (
        "games can be recorded",
        "an episode",
        mutant(debate, schedule=says(ASKS, (Move(PROVER0, (NUMPY_0,)), ANSWERS[1]))),
    ),
    ("it can be made and asked", "ZeroDivision", mutant(debate, schedule=lambda *_: 1 // 0)),
    ("games can be played", "ZeroDivisionError", mutant(debate, rewards=lambda outcome: 1 / 0)),
]


@pytest.mark.parametrize("num_games", [12, pytest.param(100, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("make", PROTOCOLS.values(), ids=PROTOCOLS)
def test_every_built_in_protocol_holds_every_law(make: MakeProtocol, num_games: int) -> None:
    check_protocol(make, num_games=num_games)


@pytest.mark.parametrize(("law", "says", "make"), MUTANTS)
def test_no_law_can_be_broken_unseen(law: str, says: str, make: MakeProtocol) -> None:
    """And the message names the protocol and the law, one line for each violation."""
    lines = broken(make)
    assert any(f": {law}: " in line and says in line for line in lines), lines
    assert all(line.count(": ") >= 3 and "; " in line for line in lines)


def test_every_law_is_broken_by_a_mutant() -> None:
    names = {law.__name__.replace("_", " ") for law in (*LAWS, *GAME_LAWS)}
    of_the_engine = {"the end is final", "the four ends are told apart"}
    assert names - {law for law, _, _ in MUTANTS} == of_the_engine


def test_a_game_that_goes_on_after_its_end_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laws, "movers", lambda protocol, episode: ASKS)
    assert all("the end is final" in line for line in broken(nip))


@pytest.mark.parametrize("status", ["decided", "truncated", "aborted", "open"])
def test_an_end_that_is_taken_for_another_is_noticed(
    status: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episode, "_end", lambda protocol, key, round, *_: status)
    assert any("the four ends are told apart" in line for line in broken(nip))


def test_every_violation_is_listed() -> None:
    make = mutant(headed("To: ", "To: "), name="", stance=lambda agent, side: agent)
    lines = broken(make)
    assert [line.split(": ")[1] for line in lines[:4]] == [
        "names are unique",
        "stances are verdicts",
        "headers tell channels apart",
        "headers tell channels apart",
    ]
    assert len(lines) == len(set(lines)) > 4  # and what follows from them in play


def test_the_parameters_that_break_a_law_are_named() -> None:
    def generous(params: HyperParameters) -> Protocol:
        protocol = nip(params)
        shared = params.protocol_common.shared_reward
        return protocol._replace(rewards=lambda _: (inf, inf)) if shared else protocol

    (line,) = broken(generous, None)
    assert "(verifier_no_guess_reward = -0.25, shared_reward = True)" in line
    check_protocol(generous, PARAMS, num_games=20)


def test_the_same_seed_finds_the_same() -> None:
    make = mutant(nip, rewards=lambda outcome: (inf, 0.0))
    assert broken(make) == broken(make)


@pytest.mark.parametrize("shared", [False, True])
def test_provers_may_move_with_the_verifier_in_any_round(shared: bool) -> None:
    """In its last round, too, where an invalid reply is penalised but breaks nothing off."""

    def together(params: HyperParameters) -> Protocol:
        return make_protocol(
            common=params.protocol_common,
            name="together",
            agents=(
                AgentSpec("prover", "prover", "Expert"),
                AgentSpec("verifier", "verifier", "Verifier"),
            ),
            channels=("answers", "questions"),
            visibility=((True, True), (True, True)),
            schedule=in_turn((Move(0, (0,)), Move(1, (1,)))),
            max_message_rounds=3,
        )

    common = CommonProtocolParameters(
        prover_invalid_response_penalty=-2.0, verifier_no_guess_reward=0.5, shared_reward=shared
    )
    check_protocol(together, HyperParameters(protocol_common=common))
