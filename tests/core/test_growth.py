import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_fn.game.datapoint import make_datapoint
from nip_fn.game.episode import reset
from nip_fn.game.reply import Completion, FinishReason
from nip_fn.keys import key
from nip_fn.protocols.nip import PROVER, VERIFIER
from nip_fn.protocols.registry import protocol_of
from nip_fn.run.forest import Forest
from nip_fn.run.growth import finish_tree
from nip_fn.trees.grow import Rules, insert, new_tree
from nip_fn.trees.node import GameTree, Path, ReplyArrival, ReplyRequest, pending_requests
from nip_fn.trees.tree import flatten

from .games import make_params

POINT = make_datapoint("p", "Is it?", "x", 1)
GAME = reset(POINT, key(0))
THREE_ROUNDS = protocol_of(make_params({"nip_protocol": {"max_message_rounds": 3}}))


def rules(attempts: int = 2) -> Rules:
    """Two replies at every node."""
    return Rules(THREE_ROUNDS, 2, attempts)


def said(text: str | None, finish: FinishReason = "stop") -> Completion:
    return Completion(text, finish, "m", prompt_tokens=10, completion_tokens=3)


def test_a_node_asks_for_all_its_replies_at_once_and_opens_with_the_last_of_them() -> None:
    how = rules()
    root = new_tree(how, GAME)
    assert list(pending_requests(root)) == [ReplyRequest((), VERIFIER, (0, 1), 0)]
    root, asks = insert(how, root, GAME, ReplyArrival((), VERIFIER, 1, 0, said("Why?")))
    assert (asks, root.children) == ((), ())
    assert list(pending_requests(root)) == [ReplyRequest((), VERIFIER, (0,), 0)]
    root, asks = insert(how, root, GAME, ReplyArrival((), VERIFIER, 0, 0, said("Decision: reject")))
    assert asks == (ReplyRequest((1,), PROVER, (0, 1), 0),)
    assert [child.status for child in root.children] == ["decided", "open"]
    assert list(pending_requests(root)) == list(asks)


def test_a_child_opens_without_waiting_for_its_cousins() -> None:
    how = rules()
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


@pytest.mark.parametrize("reason", ["prompt_filtered", "prompt_too_long"])
def test_a_prompt_that_is_refused_is_not_asked_again(reason: FinishReason) -> None:
    how = rules(attempts=3)
    root, asks = insert(
        how, new_tree(how, GAME), GAME, ReplyArrival((), VERIFIER, 0, 0, said("", reason))
    )
    assert asks == ()
    heard = root.slots[0].said
    assert heard is not None
    assert (heard.error, heard.attempts) == (reason, 1)


def test_an_unusable_reply_is_asked_for_again_until_the_attempts_are_used_up() -> None:
    how = rules(attempts=3)
    root = new_tree(how, GAME)
    verdict = said("Decision: reject")
    root, _ = insert(how, root, GAME, ReplyArrival((), VERIFIER, 1, 0, verdict))
    for attempt in (1, 2):
        root, asks = insert(
            how, root, GAME, ReplyArrival((), VERIFIER, 0, attempt - 1, said("", "content_filter"))
        )
        assert asks == (ReplyRequest((), VERIFIER, (0,), attempt),) == (*pending_requests(root),)
    root, asks = insert(
        how, root, GAME, ReplyArrival((), VERIFIER, 0, 2, said("Decision: maybe", "length"))
    )
    assert {ask.path for ask in asks} == {(0,)}  # the game goes on
    heard = root.slots[0].said
    assert heard is not None
    assert (heard.error, heard.attempts, heard.raw) == ("invalid_decision", 3, "Decision: maybe")
    assert (heard.messages, heard.decision) == ((), None)
    assert (heard.token_limit, heard.prompt_tokens, heard.completion_tokens) == (True, 30, 9)


@pytest.mark.parametrize(
    ("completions", "asked"),
    [
        ([("", "length"), (None, "length")], 2),
        ([(" ", "stop"), ("", "length"), ("", "length")], 3),
        ([("", "length"), ("", "stop"), ("", "length"), ("", "stop")], 5),
        ([("", "stop")] * 4, 5),
    ],
)
def test_two_replies_in_a_row_that_are_empty_at_the_limit_are_the_last(
    completions: list[tuple[str | None, FinishReason]], asked: int
) -> None:
    how = rules(attempts=9)
    root = new_tree(how, GAME)
    for attempt, (text, finish) in enumerate(completions):
        arrival = ReplyArrival((), VERIFIER, 0, attempt, said(text, finish))
        root, _ = insert(how, root, GAME, arrival)
    heard = root.slots[0].said
    assert (heard is not None) == (asked == len(completions))
    if heard is not None:
        assert (heard.error, heard.attempts, heard.token_limit) == ("no_content", asked, True)
        assert len(root.slots[0].failed) == asked - 1


def test_a_reply_after_failures_is_a_reply_like_any_other_with_the_cost_of_all() -> None:
    how = rules(attempts=3)
    root, _ = insert(how, new_tree(how, GAME), GAME, ReplyArrival((), VERIFIER, 0, 0, said(None)))
    root, _ = insert(how, root, GAME, ReplyArrival((), VERIFIER, 0, 1, said("Decision: accept")))
    heard = root.slots[0].said
    assert heard is not None
    assert heard.decision is not None
    assert (heard.error, heard.attempts, heard.completion_tokens) == (None, 2, 6)


def test_replies_that_failed_are_asked_for_again_in_one_request_once_their_siblings_are_in() -> (
    None
):
    """Or live retries and those of a resumed run would share requests, and prompts, otherwise."""
    how = rules(attempts=3)._replace(branching=3)
    root = new_tree(how, GAME)
    texts = {
        (0, 0): None,
        (2, 0): None,
        (1, 0): "Why?",
        (2, 1): None,
        (0, 1): "Why?",
        (2, 2): "So?",
    }
    requests = [*pending_requests(root)]
    for (index, attempt), text in texts.items():
        arrival = ReplyArrival((), VERIFIER, index, attempt, said(text))
        root, asks = insert(how, root, GAME, arrival)
        requests += asks
    retries = [ReplyRequest((), VERIFIER, (0, 2), 1), ReplyRequest((), VERIFIER, (2,), 2)]
    assert requests[:3] == [ReplyRequest((), VERIFIER, (0, 1, 2), 0), *retries]
    assert requests[3:] == [*pending_requests(root)]


@pytest.mark.parametrize(
    ("path", "agent", "index"),
    [((), PROVER, 0), ((), VERIFIER, 2), ((), VERIFIER, -1), ((0,), PROVER, 0), ((-1,), PROVER, 0)],
)
def test_a_reply_that_no_slot_waits_for_is_refused(path: Path, agent: int, index: int) -> None:
    how = rules()
    with pytest.raises(ValueError, match=r".+"):
        insert(how, new_tree(how, GAME), GAME, ReplyArrival(path, agent, index, 0, said("Why?")))


def test_a_reply_to_a_filled_slot_is_refused() -> None:
    how = rules()
    root, _ = insert(how, new_tree(how, GAME), GAME, ReplyArrival((), VERIFIER, 0, 0, said("Why?")))
    with pytest.raises(ValueError, match=r".+"):
        insert(how, root, GAME, ReplyArrival((), VERIFIER, 0, 0, said("Why?")))


def test_a_tree_that_still_waits_has_a_leaf_for_every_open_node_and_counts_empty_slots() -> None:
    how = rules()
    root = new_tree(how, GAME)
    texts = {(): ("Why?", "Decision: accept"), (0,): ("So.",)}
    for path, agent in (((), VERIFIER), ((0,), PROVER)):
        for index, text in enumerate(texts[path]):
            root, _ = insert(how, root, GAME, ReplyArrival(path, agent, index, 0, said(text)))
    tree = flatten(GameTree("nip", 4, GAME.key, root))
    assert tree.num_waiting == sum(len(ask.indices) for ask in pending_requests(root)) == 1
    assert tree.status_N == ("open", "open", "decided")
    assert repr(tree) == "Tree(datapoint 4: 3 nodes, 2 games, waits for 1 replies)"


@given(st.integers(1, 200), st.data())
def test_a_forest_is_a_sequence_whose_trees_are_replaced_one_by_one(
    size: int, data: st.DataObject
) -> None:
    root = new_tree(rules(), GAME)
    trees = [GameTree("nip", index, key(index), root, num_waiting=1) for index in range(size)]
    forest, growing = Forest.of(trees), set(range(size))
    for index in data.draw(st.lists(st.integers(0, size - 1), max_size=8)):
        before, trees[index] = tuple(forest), GameTree("nip", index + size, key(0), root, 1)
        is_finished = data.draw(st.booleans())
        kept = finish_tree(POINT, trees[index]) if is_finished else trees[index]
        older, forest = forest, forest.replaced({index: kept})
        growing = growing - {index} if is_finished else growing | {index}
        assert tuple(older) == before
    assert (list(forest), len(forest)) == (trees, size)
    assert [forest[index] for index in range(size)] == trees
    assert list(forest.growing()) == [(index, trees[index]) for index in sorted(growing)]
    assert len(list(forest.finished())) == size - len(growing)
    for index in (-1, size):
        with pytest.raises(IndexError):
            forest.replaced({index: trees[0]})
