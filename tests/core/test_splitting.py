from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nip_fn.code.solutions import LabelledSolution
from nip_fn.code.splitting import LeakKeys, Shares, marks_of, splits
from nip_fn.game.datapoint import SPLITS, Split

from .fresh import printed

NAMES = st.sampled_from("abcdefgh")
KEYS = st.tuples(NAMES, NAMES, NAMES)
WANTED = st.sampled_from([None, None, "train", "validation", "test", "held out"])
ROWS = st.lists(st.builds(LeakKeys, keys=KEYS, wanted=WANTED), max_size=40)
FREE_ROWS = st.lists(st.builds(LeakKeys, keys=KEYS, wanted=st.none()), max_size=40)
SHARES = st.builds(
    Shares, validation=st.sampled_from([0.0, 0.15, 0.5]), test=st.sampled_from([0.0, 0.15, 0.5])
)


def own_groups(rows: Sequence[LeakKeys]) -> list[frozenset[int]]:
    """The group of each row, straight from the definition: rows that a chain of keys connects."""
    found: list[frozenset[int]] = []
    for start in range(len(rows)):
        group = {start}
        while True:
            keys = {pair for row in group for pair in enumerate(rows[row].keys)}
            grown = {n for n, row in enumerate(rows) if keys & set(enumerate(row.keys))}
            if grown == group:
                break
            group = grown
        found.append(frozenset(group))
    return found


@given(rows=ROWS, shares=SHARES)
def test_no_key_is_shared_between_splits(rows: list[LeakKeys], shares: Shares) -> None:
    seen: dict[tuple[int, str], Split] = {}
    for row, split in zip(rows, splits(rows, shares), strict=True):
        if split is not None:
            assert all(seen.setdefault(key, split) == split for key in enumerate(row.keys))


@given(rows=FREE_ROWS, shares=SHARES)
def test_no_row_is_left_out_where_none_wants_anything(rows: list[LeakKeys], shares: Shares) -> None:
    assert None not in splits(rows, shares)


@given(rows=ROWS, shares=SHARES)
def test_what_is_wanted_is_kept_or_the_row_left_out(rows: list[LeakKeys], shares: Shares) -> None:
    for row, split in zip(rows, splits(rows, shares), strict=True):
        match row.wanted:
            case None:
                assert split in SPLITS
            case "held out":
                assert split in ("validation", "test")
            case wanted:
                assert split in (wanted, None)


@given(rows=ROWS, shares=SHARES)
def test_a_row_is_left_out_only_for_one_that_is_held_out(
    rows: list[LeakKeys], shares: Shares
) -> None:
    found = splits(rows, shares)
    for group, row, split in zip(own_groups(rows), rows, found, strict=True):
        there = {found[n] for n in group} - {None}
        assert len(there) == 1
        if split is None:
            assert there <= {"validation", "test"}
            assert row.wanted in ("train", "validation")


@given(rows=ROWS, shares=SHARES, seed=st.integers(0, 99))
def test_the_order_of_rows_does_not_matter(rows: list[LeakKeys], shares: Shares, seed: int) -> None:
    order = list(range(len(rows)))
    Random(seed).shuffle(order)
    found, shuffled = splits(rows, shares), splits([rows[n] for n in order], shares)
    assert [found[n] for n in order] == list(shuffled)


@given(rows=ROWS, others=ROWS, shares=SHARES)
def test_rows_that_share_nothing_with_others_do_not_move_them(
    rows: list[LeakKeys], others: list[LeakKeys], shares: Shares
) -> None:
    apart = [LeakKeys(tuple(f"other {key}" for key in row.keys), row.wanted) for row in others]
    assert splits([*apart, *rows], shares)[len(apart) :] == splits(rows, shares)


@given(rows=ROWS, shares=SHARES)
def test_a_repeated_row_changes_nothing(rows: list[LeakKeys], shares: Shares) -> None:
    assert splits([*rows, *rows], shares) == 2 * splits(rows, shares)


@given(rows=FREE_ROWS)
def test_a_larger_share_holds_out_the_same_and_more(rows: list[LeakKeys]) -> None:
    def held_out(share: float) -> set[int]:
        found = splits(rows, Shares(0.0, share))
        return {n for n, split in enumerate(found) if split == "test"}

    assert held_out(0.0) == set()
    assert held_out(0.2) <= held_out(0.6)
    assert held_out(1.0) == set(range(len(rows)))


def test_the_same_text_as_a_problem_and_as_a_question_are_two_things() -> None:
    rows = [LeakKeys((f"{n}", f"{n + 1}", f"code {n}"), None) for n in range(200)]
    assert set(splits(rows, Shares())) == set(SPLITS)


@pytest.mark.parametrize("shares", [Shares(), Shares(0.05, 0.3), Shares(0.0, 0.5)])
def test_shares_are_kept_within_what_chance_explains(shares: Shares) -> None:
    size = 20_000
    rows = [LeakKeys((f"problem {n}", f"question {n}", f"code {n}")) for n in range(size)]
    counts = Counter(splits(rows, shares))
    for split, share in (("validation", shares.validation), ("test", shares.test)):
        deviation = (size * share * (1 - share)) ** 0.5
        assert abs(counts[split] - size * share) <= 4 * deviation


def test_what_is_held_out_is_halved() -> None:
    size = 10_000
    rows = [LeakKeys((f"problem {n}", "", f"code {n}"), "held out") for n in range(size)]
    apart = [row._replace(keys=(row.keys[0], row.keys[0], row.keys[2])) for row in rows]
    counts = Counter(splits(apart, Shares()))
    assert counts["train"] == 0
    assert abs(counts["test"] - size / 2) <= 4 * (size / 4) ** 0.5
    assert len(set(splits(rows, Shares()))) == 1  # one question, one group


def test_a_long_chain_of_rows_is_one_group() -> None:
    rows = [LeakKeys((f"p{n}", f"q{n // 2}", f"c{(n + 1) // 2}")) for n in range(10_000)]
    for order in (rows, rows[::-1], sorted(rows, key=lambda row: row.keys[0][::-1])):
        assert len(set(splits(order, Shares(0.3, 0.3)))) == 1


def test_processes_with_different_string_hashes_split_alike() -> None:
    code = (
        "from nip_fn.code.splitting import LeakKeys, Shares, splits\n"
        "rows = [LeakKeys((f'p{n % 37}', f'q{n % 61}', f'c{n}')) for n in range(0, 300, 7)]\n"
        "print(splits(rows, Shares(0.3, 0.3)))\n"
    )
    outputs = {printed("-c", code, hash_seed=seed) for seed in ("0", "1", "2")}
    assert len(outputs) == 1
    assert "train" in outputs.pop()


def test_nothing_is_split_into_nothing() -> None:
    assert splits([], Shares()) == ()


def test_beside_views_an_equal_solution_makes_no_problem_the_same() -> None:
    """The answer "42" to two questions, or one question about two things that are shown."""
    one = LabelledSolution("Q", "42", 1, "a", views=(("verifier", "six"), ("prover", "nine")))
    rows = [one, replace(one, question="R"), replace(one, views=(("verifier", "seven"),))]
    apart = [marks_of(replace(row, problem_id=name)) for name, row in zip("abc", rows, strict=True)]
    for keys in zip(*(row.keys for row in apart), strict=True):
        assert len(set(keys)) == 3
    # What is named alike stays together, whatever is shown.
    assert {marks_of(row).keys[0] for row in rows} == {"a"}
    # Code without views is told by its syntax tree, whatever it answers.
    code = [LabelledSolution(question, "x = 42", 1, question) for question in "QR"]
    assert len({marks_of(row).keys[2] for row in code}) == 1
