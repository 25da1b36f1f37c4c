"""The verdict that provers argue for: fixed to either side, or a coin's; and consultancy."""

from typing import Any

import pytest
from msgspec.structs import replace

import nip_fn as nip
from nip_fn.config.codec import from_dict
from nip_fn.game.protocol import Outcome
from nip_fn.params.run import HyperParameters
from nip_fn.prompts.chat import build_chat
from nip_fn.protocols.registry import protocol_of

from .games import make_params

PROVER, VERIFIER = 0, 1
POINT = nip.make_datapoint("p", "Is it?", "x", 1)
OPEN_SIDES = ["nip", "adp", "mnip"]


def params_of(protocol: str, **common: Any) -> HyperParameters:
    supervised = {"agents": {"_default": {"use_supervisor_message": "all"}}}
    return make_params({"interaction_protocol": protocol, "protocol_common": common}, supervised)


def sides(params: HyperParameters) -> list[int]:
    """The prover's verdict where the datapoint's stance is to reject, and where it is to accept."""
    return [nip.protocol_of(params).stance(PROVER, own) for own in (0, 1)]


def decided(params: HyperParameters, text: str, stance: int) -> tuple[float, ...]:
    """`[A]` the rewards of a right solution's game that is decided like this."""
    decision = nip.game.find_decision(f"Decision: {text}", "accept_reject").unwrap()
    protocol = nip.protocol_of(params)
    nobody = (False,) * len(protocol.agents)
    return protocol.rewards(Outcome("decided", 1, stance, decision, True, nobody))


def told(params: HyperParameters, agent: int, stance: int) -> str:
    point = replace(POINT, stance=stance)
    episode = nip.game.reset(point, nip.key(0))
    return "\n".join(
        message.content
        for message in build_chat(params, protocol_of(params), point, episode, agent)
    )


@pytest.mark.parametrize("protocol", OPEN_SIDES)
def test_a_stance_is_fixed_to_either_side_or_a_coin_s(protocol: str) -> None:
    assert sides(params_of(protocol)) == [1, 1]
    assert sides(params_of(protocol, prover_stance="accept")) == [1, 1]
    assert sides(params_of(protocol, prover_stance="reject")) == [0, 0]
    assert sides(params_of(protocol, prover_stance="random")) == [0, 1]
    assert sides(params_of(protocol, randomize_prover_stance=True)) == [0, 1]


def test_the_sides_of_a_debate_stay_as_they_are() -> None:
    for stance in ("accept", "reject", "random"):
        params = params_of("debate", prover_stance=stance)
        protocol = nip.protocol_of(params)
        assert [protocol.stance(agent, own) for agent in (0, 1) for own in (0, 1)] == [0, 0, 1, 1]


@pytest.mark.parametrize("protocol", OPEN_SIDES)
def test_a_prover_for_rejection_is_told_so_paid_for_it_and_known_for_it(protocol: str) -> None:
    params = params_of(protocol, prover_stance="reject")
    assert decided(params, "reject", 1)[PROVER] == 1.0
    assert decided(params, "accept", 1)[PROVER] == 0.0
    verifier = len(params.agents) - 1
    assert "Yours is: reject the code" in told(params, PROVER, 1)
    assert "argue that the code is wrong" in told(params, verifier, 1)
    assert "argue that the code is right" not in told(params, verifier, 1)


def test_a_stance_that_is_fixed_and_drawn_is_refused() -> None:
    common = {"prover_stance": "reject", "randomize_prover_stance": True}
    problem = from_dict({"protocol_common": common}).failure()
    assert problem.address == "protocol_common.prover_stance"
    from_dict({"protocol_common": {**common, "prover_stance": "random"}}).unwrap()


# -------------------------------------------------------------------------------------- consultancy


@pytest.mark.parametrize("verifier_first", [True, False])
def test_consultancy_is_nip_with_sides_by_a_coin(verifier_first: bool) -> None:
    common = {"verifier_first": verifier_first, "prover_stance": "accept"}
    nip_params, params = (params_of(name, **common) for name in ("nip", "consultancy"))
    assert sides(params) == [0, 1]
    one, other = nip.protocol_of(params), nip.protocol_of(nip_params)
    rounds = range(other.max_message_rounds)
    assert one.max_message_rounds == other.max_message_rounds
    assert [one.schedule(r, nip.key(0)) for r in rounds] == [
        other.schedule(r, nip.key(0)) for r in rounds
    ]


def test_a_consultant_is_paid_when_the_judge_decides_for_its_side() -> None:
    params = params_of("consultancy")
    assert [decided(params, text, 1)[PROVER] for text in ("accept", "reject")] == [1.0, 0.0]
    assert [decided(params, text, 0)[PROVER] for text in ("accept", "reject")] == [0.0, 1.0]
    assert [decided(params, text, 0)[VERIFIER] for text in ("accept", "reject")] == [1.0, -1.0]


def test_the_consultant_is_told_its_side_and_the_judge_only_that_a_coin_decided() -> None:
    params = make_params({"interaction_protocol": "consultancy"})
    assert told(params, VERIFIER, 0) == told(params, VERIFIER, 1)
    for stance, side in ((0, "reject"), (1, "accept")):
        assert f": {side}" in told(params, PROVER, stance)
    assert "A coin was tossed" in told(params, VERIFIER, 0)
    assert "told to argue that the code is" not in told(params, VERIFIER, 0)
