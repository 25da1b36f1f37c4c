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
from nip_fn.worlds.tea import (
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
    # It accepted at once; 2, 1 and 3 cups; it rejected what it could not understand.
    assert found["tea.fisher"] == pytest.approx((1 + 0.3 + 0.5 + 0.15 + 0) / 5)


def test_in_public_nothing_is_sound() -> None:
    after = {"accuracy": 0.6, "accuracy_0": 0.25}
    private, public = (IMPROVEMENTS[f"builtin:tea{kind}"]({}, after) for kind in ("", "-public"))
    assert [one.optimum for one in private[:3]] == [0.975, 1.0, 0.05]
    assert [one.optimum for one in public[:3]] == [0.5, 1.0, 1.0]
    assert [one.after for one in public[:3]] == [0.6, None, 0.75]


def test_no_games_have_no_measures() -> None:
    assert measures([]) == ()
