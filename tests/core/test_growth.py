from itertools import pairwise

import pytest
from hypothesis import given, settings

from nip_fn.game.datapoint import make_datapoint
from nip_fn.game.episode import reset
from nip_fn.game.protocol import verifier_rounds
from nip_fn.game.reply import Completion, FinishReason
from nip_fn.keys import key
from nip_fn.metrics.stage import leaves
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.nip import PROVER, VERIFIER
from nip_fn.protocols.registry import protocol_of
from nip_fn.run.events import Replied
from nip_fn.training.malt import branching
from nip_fn.trees.grow import (
    Node,
    Path,
    ReplyArrival,
    ReplyRequest,
    Rules,
    insert,
    new_tree,
    pending_requests,
    replies_of,
)

from .games import Setup, ends, make_params, play, setups
from .trees import walk

GAME = reset(make_datapoint("p", "Is it?", "x", 1), key(0))


def rules(params: HyperParameters, attempts: int = 2) -> Rules:
    return Rules(
        protocol=protocol_of(params),
        branching=lambda moves: branching(params, moves),
        attempts=(attempts, attempts),
    )


def said(text: str | None, finish: FinishReason = "stop") -> Completion:
    return Completion(text, finish, "m", prompt_tokens=10, completion_tokens=3)


def with_paths(node: Node, path: Path = ()) -> list[tuple[Path, Node]]:
    below = [
        each
        for rank, child in enumerate(node.children)
        for each in with_paths(child, (*path, rank))
    ]
    return [(path, node), *below]


@settings(max_examples=20)
@given(setups())
def test_a_tree_has_at_most_k_to_the_number_of_rounds_leaves(setup: Setup) -> None:
    params = setup.params
    protocol = protocol_of(params)
    k, rounds = params.malt.num_responses_per_timestep, protocol.max_message_rounds
    if params.malt.simultaneous_branching == "product":
        k **= len(protocol.agents)
    for state in ends(play(setup), "test", "sample"):
        for root in state.forest:
            assert len(leaves(root)) <= (k if state.stage == "sample" else 1) ** rounds


@settings(max_examples=20)
@given(setups())
def test_nothing_is_said_after_the_verifiers_last_turn(setup: Setup) -> None:
    protocol = protocol_of(setup.params)
    last = verifier_rounds(protocol, key(0))[-1]
    for state in ends(play(setup), "test", "sample"):
        for root in state.forest:
            for path, node in with_paths(root):
                assert len(path) <= last + 1
                assert (node.end == "open") == bool(node.children)
                if node.end == "rounds":
                    assert len(path) == last + 1


@settings(max_examples=20)
@given(setups())
def test_open_nodes_have_k_children_or_one_where_only_frozen_agents_move(setup: Setup) -> None:
    malt = setup.params.malt
    for state in ends(play(setup), "sample"):
        early = state.iteration < malt.num_initial_ei_iterations
        branches_once = setup.params.trainer == "ei" or early
        for root in state.forest:
            for node in (each for each in walk(root) if each.children):
                moved = {said.agent for said in node.children[0].turn}
                frozen = all(setup.params.agents[agent].freeze_agent for agent in moved)
                one = branches_once or (frozen and malt.frozen_agents_generate_one_response)
                k = 1 if one else malt.num_responses_per_timestep
                crossed = malt.simultaneous_branching == "product"
                assert len(node.children) == (k ** len(moved) if crossed else k)


@settings(max_examples=20)
@given(setups())
def test_a_child_is_where_its_replies_led(setup: Setup) -> None:
    """Child i is where everyone's i-th reply led, unless replies are crossed."""
    run = play(setup)
    for state in ends(run, "sample"):
        heard = {
            (event.tree, event.path, event.agent, event.index): event.completion
            for before, moment in pairwise(run)
            if isinstance(event := moment.event, Replied)
            and (before.state.iteration, before.state.stage) == (state.iteration, "sample")
        }  # of several attempts, the last
        for index, root in enumerate(state.forest):
            for path, parent in with_paths(root):
                for numbers, node in zip(replies_of(parent), parent.children, strict=True):
                    for said in node.turn:
                        completion = heard[index, path, said.agent, numbers[said.agent]]
                        assert said.raw == (completion.text or "")
                        assert said.model == completion.model
                if setup.params.malt.simultaneous_branching == "joint":
                    for rank, numbers in enumerate(replies_of(parent)):
                        assert set(numbers.values()) == {rank}


TWO = make_params(
    {
        "malt": {"num_responses_per_timestep": 2},
        "nip_protocol": {"max_message_rounds": 3},
    }
)


def test_a_node_asks_for_all_its_replies_at_once_and_opens_with_the_last_of_them() -> None:
    how = rules(TWO)
    root = new_tree(how, GAME)
    assert list(pending_requests(root)) == [ReplyRequest((), VERIFIER, (0, 1), 0)]
    root, asks = insert(how, root, GAME, ReplyArrival((), VERIFIER, 1, 0, said("Why?")))
    assert (asks, root.children) == ((), ())
    assert list(pending_requests(root)) == [ReplyRequest((), VERIFIER, (0,), 0)]
    root, asks = insert(how, root, GAME, ReplyArrival((), VERIFIER, 0, 0, said("Decision: reject")))
    assert asks == (ReplyRequest((1,), PROVER, (0, 1), 0),)
    assert [child.end for child in root.children] == ["decided", "open"]
    assert list(pending_requests(root)) == list(asks)


def test_a_child_opens_without_waiting_for_its_cousins() -> None:
    how = rules(TWO)
    root = new_tree(how, GAME)
    for index in (0, 1):
        root, asks = insert(how, root, GAME, ReplyArrival((), VERIFIER, index, 0, said("Why?")))
    assert asks == (ReplyRequest((0,), PROVER, (0, 1), 0), ReplyRequest((1,), PROVER, (0, 1), 0))
    for index in (0, 1):
        root, asks = insert(how, root, GAME, ReplyArrival((1,), PROVER, index, 0, said("So.")))
    assert asks == (
        ReplyRequest((1, 0), VERIFIER, (0, 1), 0),
        ReplyRequest((1, 1), VERIFIER, (0, 1), 0),
    )
    assert root.children[0].children == ()


def test_an_unusable_reply_is_asked_for_again_until_the_attempts_are_used_up() -> None:
    how = rules(TWO, attempts=3)
    root = new_tree(how, GAME)
    for attempt in (1, 2):
        root, asks = insert(
            how, root, GAME, ReplyArrival((), VERIFIER, 0, attempt - 1, said("", "content_filter"))
        )
        assert asks == (ReplyRequest((), VERIFIER, (0,), attempt),)
        assert set(pending_requests(root)) == {
            ReplyRequest((), VERIFIER, (0,), attempt),
            ReplyRequest((), VERIFIER, (1,), 0),
        }
    root, asks = insert(
        how, root, GAME, ReplyArrival((), VERIFIER, 0, 2, said("Decision: maybe", "length"))
    )
    assert asks == ()
    heard = root.slots[0].said
    assert heard is not None
    assert (heard.error, heard.attempts, heard.raw) == ("invalid_decision", 3, "Decision: maybe")
    assert (heard.messages, heard.decision) == ((), None)
    assert (heard.token_limit, heard.prompt_tokens, heard.completion_tokens) == (True, 30, 9)


def test_a_reply_after_failures_is_a_reply_like_any_other_with_the_cost_of_all() -> None:
    how = rules(TWO, attempts=3)
    root, _ = insert(how, new_tree(how, GAME), GAME, ReplyArrival((), VERIFIER, 0, 0, said(None)))
    root, _ = insert(how, root, GAME, ReplyArrival((), VERIFIER, 0, 1, said("Decision: accept")))
    heard = root.slots[0].said
    assert heard is not None
    assert heard.decision is not None
    assert (heard.error, heard.attempts, heard.completion_tokens) == (None, 2, 6)


def test_slots_that_wait_for_the_same_attempt_are_asked_for_together() -> None:
    how = rules(TWO, attempts=3)
    root = new_tree(how, GAME)
    for index in (1, 0):
        root, _ = insert(how, root, GAME, ReplyArrival((), VERIFIER, index, 0, said(None)))
    assert list(pending_requests(root)) == [ReplyRequest((), VERIFIER, (0, 1), 1)]


@pytest.mark.parametrize(
    ("path", "agent", "index"),
    [((), PROVER, 0), ((), VERIFIER, 2), ((), VERIFIER, -1), ((0,), PROVER, 0), ((-1,), PROVER, 0)],
)
def test_a_reply_that_no_slot_waits_for_is_refused(path: Path, agent: int, index: int) -> None:
    how = rules(TWO)
    with pytest.raises(ValueError, match=r".+"):
        insert(how, new_tree(how, GAME), GAME, ReplyArrival(path, agent, index, 0, said("Why?")))


def test_a_reply_to_a_filled_slot_is_refused() -> None:
    how = rules(TWO)
    root, _ = insert(how, new_tree(how, GAME), GAME, ReplyArrival((), VERIFIER, 0, 0, said("Why?")))
    with pytest.raises(ValueError, match=r".+"):
        insert(how, root, GAME, ReplyArrival((), VERIFIER, 0, 0, said("Why?")))
