from collections import Counter
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nip_fn.keys import (
    KEY_SIZE,
    Key,
    fold_in,
    key,
    permutation,
    randint,
    seed_of,
    split,
    uniform,
    weighted_choice,
)
from nip_fn.run import checkpoint
from nip_fn.run.digest import digest

from .fresh import printed
from .games import BUSY, events_of, play, shuffled

PARTS = st.integers() | st.text(max_size=8)
KEYS = st.integers().map(key)


def test_a_hundred_thousand_keys_do_not_collide() -> None:
    """From one root by integers, by strings, by splitting, and two steps deep."""
    root = key(0)
    drawn = {fold_in(root, i) for i in range(30_000)}
    drawn.update(fold_in(root, str(i)) for i in range(30_000))
    drawn.update(split(root, 30_000))
    inner = [fold_in(root, "inner", i) for i in range(10)]
    drawn.update(fold_in(each, i) for each in inner for i in range(1_000))
    assert len(drawn) == 100_000
    assert all(len(each) == KEY_SIZE for each in drawn)


@given(KEYS, st.lists(PARTS, max_size=4), st.lists(PARTS, max_size=4))
def test_folding_composes_along_paths(
    root: Key, one: list[int | str], other: list[int | str]
) -> None:
    assert fold_in(root, *one, *other) == fold_in(fold_in(root, *one), *other)


@given(KEYS, st.lists(PARTS, max_size=4), st.lists(PARTS, max_size=4))
def test_different_paths_lead_to_different_keys(
    root: Key, one: list[int | str], other: list[int | str]
) -> None:
    assert (fold_in(root, *one) == fold_in(root, *other)) == (one == other)


def test_an_integer_is_not_its_digits_and_a_split_is_neither() -> None:
    root = key(0)
    keys = {fold_in(root, 1), fold_in(root, "1"), fold_in(root, "i1"), split(root)[1], key(1)}
    assert len(keys) == 5
    assert split(root, 3)[:2] == split(root, 2)


@given(st.integers(), st.integers())
def test_seeds_of_any_size_have_their_own_keys(one: int, other: int) -> None:
    assert (key(one) == key(other)) == (one == other)


def test_keys_are_what_they_have_always_been() -> None:
    """Recorded runs depend on these bytes."""
    assert key(6198) == blake2b(b"seed:6198", digest_size=16).digest()
    assert fold_in(key(6198), "tree", 3).hex() == _by_hand(key(6198), b"stree", b"i3").hex()
    assert split(key(6198))[1].hex() == _by_hand(key(6198), b"k1").hex()


def _by_hand(start: bytes, *labels: bytes) -> bytes:
    for label in labels:
        start = blake2b(label, key=start, digest_size=16).digest()
    return start


def test_different_keys_draw_different_numbers() -> None:
    """The first and the last bit of a key count."""
    base = fold_in(key(0), "draws")
    flipped = [
        Key(bytes(b ^ (bit if i == at else 0) for i, b in enumerate(base)))
        for at in range(KEY_SIZE)
        for bit in (1, 128)
    ]
    assert len({randint(each, 3**80) for each in (base, *flipped)}) == 1 + len(flipped)
    assert len({permutation(each, 50) for each in (base, *flipped)}) == 1 + len(flipped)
    assert uniform(base) == uniform(base)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_choice_is_uniform(size: int) -> None:
    num = 4000
    counts = Counter(randint(fold_in(key(1), i), size) for i in range(num))
    assert set(counts) == set(range(size))
    assert all(abs(count - num / size) < 5 * (num / size) ** 0.5 for count in counts.values())


@given(KEYS, st.integers(0, 50))
def test_a_permutation_holds_each_place_once(root: Key, size: int) -> None:
    assert sorted(permutation(root, size)) == list(range(size))


def test_permutations_are_not_all_the_same() -> None:
    drawn = {tuple(permutation(fold_in(key(0), i), 4)) for i in range(500)}
    assert len(drawn) == 24


@given(KEYS, st.integers(1, 64))
def test_a_seed_has_as_many_bits_as_it_should(root: Key, bits: int) -> None:
    assert 0 <= seed_of(root, bits) < 2**bits
    assert seed_of(Key(b"\xff" * KEY_SIZE), bits) == 2**bits - 1


def test_a_key_draws_what_it_has_always_drawn() -> None:
    """Recorded runs depend on it.  It is a hash of ours, which no library can change."""
    assert permutation(key(0), 6) == (3, 2, 1, 0, 4, 5)
    assert weighted_choice(key(0), (1.0, 2.0, 3.0), 6, replace=True) == (2, 2, 2, 2, 1, 2)
    assert uniform(key(0)) == 0.5881236365199602


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("weights", [(), (0.0,), (0.0, 0.0)])
def test_a_choice_among_no_positive_weights_is_refused(
    weights: tuple[float, ...], replace: bool
) -> None:
    with pytest.raises(ValueError, match="draw 0 finds no positive weight"):
        weighted_choice(key(0), weights, 1, replace=replace)


def test_without_replacement_there_are_no_more_draws_than_positive_weights() -> None:
    assert set(weighted_choice(key(0), (1.0, 0.0, 2.0), 2, replace=False)) == {0, 2}
    with pytest.raises(ValueError, match="draw 2 finds no positive weight"):
        weighted_choice(key(0), (1.0, 0.0, 2.0), 3, replace=False)


def test_a_run_is_the_same_bytes_whatever_the_hash_seed() -> None:
    outputs = [printed("-m", "tests.core.games", hash_seed=seed).split() for seed in ("0", "1")]
    run = play(BUSY, shuffled(1))
    recording = blake2b(checkpoint.write(events_of(run))).hexdigest()
    assert outputs == [[digest(run[-1].state), recording]] * 2
