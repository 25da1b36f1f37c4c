"""The size of a tree, counted before it grows, is that of the tree that grows."""

from collections import Counter

import pytest

import nip_fn as nip
from nip_fn.protocols.registry import PROTOCOLS
from nip_fn.trees.node import SimultaneousBranching
from nip_fn.trees.size import levels

from .games import make_params

SHORT = {f"{name}_protocol": {"max_message_rounds": 4} for name in ("nip", "debate", "mnip")}


@pytest.mark.parametrize("simultaneous", ["joint", "product"])
@pytest.mark.parametrize("force", [None, "zero"])
@pytest.mark.parametrize("name", PROTOCOLS)
def test_levels_are_those_of_a_tree_in_which_nobody_decides(
    name: str, force: str | None, simultaneous: SimultaneousBranching
) -> None:
    table = {"interaction_protocol": name, "protocol_common": {"force_guess": force}}
    protocol = nip.protocol_of(make_params(SHORT, table))

    def branching(turns: tuple[nip.Turn, ...]) -> int:
        return 1 + (sum(turn.agent + turn.number for turn in turns) % 2)

    rules = nip.Rules(protocol, branching, simultaneous_branching=simultaneous)

    def policy(
        point: nip.Datapoint, episode: nip.Episode, agent: int, key: nip.Key
    ) -> nip.Completion:
        move = next(move for move in nip.game.movers(protocol, episode) if move.agent == agent)
        parts = protocol.headers(move) or ("",)
        return nip.Completion("\n".join(f"{part} Well." for part in parts), "stop", "toy")

    tree = nip.grow(rules, nip.make_datapoint("p", "q", "s", 1), policy, key=nip.key(0))
    inner = {node for node in tree.parent_N.tolist() if node >= 0}
    counts = Counter(int(tree.depth_N[node]) for node in inner)
    assert [level.number for level in levels(rules, tree.key)] == list(counts.values())


def test_a_verifier_that_may_decide_ends_a_share_of_the_games() -> None:
    """Verifier, prover, verifier; half of the two children of the root go on."""
    protocol = nip.protocol_of(make_params({"nip_protocol": {"max_message_rounds": 3}}))
    rules = nip.Rules(protocol, 2)
    assert [level.number for level in levels(rules, nip.key(0), decides=0.5)] == [1, 1, 2]
