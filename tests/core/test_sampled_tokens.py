"""The sampled tokens of a reply: their form, and their way into the tree and its digest."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nip_fn as nip
from nip_fn.game import SampledTokens
from nip_fn.testing import construct_test_params
from nip_fn.trees.attempts import after_attempt, parser
from nip_fn.trees.node import Slot

TOKENS = SampledTokens.of([5, 70_000, 2], [-0.5, -7.25, 0.0])
score = st.floats(-1e4, 0.0, width=32)


@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), score)))
def test_what_is_packed_is_read_again(drawn: list[tuple[int, float]]) -> None:
    ids, scores = [number for number, _ in drawn], [value for _, value in drawn]
    for tokens in (SampledTokens.of(ids, scores), SampledTokens.of(np.array(ids), scores)):
        encoded = msgspec.msgpack.encode(tokens)
        assert len(encoded) <= 8 * len(drawn) + 11
        read = msgspec.msgpack.decode(encoded, type=SampledTokens)
        assert read == tokens
        assert read.ids.tolist() == ids
        assert read.log_probabilities.tolist() == scores


@given(st.lists(st.integers(0, 2**32 - 1)), st.lists(score))
def test_either_may_be_missing_but_both_are_of_one_reply(
    ids: list[int], scores: list[float]
) -> None:
    assert SampledTokens.of(ids).log_probabilities.size == 0
    assert SampledTokens.of(log_probabilities=scores).ids.size == 0
    if ids and scores and len(ids) != len(scores):
        with pytest.raises(ValueError, match="log-probabilities"):
            SampledTokens.of(ids, scores)


@pytest.mark.parametrize(
    ("ids", "scores"), [([-1], [0.0]), ([2**32], [0.0]), ([1], [np.nan]), ([1], [-np.inf])]
)
def test_numbers_that_no_model_gives_are_refused(ids: list[int], scores: list[float]) -> None:
    with pytest.raises(ValueError, match=r"ids from|finite"):
        SampledTokens.of(ids, scores)


def test_the_tree_holds_the_tokens_of_the_attempt_that_counts() -> None:
    protocol = nip.protocol_of(construct_test_params())
    point = nip.make_datapoint("p", "A question?", "a solution", 1)
    episode = nip.game.reset(point, nip.key(1))
    agent = nip.game.movers(protocol, episode)[0].agent
    failed = nip.Completion("", "stop", "m", tokens=SampledTokens.of([2], [-9.0]))
    parse = parser(protocol, episode, agent)
    waiting = after_attempt(parse, 2, Slot(agent), failed)
    assert waiting.said is None
    assert waiting.failed == (failed,)
    spoken = nip.Completion("Hm.", "stop", "m", tokens=TOKENS)
    filled = after_attempt(parse, 2, waiting, spoken)
    assert filled.said is not None
    assert filled.said.tokens == TOKENS


@pytest.mark.parametrize("records", [True, False])
def test_a_request_asks_for_tokens_if_they_are_to_be_recorded(records: bool) -> None:
    table = {
        "rl": {"num_iterations": 0},
        "text_rl": {"test_scheme": "all", "record_tokens": records},
    }
    asked = []

    def sampler(request: nip.run.Request) -> tuple[nip.Completion, ...]:
        asked.append(request.record_tokens)
        return tuple(nip.Completion("Decision: accept", "stop", "m") for _ in request.keys)

    points = tuple(nip.make_datapoint(f"p{i}", "?", f"{i}", i % 2) for i in range(4))
    dataset = nip.game.Dataset("d", points, (), points)
    start = nip.run.started(nip.from_dict(table).unwrap(), dataset)
    list(nip.simulate(start, nip.run.pure_world(dataset, sampler)))
    assert set(asked) == {records}
