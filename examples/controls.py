"""Preferences that know nothing of the reward: controls for whatever a training seems to teach.

    nip-fn train --set malt.pair_selection_method=examples/controls.py:LONGER
    nip-fn train --set malt.pair_selection_method=examples/controls.py:SHUFFLED

A rise that these bring about, too, is not learnt from the reward.  Each selects as many pairs of
siblings as MALT's own rule: the longer reply is preferred, or either of the two by a coin.
"""

from collections.abc import Callable

from msgspec.structs import replace

import nip_fn as nip
from nip_fn.selectors import Candidates, Pair, Selector, about

Pairs = tuple[Pair, ...]


def _swapped(swap: Callable[[Pair, Candidates, nip.Key], bool]) -> Selector:
    """MALT's pairs, turned round where `swap` says so; an unusable reply is never preferred."""

    def select(among: Candidates, key: nip.Key, pairs: Pairs = ()) -> Pairs:
        by_value = nip.chain(about(), nip.one_per_node())(among, key, pairs)
        return tuple(
            replace(pair, chosen=pair.rejected, rejected=pair.chosen)
            if among.utterance(pair, pair.rejected).error is None and swap(pair, among, key)
            else pair
            for pair in by_value
        )

    return select


def _is_longer(pair: Pair, among: Candidates, key: nip.Key) -> bool:
    chosen, rejected = (among.utterance(pair, node) for node in (pair.chosen, pair.rejected))
    return len(rejected.raw) > len(chosen.raw)


def _coin(pair: Pair, among: Candidates, key: nip.Key) -> bool:
    return bool(nip.randint(among.key_of(pair, nip.keys.fold_in(key, "shuffled")), 2))


LONGER = _swapped(_is_longer)
SHUFFLED = _swapped(_coin)
