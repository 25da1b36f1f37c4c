"""No parameter is accepted in silence: it acts, is refused, or is told of."""

from collections.abc import Iterable
from typing import Any

import pytest

from nip_fn.config.codec import from_dict, merge, nest
from nip_fn.config.presets import with_preset
from nip_fn.config.unused import unused

from .test_agent_fields import asked
from .walk import PROVIDERS, RESOLVED, Found, values, walk, written

NAMES = sorted(PROVIDERS)


def silent(found: Iterable[Found]) -> list[Found]:
    """What was accepted and did nothing, except where another value of the parameter does."""
    found = list(found)
    acting = {one.address for one in found if one.outcome == "acts" and one.address in RESOLVED}
    return [one for one in found if one.outcome == "nothing" and one.address not in acting]


# Every provider is walked with parameters of its own, so that all of them are tried at some one.
@pytest.mark.parametrize("provider", NAMES)
def test_no_parameter_is_accepted_in_silence(provider: str) -> None:
    place = NAMES.index(provider)
    assert silent(walk(provider, written()[place :: 3 * len(NAMES)])) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("provider", NAMES)
def test_none_is_accepted_in_silence_by_any_provider(provider: str) -> None:
    found = walk(provider, written())
    assert silent(found) == []
    assert {one.outcome for one in found} >= {"acts", "refused", "told"}


def lines(*tables: dict[str, Any], given: dict[str, Any]) -> list[str]:
    """The lines that tell of what is without effect in each of the runs."""
    runs = [from_dict(with_preset(merge(given, table))).unwrap() for table in tables]
    return [str(one) for one in unused(given, runs)]


def test_what_no_run_uses_is_told_with_the_reason() -> None:
    given = nest("nip_protocol.max_message_rounds", 5)
    nip, alone = ({"interaction_protocol": name} for name in ("nip", "solo_verifier"))
    assert lines(nip, given=given) == lines(nip, alone, given=given) == []
    assert lines(alone, given=given) == [
        "without effect, since the protocol is solo_verifier: nip_protocol.max_message_rounds"
    ]


def test_what_is_a_default_is_not_told() -> None:
    assert lines({}, given={"agents": {"_default": {"checkpoint_version": "latest"}}}) == []
    (line,) = lines({}, given={"agents": {"prover": {"checkpoint_version": "0"}}})
    assert line == "without effect, since nothing is loaded: agents.prover.checkpoint_version"


def test_a_field_that_all_agents_share_is_told_if_none_of_them_uses_it() -> None:
    shared = {"agents": {"_default": {"model_name": "m", "lora_rank": 8}}}
    frozen = {"freeze_agent": True}
    one = {"agents": {"prover": frozen}}
    both = {"agents": {"prover": frozen, "verifier": frozen}}
    assert lines(one, given=shared) == []
    (line,) = lines(both, given=shared)
    assert line == "without effect, since it is frozen: agents._default.lora_rank"


@pytest.mark.parametrize("provider", ["local", "dummy", "scripted"])
def test_further_fields_are_told_of_where_no_api_is_asked(provider: str) -> None:
    shared = {"model_provider": provider, "extra_request_fields": {"reasoning_effort": "low"}}
    if provider == "scripted":
        shared["model_name"] = "honest"
    found = lines({}, given={"dataset": "builtin:tea", "agents": {"_default": shared}})
    told_of = [line for line in found if "extra_request_fields" in line]
    assert [line.rpartition(" ")[2] for line in told_of] == [
        "agents._default.extra_request_fields.reasoning_effort"
    ]


def test_the_four_rules_of_the_supervisor_are_four() -> None:
    rules = ("none", "all", "first", "all_but_first")
    opening, answer = (
        [asked(agent, use_supervisor_message=rule).chat[-1].name for rule in rules]
        for agent in ("verifier", "prover")
    )
    assert opening == [None, "Supervisor", "Supervisor", None]
    assert answer == ["Verifier", "Supervisor", "Verifier", "Supervisor"]


def test_values_of_every_type_are_tried() -> None:
    assert all(list(values(address)) for address in written())
