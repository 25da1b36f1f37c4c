"""Every parameter that is a float is bounded, and a run with it at either bound is a run."""

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from msgspec import inspect
from returns.pipeline import is_successful

from nip_fn.config.codec import from_dict, merge, nest
from nip_fn.params.run import HyperParameters

from .games import Setup, play

# Both trainers, one after the other, on trees of a few replies.
SMALL: dict[str, Any] = {
    "rl": {"num_iterations": 2, "rollouts_per_iteration": 3},
    "malt": {"num_initial_ei_iterations": 1, "pair_selection_method": "interval"},
    "nip_protocol": {"max_message_rounds": 3},
    "text_rl": {"test_scheme": "last"},
}
REWARDS = (
    "prover_reward",
    "verifier_reward",
    "verifier_incorrect_penalty",
    "verifier_no_guess_reward",
    "verifier_terminated_penalty",
)


def floats(kind: inspect.Type, address: str = "") -> Iterator[tuple[str, inspect.FloatType]]:
    """The address and the type of each float of a record; one of a union is named after a #."""
    match kind:
        case inspect.StructType(fields=fields, tag=tag):
            for field in fields:
                name = f"{address}.{field.name}".lstrip(".") + (f"#{tag}" if tag else "")
                yield from floats(field.type, name)
        case inspect.VarTupleType(item_type=inner):
            yield from floats(inner, f"{address}._default")
        case inspect.UnionType(types=kinds):
            for one in kinds:
                yield from floats(one, address)
        case inspect.Metadata(type=inner):
            yield from floats(inner, address)
        case inspect.FloatType():
            yield address, kind


FLOATS = dict(floats(inspect.type_info(HyperParameters)))
ENDS = [
    (address, end)
    for address, kind in FLOATS.items()
    for end in (
        kind.ge if kind.gt is None else math.nextafter(kind.gt, math.inf),
        kind.le if kind.lt is None else math.nextafter(kind.lt, -math.inf),
    )
]


def table_of(address: str, value: float) -> dict[str, Any]:
    """The configuration that sets that float."""
    address, _, tag = address.partition("#")
    table = nest(address, value)
    return merge(table, nest(f"{address.rpartition('.')[0]}._type", tag)) if tag else table


def test_every_kind_of_float_is_looked_at() -> None:
    assert len(FLOATS) > 30
    assert {"rl.lr", "protocol_common.prover_reward", "agents._default.temperature"} < {*FLOATS}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e308])
def test_what_is_no_number_or_absurd_is_refused_by_its_address(value: float) -> None:
    for address in FLOATS:
        problem = from_dict(table_of(address, value)).failure()
        assert problem.address == address.partition("#")[0].replace("_default", "prover")
        assert repr(value) in problem.problem
        assert problem.remedy or FLOATS[address]


@pytest.mark.parametrize(("address", "end"), ENDS)
def test_a_run_at_the_bound_of_a_parameter_has_finite_metrics(address: str, end: float) -> None:
    method = "threshold" if address == "ei.reward_threshold" else "weighted_sampling"
    table = merge(
        merge(SMALL, {"ei": {"rollout_selection_method": method}}), table_of(address, end)
    )
    params = from_dict(table)
    if is_successful(params):  # others need a second parameter, such as what is loaded from a run
        assert_finite(Setup(params.unwrap(), invalid_rate=0.2))


@pytest.mark.parametrize("signs", list(product((1, -1), repeat=2)))
def test_a_run_with_all_rewards_at_their_bounds_has_finite_metrics(signs: tuple[int, int]) -> None:
    """The sum and the square of rewards of 1e308 are no floats."""
    amounts = {name: 1e6 * signs[index % 2] for index, name in enumerate(REWARDS)}
    params = from_dict(merge(SMALL, {"protocol_common": amounts})).unwrap()
    assert_finite(Setup(params, invalid_rate=0.2))


def assert_finite(setup: Setup) -> None:
    last = play(setup)[-1].state
    assert last.stage.name == "done"
    assert all(math.isfinite(value) for row in last.rows for _, value in row.metrics)
