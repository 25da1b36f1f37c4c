"""Games in which a prover writes the answer, and a checker says afterwards if it is right."""

from collections import Counter
from itertools import islice
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from returns.result import Success

from nip_fn.config.resolve import checker_name
from nip_fn.game.answer import find_answer
from nip_fn.game.checkers import CHECKERS, exact, number
from nip_fn.game.datapoint import Datapoint, Kind, make_datapoint
from nip_fn.game.episode import reset
from nip_fn.game.reply import Completion
from nip_fn.keys import key
from nip_fn.metrics.stage import stage_metrics
from nip_fn.protocols.nip import PROVER, VERIFIER
from nip_fn.protocols.registry import PROTOCOLS, protocol_of
from nip_fn.run.digest import digest
from nip_fn.run.events import CheckAnswer, Checked
from nip_fn.run.step import pending, step
from nip_fn.select.pairs import candidates
from nip_fn.trees.backup import mean_children
from nip_fn.trees.grow import Query, Rules, Turn, grow_many, insert, insert_label, new_tree
from nip_fn.trees.node import GameTree, Node, ReplyArrival, pending_checks, pending_requests
from nip_fn.trees.tree import Tree, episode_at, flatten, label_at, leaves_of

from .games import ANSWERING, STAND_BY, make_params, play, resume, shuffled

WRITTEN = {"protocol_common": {"answers": "written"}}
GAME = protocol_of(make_params(WRITTEN, {"interaction_protocol": "adp"}))
POINT = make_datapoint("p", "What is 3 + 4?", "", None, reference="7")


def said(text: str) -> Completion:
    return Completion(text, "stop", "m")


def answered(*texts: str, attempts: int = 1) -> tuple[Rules, Node]:
    """A tree whose prover has given these first replies."""
    rules = Rules(GAME, len(texts), attempts)
    start = reset(POINT, key(0))
    root = new_tree(rules, start)
    for index, text in enumerate(texts):
        arrival = ReplyArrival((), PROVER, index, 0, said(text))
        root, _ = insert(rules, root, start, arrival)
    return rules, root


def labelled(rules: Rules, root: Node, **labels: int | None) -> Node:
    for answer, label in labels.items():
        root, _ = insert_label(rules, root, reset(POINT, key(0)), answer[1:], label)
    return root


# -------------------------------------------------------------------------------- stated answers


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Final answer: 7", "7"),
        ("So it is.\n\n**Final Answer:** `7`\n", "7"),
        ("### final answer: **7**\nI am sure.", "7"),
        ("Final answer:\n\n```python\nif x:\n  7\n```\nThat is all.", "if x:\n  7"),
        ("Final answer:\n~~~\n7", "7"),
        ("Final answer: 7, or 8", "7, or 8"),
        ("My final answer: 7", None),
        ("> Final answer: 7", None),
        ("```\nFinal answer: 7\n```", None),
        ("Final answer: 7\nFinal answer: 7", None),
        ("Final answer:\nSeven.", None),
        ("Final answer: **", None),
        ("Final answer:\n```\n\n```", None),
        ("Answer: 7", None),
    ],
)  # fmt: skip
def test_an_answer_is_stated_once_on_a_line_of_the_authors_own(
    text: str, answer: str | None
) -> None:
    assert find_answer(text).value_or(None) == answer


@given(st.text())
def test_no_text_is_too_strange_to_be_searched_for_an_answer(text: str) -> None:
    found = find_answer(text)
    assert not isinstance(found, Success) or found.unwrap().strip()


NUMBERS = st.integers(-(10**6), 10**6) | st.floats(-1e6, 1e6).map(lambda x: round(x, 3))


@given(NUMBERS, st.sampled_from(["{}", "{:,}", " {}. ", "{} km", "= {}"]))
def test_a_number_is_right_however_it_is_written(value: float, form: str) -> None:
    point = make_datapoint("p", "?", "", None, reference=str(value))
    assert number(point, form.format(value)) == 1
    assert number(point, form.format(value + 1)) == 0


@pytest.mark.parametrize("name", sorted(CHECKERS))
@given(reference=st.text(), answer=st.text())
def test_a_checker_says_0_or_1_or_nothing(name: str, reference: str, answer: str) -> None:
    point = make_datapoint("p", "?", "", None, reference=reference)
    assert CHECKERS[name](point, answer) in (0, 1, None)
    assert CHECKERS[name](replace(point, reference=""), answer) is None


# ----------------------------------------------------------------------------------------- trees


def test_children_open_once_their_answers_are_checked() -> None:
    rules, root = answered("Final answer: 7", "Final answer: 8")
    assert (root.children, list(pending_requests(root))) == ((), [])
    assert pending_checks(root) == ("7", "8")
    root = labelled(rules, root, _8=0)
    assert (root.children, pending_checks(root)) == ((), ("7",))
    root = labelled(rules, root, _7=1)
    assert [child.utterances[0].label for child in root.children] == [1, 0]
    assert [request.path for request in pending_requests(root)] == [(0,), (1,)]


def test_equal_answers_of_a_tree_are_checked_once() -> None:
    rules, root = answered("Final answer: 7", "I say:\nFinal answer: 7", "Final answer: 8")
    assert pending_checks(root) == ("7", "8")
    root = labelled(rules, root, _7=1, _8=0)
    assert [child.utterances[0].label for child in root.children] == [1, 1, 0]
    with pytest.raises(ValueError, match="nothing waits"):
        labelled(rules, root, _7=1)


def test_an_answer_that_was_checked_earlier_in_the_tree_is_not_checked_again() -> None:
    rules, start = Rules(GAME, 2), reset(POINT, key(0))
    root = new_tree(rules, start)
    root, _ = insert(rules, root, start, ReplyArrival((), PROVER, 0, 0, said("Final answer: 7")))
    root = labelled(rules, root, _7=1)
    late = ReplyArrival((), PROVER, 1, 0, said("Final answer: 7"))
    root, requests = insert(rules, root, start, late)
    assert pending_checks(root) == ()
    assert len(requests) == len(root.children) == 2


def test_whoever_states_no_answer_is_asked_again_and_is_wrong_in_the_end() -> None:
    rules, root = answered("Seven.", attempts=2)
    assert root.children == ()
    (request,) = pending_requests(root)
    assert request.attempt == 1
    late = ReplyArrival((), PROVER, 0, 1, said("Seven!"))
    root, _ = insert(rules, root, reset(POINT, key(0)), late)
    (child,) = root.children
    utterance = child.utterances[0]
    assert (utterance.answer, utterance.label, utterance.error) == (None, 0, "invalid_answer")
    assert child.status == "open"


def to_the_end(answers: tuple[str, ...], verdict: str = "accept") -> Tree:
    """A tree in which every answer is argued for and then judged alike."""

    def reply(query: Query) -> list[Completion]:
        move = len(query.episode.rounds)
        if move == 0:
            return [said(f"Final answer: {answer}") for answer in answers]
        return [said("Believe me.") if move == 1 else said(f"Decision: {verdict}")]

    def branching(turns: tuple[Turn, ...]) -> int:
        return len(answers) if turns[0].number == 0 == turns[0].agent else 1

    def check(point: Datapoint, answer: str) -> int | None:
        return None if answer == "?" else exact(point, answer)

    rules = Rules(GAME, branching, checker=check)
    (tree,) = grow_many(
        rules, [POINT], lambda queries: [reply(query) for query in queries], keys=[key(0)]
    )
    return tree


def test_the_label_of_an_answer_is_that_of_all_nodes_below_and_of_no_other() -> None:
    tree = to_the_end(("7", "8"))
    for leaf in leaves_of(tree):
        label = 1 - tree.path_N[leaf][0]
        assert label_at(tree, leaf, POINT) == label
        assert episode_at(tree, leaf, POINT).label == label
        assert tree.reward_NA[leaf].tolist() == [1.0, 2.0 * label - 1.0]
    assert label_at(tree, 0, POINT) is None
    # The verifier's expected reward before the answer is that of accepting one right of two.
    assert mean_children(tree)[0].tolist() == [1.0, 0.0]


def test_an_answer_that_cannot_be_checked_ends_the_game_and_is_compared_with_none() -> None:
    tree = to_the_end(("7", "?", "8"), "reject")
    (lost,) = (node for node in range(tree.num_nodes) if tree.status_N[node] == "unchecked")
    assert lost in leaves_of(tree)
    assert tree.reward_NA[lost].tolist() == [0.0, 0.0]
    assert not tree.acted_NA[lost].any()
    (point,) = candidates([tree], GAME, agents=[PROVER]).points
    assert (lost,) not in point.nodes_C
    assert len(point.nodes_C) == 2


def test_measures_of_answers_and_of_verdicts_are_apart() -> None:
    metrics = dict(stage_metrics(GAME, [POINT], [to_the_end(("7", "8", "9", "?"))]))
    assert metrics["answer_accuracy"] == metrics["prover.answer_accuracy"] == pytest.approx(1 / 3)
    assert metrics["accuracy"] == pytest.approx(1 / 4)
    assert (metrics["accuracy_0"], metrics["accuracy_1"]) == (0.0, 1.0)
    assert (metrics["soundness_error"], metrics["unchecked_share"]) == (1.0, 0.25)


# ------------------------------------------------------------------------------------------- runs


def test_in_a_run_each_answer_of_a_tree_is_checked_once() -> None:
    asked = Counter(
        (moment.state.iteration, moment.state.stage.name, effect)
        for moment in play(ANSWERING)
        for effect in moment.emitted
        if isinstance(effect, CheckAnswer)
    )
    assert max(asked.values()) == 1
    assert sum(asked.values()) > 20


def test_after_a_kill_at_a_check_it_is_asked_for_again_and_nothing_that_was_answered() -> None:
    whole = play(ANSWERING)
    cuts = [at for at, moment in enumerate(whole) if isinstance(moment.event, Checked)]
    for at in islice(cuts, 0, None, 7):
        before, after = whole[at - 1].state, whole[at].state
        event = whole[at].event
        assert isinstance(event, Checked)
        check = CheckAnswer(event.tree, event.answer)
        assert check in pending(before)
        assert check not in pending(after)
        assert digest(resume(ANSWERING, before, shuffled(at))[-1].state) == digest(whole[-1].state)


def test_a_check_that_nobody_asked_for_is_refused() -> None:
    moment = next(m for m in play(ANSWERING) if isinstance(m.event, Checked))
    with pytest.raises(ValueError, match="nothing waits"):
        step(moment.state, Checked(0, "never said", 1))


def test_another_label_leads_to_another_digest() -> None:
    whole = play(ANSWERING)
    at = next(at for at, moment in enumerate(whole) if isinstance(moment.event, Checked))
    event = whole[at].event
    assert isinstance(event, Checked)
    other = replace(event, label=1 if event.label != 1 else 0)
    assert digest(step(whole[at - 1].state, other)[0]) != digest(whole[at].state)


# -------------------------------------------------------------------------------------- protocols


@pytest.mark.parametrize("name", STAND_BY)
def test_the_writer_argues_for_acceptance_and_everybody_hears_the_answer(name: str) -> None:
    params = make_params({"interaction_protocol": name}, WRITTEN)
    game, given = protocol_of(params), PROTOCOLS[name](params)
    (move,) = game.schedule(0, key(1))
    assert move.answers
    assert {game.stance(move.agent, stance) for stance in (0, 1)} == {1}
    assert all(seen[move.channels[0]] for seen in game.visibility)
    for round_id in range(given.max_message_rounds):
        assert game.schedule(round_id + 1, key(1)) == given.schedule(round_id, key(1))


def test_the_checker_is_named_by_the_parameters_or_follows_from_the_kind() -> None:
    usual = {kind: checker_name(make_params(WRITTEN), kind) for kind in get_args(Kind)}
    assert usual == {"code": "tests", "prose": "exact", "choice": "choice", "number": "number"}
    chosen = make_params(WRITTEN, {"dataset_options": {"checker": "set"}})
    assert {checker_name(chosen, kind) for kind in get_args(Kind)} == {"set"}


def test_a_tree_by_policies_is_that_of_the_same_replies_one_by_one() -> None:
    grown = to_the_end(("7", "8"))
    rules, root = answered("Final answer: 7", "Final answer: 8")
    rules = rules._replace(branching=1)
    root = labelled(rules, root, _7=1, _8=0)
    start = reset(POINT, key(0))
    for text, agent, path in (
        ("Believe me.", PROVER, ()),
        ("Decision: accept", VERIFIER, (0,)),
    ):
        for rank in (0, 1):
            arrival = ReplyArrival((rank, *path), agent, 0, 0, said(text))
            root, _ = insert(rules, root, start, arrival)
    assert flatten(GameTree("adp", 0, start.key, root)) == grown
