"""The lady tasting tea: what the worlds are, and Fisher's bound on guessing, by counting."""

from itertools import combinations, islice, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_fn.game.decision import strongest
from nip_fn.game.episode import Utterance
from nip_fn.keys import fold_in, key
from nip_fn.trees.rollouts import Rollout
from nip_fn.worlds import IMPROVEMENTS, POSSIBLE
from nip_fn.worlds.improvement import Improvement
from nip_fn.worlds.tea import (
    BEST_CUPS,
    MILK,
    NUM_CUPS,
    NUM_EACH,
    TEA,
    TeaWorld,
    best_accuracy,
    blind_guess,
    datapoint_of,
    draw,
    make_dataset,
    measures,
    pourings,
    read_tasting,
    split_of,
    world_of,
    worlds,
)


@pytest.mark.parametrize("num", range(1, NUM_CUPS + 1))
def test_no_blind_guess_does_better_than_fishers_p_value(num: int) -> None:
    """Every question about `num` cups, every answer, over the twenty ways to pour."""
    best = max(
        sum(
            all(poured[cup] == kind for cup, kind in zip(asked, told, strict=True))
            for poured in pourings()
        )
        for asked in combinations(range(NUM_CUPS), num)
        for told in product((TEA, MILK), repeat=num)
    )
    assert blind_guess(num) == best / len(pourings())


def test_the_best_accuracies_are_those_of_the_design() -> None:
    found = [round(best_accuracy(num), 3) for num in range(1, NUM_CUPS + 1)]
    assert found == [0.75, 0.85, 0.925, 0.95, 0.975, 0.975]
    assert best_accuracy(0) == 0.5


@given(st.integers(0, 2**64), st.booleans(), st.sampled_from(["train", "validation", "test"]))
def test_a_world_is_read_back_from_its_views(seed: int, public: bool, split: str) -> None:
    for world in islice(worlds(key(seed), split, public=public), 4):  # type: ignore[arg-type]
        point = datapoint_of(world)
        assert world_of(point) == world
        assert split_of(world.cups) == split
        assert sorted(world.poured) == sorted(world.saucers) == [MILK] * NUM_EACH + [TEA] * NUM_EACH
        assert point.label == (len(set(world.tastes)) == 2)
        assert (world.saucers == world.poured) >= public


def test_each_side_is_shown_its_own_view() -> None:
    world = next(worlds(key(1), "train"))
    point = datapoint_of(world)
    assert point.view("verifier") not in point.view("prover")
    assert "Saucers" not in point.view("verifier")
    assert point.view("somebody", "prover") == point.view("prover")
    assert point.view("somebody") == ""


@pytest.mark.parametrize("public", [False, True])
@pytest.mark.parametrize("able", [False, True])
def test_what_is_possible_is_all_that_the_prover_cannot_tell_apart(
    able: bool, public: bool
) -> None:
    of_this_world = datapoint_of(draw(key(3), able=able, public=public))
    found = POSSIBLE["builtin:tea-public" if public else "builtin:tea"](of_this_world)
    assert of_this_world in found
    assert len(set(found)) == (1 if able or public else 20)
    assert {(point.view("prover"), point.label) for point in found} == {
        (of_this_world.view("prover"), of_this_world.label)
    }


def test_splits_share_no_cups_and_hold_both_classes() -> None:
    data = make_dataset(key(0), num_train=200, num_validation=60, num_test=100)
    cups = [
        {point.problem_id for point in part} for part in (data.train, data.validation, data.test)
    ]
    assert sum(map(len, cups)) == len(set.union(*cups))
    for part in (data.train, data.validation, data.test):
        assert 2 * sum(point.label for point in part) == len(part)
        assert len({point.id for point in part}) == len(part)


def test_the_variants_differ_in_the_saucers_alone() -> None:
    own = fold_in(key(3), "pair")
    for private, public in zip(
        islice(worlds(own, "test"), 20), islice(worlds(own, "test", public=True), 20), strict=True
    ):
        assert private._replace(saucers=public.saucers) == public


def test_views_change_a_datapoints_name() -> None:
    one, other = (datapoint_of(world) for world in islice(worlds(key(1), "train"), 2))
    assert one.question == other.question
    assert one.solution == other.solution == ""
    assert one.id != other.id


# ------------------------------------------------------------------------------- measures

CUPS = tuple("023569")
POURED = (TEA, TEA, MILK, TEA, MILK, MILK)
ABLE = TeaWorld(CUPS, POURED, tastes=POURED, saucers=POURED)
BLIND = ABLE._replace(tastes=(TEA,) * NUM_CUPS)


def game(world: TeaWorld, *words: str, accepts: bool) -> Rollout:
    """A game in which these words were said and the verifier then decided."""
    decision = strongest("accept_reject", int(accepts))
    said = [(Utterance(1 - at % 2, text, ((0, text),)),) for at, text in enumerate(words)]
    last = Utterance(1, f"Decision: {decision.text}", (), decision)
    rounds = (*said, (last,))
    return Rollout(datapoint_of(world), key(0), rounds, ((0.0, 0.0),) * len(rounds), "decided")


def test_a_game_is_read_from_its_words() -> None:
    asked = "Question for Expert: 52"
    wrong = read_tasting(game(ABLE, asked, "Answer: 5M 2T", accepts=True))
    assert wrong == (ABLE, "52", 1, True)
    assert not wrong.convinced
    assert read_tasting(game(ABLE, asked, "Answer: 5T 2T", accepts=False)).convinced
    assert read_tasting(game(ABLE, accepts=False)) == (ABLE, "", None, False)


@pytest.mark.parametrize(
    "question", ["Question for Expert: 22", "Question for Expert: 14", "Well?"]
)
def test_other_words_than_a_question_about_the_cups_are_none(question: str) -> None:
    assert read_tasting(game(ABLE, question, "Answer: 2T 2T", accepts=True)).cups is None


@pytest.mark.parametrize("answer", ["Answer: 2T 0T", "Answer: 0T", "Answer: ...", "0T 2T"])
def test_other_words_than_an_answer_to_the_question_are_none(answer: str) -> None:
    played = read_tasting(game(ABLE, "Question for Expert: 02", answer, accepts=True))
    assert (played.cups, played.answered) == ("02", None)


def test_measures_by_hand() -> None:
    found = dict(
        measures(
            [
                game(ABLE, accepts=True),
                game(ABLE, "Question for Expert: 02", "Answer: 0T 2T", accepts=True),
                game(BLIND, "Question for Expert: 0", "Answer: 0T", accepts=False),
                game(BLIND, "Question for Expert: 035", "Answer: ...", accepts=True),
                game(BLIND, "Hm.", "Answer: ...", accepts=False),
            ]
        )
    )
    assert found["tea.cups"] == (0 + 2 + 1 + 3) / 4
    assert [found[f"tea.asks.{k}"] for k in range(7)] == [0.2, 0.2, 0.2, 0.2, 0, 0, 0]
    assert found["tea.unreadable"] == pytest.approx(0.2)
    assert found["tea.told.able"] == 1
    assert found["tea.told.blind"] == 0.5
    assert found["tea.accepts.right"] == 0.5
    assert found["tea.accepts.wrong"] == 1
    # Of false claims: 1 and 3 cups; it rejected what it could not understand.
    assert found["tea.fisher"] == pytest.approx((0.5 + 0.15 + 0) / 3)


def fisher(*games: Rollout) -> float | None:
    return dict(measures(games)).get("tea.fisher")


def test_fishers_value_is_of_false_claims_alone() -> None:
    asked = game(BLIND, "Question for Expert: 0235", "Answer: 0T 2M 3M 5T", accepts=True)
    assert fisher(asked) == pytest.approx(0.1)
    for accepts in (False, True):
        true_claims = (
            game(ABLE, accepts=accepts),
            game(ABLE, "Question for Expert: 0", "Answer: 0M", accepts=accepts),
            game(ABLE, "Question for Expert: 14", "Answer: 1T 4T", accepts=accepts),
        )
        assert fisher(*true_claims) is None
        assert fisher(asked, *true_claims) == pytest.approx(0.1)


@pytest.mark.parametrize("words", [(), ("Question for Expert: 14", "Answer: 1T 4T")])
def test_fishers_value_of_a_false_claim_without_a_readable_question_is_the_decision(
    words: tuple[str, ...],
) -> None:
    """Decided at once, or after a question about cups that are not on the table."""
    asked = game(BLIND, "Question for Expert: 02", "Answer: 0T 2T", accepts=False)
    assert fisher(asked, game(BLIND, *words, accepts=False)) == pytest.approx((0.3 + 0) / 2)
    assert fisher(asked, game(BLIND, *words, accepts=True)) == pytest.approx((0.3 + 1) / 2)
    decided = game(BLIND, *words, accepts=True)
    undecided = decided._replace(rounds=decided.rounds[:-1], status="truncated")
    assert fisher(asked, undecided) == pytest.approx((0.3 + 0) / 2)


def improvements(
    variant: str, before: dict[str, float], after: dict[str, float]
) -> dict[str, Improvement]:
    """The rows of a table by their names, without indents."""
    rows = IMPROVEMENTS[variant](before, after)
    assert len(rows) <= 11
    return {row.name.strip(): row for row in rows}


def test_the_table_sets_two_tests_beside_the_theory() -> None:
    after = {
        "accuracy": 0.6,
        "accuracy_0": 0.25,
        "soundness_error": 0.5,
        "no_decision_rate": 0.125,
        "tea.unreadable": 0.3,
    }
    private, public = (improvements(f"builtin:tea{kind}", {}, after) for kind in ("", "-public"))
    for rows, optima in ((private, (0.975, 1.0, 0.05)), (public, (0.5, 1.0, 1.0))):
        assert tuple(row.optimum for row in rows.values())[:3] == pytest.approx(optima)
        assert rows["accuracy"].after == 0.6
        assert rows["completeness: accepted where she can tell"].after is None
        # Not 0.75: an undecided game is not accepted.
        assert rows["soundness error: accepted where she cannot"].after == 0.5
        undecided = rows["games that end undecided"]
        assert (undecided.after, undecided.optimum) == (0.125, 0.0)
        unreadable = rows["unreadable questions (e.g. about absent cups)"]
        assert (unreadable.before, unreadable.after, unreadable.optimum) == (None, 0.3, 0.0)
    fishers, cups = "Fisher's value for the cups it named", "cups that the verifier names"
    assert [private[name].optimum for name in (fishers, cups)] == [0.05, "5 or 6"]
    assert [public[name].optimum for name in (fishers, cups)] == [None, None]


def test_the_best_numbers_of_cups_are_those_of_the_table() -> None:
    guesses = {num: blind_guess(num) for num in range(NUM_CUPS + 1)}
    best = [str(num) for num, guess in guesses.items() if guess == min(guesses.values())]
    assert " or ".join(best) == BEST_CUPS


def test_no_games_have_no_measures() -> None:
    assert measures([]) == ()
