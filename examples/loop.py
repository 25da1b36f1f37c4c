"""Two agents learn the lady tasting tea by policy gradient: the whole method, without a run.

    python examples/loop.py [ITERATIONS [TREES [UNSEEN TABLES]]]

Trees of replies, advantages, a loss and an optimiser; no configuration, and no file.  By MALT,
TRAINER is `nip.malt(nip.chain(nip.selectors.about_mean(), nip.one_per_node()), k=replies)`, and
that is all that changes.
"""

import sys
from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Any

import nip_fn as nip
from nip_fn.worlds import tea
from nip_fn_adapters.providers.local.learner import Learner

VERIFIER, PROVER = 0, 1
JUDGE = (
    "You are Verifier. Is this claim true? {} Expert argues for one side whatever the truth. Half "
    "of the claims are false."
)
ARGUE = (
    "You are Expert. Verifier judges this claim by questioning you: {} Whatever the truth, argue "
    "for the verdict: accept."
)
DECIDE = '"Decision: accept" or "Decision: reject".'


def rewards(outcome: nip.Outcome) -> tuple[float, float]:
    """The verifier is paid for being right, the expert for being believed."""
    if outcome.status == "open":
        return 0.0, 0.0
    verdict = None if outcome.decision is None else outcome.decision.discrete
    return (1.0 if verdict == outcome.label else -1.0), float(verdict == nip.ACCEPT)


GAME = nip.make_protocol(
    name="tasting",
    agents=(
        nip.AgentSpec("verifier", "verifier", "Verifier"),
        nip.AgentSpec("prover", "prover", "Expert"),
    ),
    schedule=nip.in_turn((nip.Move(VERIFIER, (0,)),), (nip.Move(PROVER, (0,)),)),
    max_message_rounds=3,
    rewards=rewards,
)


def chat(point: nip.Datapoint, episode: nip.Episode, agent: int) -> nip.game.Chat:
    """The words that an agent replies to."""
    said = [turn[0].raw for turn in episode.rounds]
    system = (JUDGE, ARGUE)[agent].format(point.question)
    messages = [("system", f"{system}\n\n{point.view(('verifier', 'prover')[agent])}")]
    if agent == PROVER:
        messages += [("user", f"Verifier: {said[0]}")]
    elif said:
        messages += [("assistant", said[0]), ("user", f"Expert: {said[1]}")]
        messages += [("user", f"Decide now, with {DECIDE}")]
    else:
        messages += [("user", f'Ask with "Question for Expert: ...", or decide with {DECIDE}')]
    return tuple(nip.game.Message(*message) for message in messages)


def replies(turn: nip.Turn) -> int:
    """Replies to a prompt: many questions, since few differ in value."""
    return 4 if turn.agent == PROVER else (8, 2)[turn.number]


TRAINER = nip.policy_gradient(
    nip.training.normalised(nip.training.tree_advantage(), "position"), k=replies
)


def main(iterations: int = 8, num_trees: int = 32, num_unseen: int = 200) -> None:
    """Train both agents, and print their shares of right verdicts on unseen tables."""
    learners = [Learner("builtin:tea") for _ in GAME.agents]
    groups = tuple(
        nip.training.Group(spec.name, (index,), "tea", trainable=True)
        for index, spec in enumerate(GAME.agents)
    )
    state: Any = TRAINER.init(groups)
    unseen, train = (
        [tea.datapoint_of(world) for world in islice(tea.worlds(nip.key(seed), split), number)]
        for seed, split, number in ((1, "test", num_unseen), (2, "train", iterations * num_trees))
    )

    def grow(points: Sequence[nip.Datapoint], key: nip.Key, k: Any, **options: Any) -> Any:
        def sampler(queries: Sequence[nip.Query]) -> Any:  # in a round one agent speaks
            learner = learners[queries[0].agent]
            return learner.replies(queries, chat, max_tokens=40, **options)

        return nip.grow_many(nip.Rules(GAME, k), points, sampler, keys=nip.split(key, len(points)))

    def accuracy(temperature: float) -> float:
        games = grow(unseen, nip.key(3), 1, temperature=temperature)
        return sum(tree.reward_NA[:, VERIFIER].sum() > 0 for tree in games) / len(games)

    print(f"before: {accuracy(1.0):.1%}", flush=True)
    for iteration in range(iterations):
        points = tuple(train[iteration * num_trees :][:num_trees])
        grow_key, update_key, *keys = nip.split(nip.keys.fold_in(nip.key(4), iteration), 4)
        trees = grow(points, grow_key, partial(TRAINER.branching, state))
        batch = nip.SampleBatch(GAME, chat, groups, points, trees, iteration)
        update = TRAINER.update(batch, state, update_key)
        state = update.state
        for group, learner, key in zip(groups, learners, keys, strict=True):
            learner.learn(update.rows[group.name], update.loss_of(group.name), key, batch_size=64)
        print(f"after iteration {iteration}: {accuracy(1.0):.1%}", flush=True)
    print(f"at temperature 0: {accuracy(0.0):.1%}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
