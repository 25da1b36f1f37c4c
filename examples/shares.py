"""Which decisions bring about the gain of a training?  Shapley values, by swapping models.

    python examples/shares.py runs/first [GAMES]

On the tea the verifier asks, the prover answers, and the verifier judges.  Each of these turns is
played by the model before or after training, in all eight ways, about the same held-out problems
with the same randomness; a turn's value is what it adds to accuracy, the mean over all orders in
which the three can be trained.  Any recorded run of local models will do, whatever its game.
"""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

import nip_fn as nip
from nip_fn.params.agent import max_tokens
from nip_fn.stats import shapley_values, subsets, t_interval
from nip_fn.trees.rollouts import Rollout, dialogue_of
from nip_fn_adapters import load_run
from nip_fn_adapters.providers.local.learner import sample
from nip_fn_adapters.providers.local.policy import LoadedPolicy, load_policy
from nip_fn_adapters.recording.runs import Run

Models = dict[tuple[int, bool], LoadedPolicy]  # by agent, before and after training


def turn_name(protocol: nip.Protocol, agent: int, episode: nip.Episode) -> str:
    """The name of a turn: the agent, and its number among the agent's turns."""
    speakers = [utterance.agent for turn in episode.rounds for utterance in turn]
    return f"{protocol.agents[agent].name} {speakers.count(agent) + 1}"


def load_models(run: Run) -> Models:
    """The model of each agent, before and after training."""
    models: Models = {}
    for index, agent in enumerate(run.params.agents):
        adapter = run.adapter(agent.name)
        for trained, name in ((False, None), (True, adapter.name if adapter else None)):
            folder = run.path.parent / "adapters"
            models[index, trained] = load_policy(agent.model_name, folder, name).unwrap()
    return models


def play(
    run: Run,
    models: Models,
    trained: frozenset[str],
    points: Sequence[nip.Datapoint],
    keys: Sequence[nip.Key],
) -> tuple[nip.Tree, ...]:
    """A game about each datapoint, some turns by the models after training, the rest before it."""
    protocol = run.protocol

    def sampler(queries: Sequence[nip.Query]) -> list[list[nip.Completion]]:
        completions: dict[int, list[nip.Completion]] = {}
        for index, agent in enumerate(run.params.agents):
            numbers = [number for number, query in enumerate(queries) if query.agent == index]
            if not numbers:
                continue
            turn = turn_name(protocol, index, queries[numbers[0]].episode)
            sampled = sample(
                models[index, turn in trained],
                [queries[number] for number in numbers],
                partial(nip.build_chat, run.params, protocol),
                max_tokens=max_tokens(agent),
                temperature=1.0 if agent.temperature is None else agent.temperature,
            )
            completions.update(zip(numbers, sampled, strict=True))
        return [completions[number] for number in range(len(queries))]

    return nip.grow_many(nip.Rules(protocol), points, sampler, keys=keys)


def main(folder: str, num_games: int = 400) -> None:
    """Print the accuracy of each way to swap the models, and what each turn adds."""
    run = load_run(Path(folder)).unwrap()
    games = [game.rollout for game in run.rollouts("test", 0)][:num_games]
    points, keys = [game.datapoint for game in games], [game.key for game in games]
    models = load_models(run)
    longest = max(games, key=lambda game: len(game.rounds))
    turns = [
        turn_name(run.protocol, utterance.agent, nip.Episode(longest.key, 0, 0, rounds))
        for rounds, moves in ((longest.rounds[:n], turn) for n, turn in enumerate(longest.rounds))
        for utterance in moves
    ]
    right = {}
    for trained in subsets(turns):
        trees = play(run, models, trained, points, keys)
        rollouts = map(dialogue_of, trees, points)
        right[trained] = np.array([is_right(game) for game in rollouts], float)
        print(f"{', '.join(sorted(trained)) or 'none':40} {right[trained].mean():6.1%}", flush=True)
    gain = (right[frozenset(turns)] - right[frozenset()]).mean()
    for turn, values in shapley_values(right).items():
        value, low, high = t_interval(values)
        print(f"{turn:12} {value:+6.1%} [{low:+.1%}, {high:+.1%}]  {value / gain:4.0%} of the gain")


def is_right(game: Rollout) -> bool:
    """True if the game was decided as it should be."""
    return game.decision is not None and game.decision.discrete == game.datapoint.label


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
