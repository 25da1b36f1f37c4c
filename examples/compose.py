"""Compose the pure functions in a script: no files, no network, no model.

Plays one game with hand-written replies, grows a tree with a fake sampler, backs expected rewards
up, selects preference pairs, and prints them.

    python examples/compose.py
"""

from nip_fn.config.codec import from_dict
from nip_fn.game.datapoint import make_datapoint
from nip_fn.game.episode import Utterance, movers, play_round, reset
from nip_fn.game.reply import Completion, parse_reply
from nip_fn.keys import Key, fold_in, key, randint, split
from nip_fn.prompts.chat import build_chat
from nip_fn.protocols.registry import protocol_of
from nip_fn.select.pairs import select_pairs
from nip_fn.trees.grow import Node, ReplyArrival, Rules, insert, new_tree, pending_requests
from nip_fn.trees.tree import backup, flatten

PARAMS = from_dict(
    {
        "nip_protocol": {"max_message_rounds": 3},
        "malt": {"num_responses_per_timestep": 2},
        "agents": {"_default": {"use_supervisor_message": "all"}},
    }
).unwrap()
PROTOCOL = protocol_of(PARAMS)
PROVER, VERIFIER = 0, 1
DATAPOINT = make_datapoint(
    problem_id="largest",
    question="Return the largest number of a list.",
    solution="def f(xs):\n    best = 0\n    for x in xs: best = max(x, best)\n    return best",
    label=0,  # it fails where all numbers are negative
)


def play(replies: list[str], key: Key) -> None:
    """One game of nip with hand-written replies."""
    episode = reset(DATAPOINT, key)
    for text in replies:
        (move,) = movers(PROTOCOL, episode)
        print(f"\n{PROTOCOL.agents[move.agent].name} is shown:")
        for message in build_chat(PARAMS, DATAPOINT, episode, move.agent):
            print(f"  {message.role}: {message.content.splitlines()[-1]}")
        completion = Completion(text, "stop", model="me")
        is_verifier = PROTOCOL.is_verifier(move.agent)
        reply = parse_reply(
            completion, move=move, may_decide=is_verifier, spectrum="accept_reject"
        ).unwrap()
        said = Utterance(move.agent, text, reply.messages, reply.decision)
        episode, reward = play_round(PROTOCOL, episode, (said,))
        print(f"and says: {text}\nrewards {reward}, the game is {episode.end}")


def fake_sampler(key: Key) -> Completion:
    """A model that says one of four things; which one depends on the key alone."""
    texts = ("Decision: accept", "Decision: reject", "What of negative numbers?", "All is well.")
    return Completion(texts[randint(key, len(texts))], "stop", model="fake")


def grow(key: Key) -> Node:
    """A tree with two replies at each node."""
    rules = Rules(PROTOCOL, branching=lambda moves: 2, attempts=(3, 3))
    game_key, reply_key = split(key)
    episode = reset(DATAPOINT, game_key)
    root = new_tree(rules, episode)
    while asks := list(pending_requests(root)):
        for ask in asks:
            for index in ask.indices:
                completion = fake_sampler(fold_in(reply_key, *ask.path, index, ask.attempt))
                given = ReplyArrival(ask.path, ask.agent, index, ask.attempt, completion)
                root, _ = insert(rules, root, episode, given)
    return root


def main() -> None:
    """Play, grow, back up, select, print."""
    game_key, tree_key, pair_key = split(key(2026), 3)
    play(["What of negative numbers?", "Answer: none occur.", "Decision: reject"], game_key)

    tree = flatten(grow(tree_key))
    values = backup(tree)
    print("\nnode  path        said                            expected reward")
    for node, (path, turn) in enumerate(zip(tree.path_N, tree.turn_N, strict=True)):
        words = turn[0].raw if turn else "(the root)"
        prover, verifier = values[node]
        print(f"{node:4}  {path!s:10}  {words:30}  prover {prover:+.2f}  verifier {verifier:+.2f}")

    pairs = select_pairs(
        tree,
        values,
        index=0,
        protocol=PROTOCOL,
        agents=(PROVER, VERIFIER),
        malt=PARAMS.malt,
        key=pair_key,
    )
    print()
    for pair in pairs:
        chosen, rejected = (tree.turn_N[node][0].raw for node in (pair.chosen, pair.rejected))
        agent = PROTOCOL.agents[pair.agent].name
        print(f"at node {pair.parent}, {agent}: {chosen!r} rather than {rejected!r}")


if __name__ == "__main__":
    main()
