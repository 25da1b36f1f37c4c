"""Compose the pure functions in a script: no files, no network, no model.

Grows trees of nip games with a toy policy, backs expected rewards up, selects preference pairs with
a rule and three filters, and takes one update of a trainer.

    python examples/compose.py
"""

from functools import partial

import nip_fn as nip

PARAMS = nip.from_dict({"nip_protocol": {"max_message_rounds": 3}}).unwrap()
PROTOCOL = nip.protocol_of(PARAMS)
BUGGY = "def f(xs):\n    best = 0\n    for x in xs: best = max(x, best)\n    return best"
POINTS = (
    nip.make_datapoint("largest", "Return the largest number of a list.", BUGGY, label=0),
    nip.make_datapoint("largest", "Return the largest number of a list.", "f = max", label=1),
)
TEXTS = ("Decision: accept", "Decision: reject", "What of negative numbers?", "All is well.")


def policy(point: nip.Datapoint, episode: nip.Episode, agent: int, key: nip.Key) -> nip.Completion:
    """A model that says one of four things; the key alone decides which."""
    return nip.Completion(TEXTS[nip.randint(key, len(TEXTS))], "stop", model="toy")


def main() -> None:
    """Play, grow, back up, select, update, print."""
    play_key, tree_key, select_key, update_key = nip.split(nip.key(2026), 4)
    games = nip.play(PROTOCOL, POINTS, policy, key=play_key, num=100)
    right = sum(bool(g.decision) and g.decision.discrete == g.datapoint.label for g in games)
    print(f"{right} of {len(games)} games of the toy policy are decided rightly")

    rules = nip.Rules(PROTOCOL, branching=3, attempts=2)
    trees = nip.grow_many(rules, POINTS, nip.batched(policy), keys=nip.split(tree_key))

    backup = nip.discounted(0.9)
    select = nip.chain(nip.interval(0.1), nip.margin(0.2), nip.dedupe(), nip.one_per_node())
    among = nip.candidates(trees, PROTOCOL, backup)
    for pair in select(among, select_key)[:5]:
        chosen, rejected = (among.utterance(pair, n).raw for n in (pair.chosen, pair.rejected))
        agent, gain = PROTOCOL.agents[pair.agent].name, pair.chosen_value - pair.rejected_value
        print(f"tree {pair.tree}, {agent}: {chosen!r} rather than {rejected!r} ({gain:+.2f})")

    trainer, groups = nip.malt(select, backup, k=3), nip.make_groups(PARAMS)
    chat = partial(nip.build_chat, PARAMS, PROTOCOL)
    batch = nip.SampleBatch(PROTOCOL, chat, groups, POINTS, trees)
    update = trainer.update(batch, trainer.init(groups), update_key)
    print({name: f"{len(rows)} DPO rows" for name, rows in update.rows.items()})


if __name__ == "__main__":
    main()
