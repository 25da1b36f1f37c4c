"""Laws of the values that a script composes: backups, selectors, trainers, schedules, samplers."""

from collections.abc import Callable
from functools import partial
from itertools import product
from math import fsum
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import nip_fn as nip
from nip_fn.config.codec import merge
from nip_fn.config.trainers import BACKUPS, malt_of
from nip_fn.run import checkpoint

PARAMS = nip.from_dict(
    {
        "nip_protocol": {"max_message_rounds": 3},
        "rl": {"num_iterations": 3, "rollouts_per_iteration": 4},
        "text_rl": {"test_scheme": "all"},
    }
).unwrap()
PROTOCOL = nip.protocol_of(PARAMS)
CHAT = partial(nip.build_chat, PARAMS, PROTOCOL)
GROUPS = nip.make_groups(PARAMS)
DATA = nip.game.Dataset(
    "toy",
    *(
        tuple(nip.make_datapoint(f"{split}{i}", f"Is {i} even?", str(i), i % 2) for i in range(4))
        for split in ("train", "validation", "test")
    ),
)
TEXTS = ("Decision: accept", "Decision: reject", "What of 0?", "All is well.", "")


def policy(point: nip.Datapoint, episode: nip.Episode, agent: int, key: nip.Key) -> nip.Completion:
    return reply(key)


def reply(key: nip.Key) -> nip.Completion:
    return nip.Completion(TEXTS[nip.randint(key, len(TEXTS))], "stop", model="toy")


def sampler(asked: nip.run.Request) -> tuple[nip.Completion, ...]:
    return tuple(reply(key) for key in asked.keys)


def batch_of(seed: int, iteration: int = 0, k: int = 3) -> nip.SampleBatch:
    keys = nip.split(nip.key(seed), len(DATA.train))
    rules, sampler = nip.Rules(PROTOCOL, branching=k), nip.batched(policy)
    trees = nip.grow_many(rules, DATA.train, sampler, keys=keys)
    return nip.SampleBatch(PROTOCOL, CHAT, GROUPS, DATA.train, trees, iteration)


SELECTORS = (
    nip.interval(0.1),
    nip.selectors.every(),
    nip.selectors.about(),
    nip.best_worst(),
    nip.margin(0.3),
    nip.dedupe(),
    nip.dedupe("node"),
    nip.one_per_node(),
    nip.selectors.cap(2),
    nip.selectors.cap(3, per=("agent",)),
    nip.selectors.balance("decisions"),
    nip.selectors.balance("agents"),
)
selectors = st.sampled_from(SELECTORS)
seeds = st.integers(0, 50)


# ---------------------------------------------------------------------------------------- selectors


@given(selectors, selectors, selectors, seeds)
def test_chain_is_associative(a: Any, b: Any, c: Any, seed: int) -> None:
    among = nip.candidates(batch_of(seed).trees, PROTOCOL)
    key = nip.key(seed)
    flat = nip.chain(a, b, c)(among, key)
    assert nip.chain(nip.chain(a, b), c)(among, key) == flat
    assert nip.chain(a, nip.chain(b, c))(among, key) == flat


@given(selectors, seeds)
def test_an_empty_chain_is_the_identity_on_pairs(a: Any, seed: int) -> None:
    among = nip.candidates(batch_of(seed).trees, PROTOCOL)
    pairs = a(among, nip.key(seed))
    assert nip.chain()(among, nip.key(seed), pairs) == pairs
    assert nip.chain(nip.chain(), a)(among, nip.key(seed)) == pairs


@given(st.sampled_from(SELECTORS[4:]), seeds)
def test_a_filter_only_leaves_out_and_keeps_the_order(selector: Any, seed: int) -> None:
    among = nip.candidates(batch_of(seed).trees, PROTOCOL)
    pairs = nip.selectors.every()(among, nip.key(seed))
    kept = selector(among, nip.key(seed), pairs)
    assert list(kept) == [pair for pair in pairs if pair in set(kept)]


@given(seeds)
def test_a_draw_does_not_depend_on_other_trees(seed: int) -> None:
    trees = batch_of(seed).trees
    select = nip.chain(nip.selectors.every(), nip.one_per_node())
    all_pairs = select(nip.candidates(trees, PROTOCOL), nip.key(seed))
    first = select(nip.candidates(trees[:1], PROTOCOL), nip.key(seed))
    assert tuple(pair for pair in all_pairs if pair.tree == 0) == first


# ------------------------------------------------------------------------------------------ backups


@given(seeds)
def test_mapping_rewards_by_the_identity_or_discounting_by_one_changes_nothing(seed: int) -> None:
    for tree in batch_of(seed).trees:
        for backup in (nip.mean_children, nip.trees.mean_leaves):
            values = backup(tree)
            assert (nip.trees.map_rewards(lambda r: r, backup)(tree) == values).all()
            assert (nip.discounted(1.0, backup)(tree) == values).all()


@given(seeds, st.floats(-3, 3))
def test_mapped_rewards_are_backed_up_in_place_of_the_recorded_ones(seed: int, by: float) -> None:
    tree = batch_of(seed).trees[0]
    scaled = nip.trees.map_rewards(lambda reward_NA: by * reward_NA)(tree)
    np.testing.assert_allclose(scaled, by * nip.mean_children(tree), atol=1e-12)


@given(seeds, st.floats(0.05, 1.0))
def test_a_discounted_value_is_its_recursion(seed: int, gamma: float) -> None:
    tree = batch_of(seed).trees[0]
    value_NA = nip.discounted(gamma)(tree)
    for node, children in enumerate(nip.trees.children_of(tree)):
        ahead = value_NA[list(children)].mean(axis=0) if children else 0.0
        np.testing.assert_allclose(value_NA[node], tree.reward_NA[node] + gamma * ahead, atol=1e-9)


@pytest.mark.parametrize("gamma", [0.0, -0.5, 1.5])
def test_a_discount_outside_its_range_is_a_bug_of_the_caller(gamma: float) -> None:
    with pytest.raises(ValueError, match="gamma"):
        nip.discounted(gamma)


@pytest.mark.parametrize("label", [0, 1])
def test_the_mean_over_children_is_the_expectation_under_exhaustive_play(label: int) -> None:
    """With every reply of a uniform policy in the tree, V(root) is the mean return of all games."""
    point = nip.make_datapoint("p", "q", "s", label)

    def expectation(episode: nip.Episode) -> list[float]:
        moves = nip.game.movers(PROTOCOL, episode)
        if not moves:
            return [0.0, 0.0]
        ways = list(product(TEXTS[:4], repeat=len(moves)))
        totals = []
        for texts in ways:
            turn = []
            for move, text in zip(moves, texts, strict=True):
                completion = nip.Completion(text, "stop", model="toy")
                decides = PROTOCOL.is_verifier(move.agent)
                reply = nip.game.parse_reply(
                    completion, move=move, may_decide=decides, spectrum="accept_reject"
                ).unwrap()
                turn.append(nip.game.Utterance(move.agent, text, reply.messages, reply.decision))
            after, reward = nip.game.play_round(PROTOCOL, episode, tuple(turn))
            totals.append([r + v for r, v in zip(reward, expectation(after), strict=True)])
        return [fsum(column) / len(ways) for column in zip(*totals, strict=True)]

    rules = nip.Rules(PROTOCOL, branching=4)
    start = nip.game.reset(point, nip.key(1))
    root = nip.trees.new_tree(rules, start)
    while asks := list(
        nip.trees.pending_requests(root)
    ):  # the i-th reply of a node is the i-th text
        for path, agent, indices, attempt in asks:
            for index in indices:
                completion = nip.Completion(TEXTS[index], "stop", model="toy")
                arrival = nip.trees.ReplyArrival(path, agent, index, attempt, completion)
                root, _ = nip.trees.insert(rules, root, start, arrival)
    tree = nip.trees.flatten(nip.trees.GameTree("nip", 0, nip.key(1), root))
    np.testing.assert_allclose(nip.mean_children(tree)[0], expectation(start), rtol=1e-12)


def test_play_is_a_map_of_games_over_datapoints() -> None:
    games = nip.play(PROTOCOL, DATA.train, policy, key=nip.key(3), num=2)
    assert [game.datapoint for game in games] == [p for p in DATA.train for _ in range(2)]
    assert nip.play(PROTOCOL, DATA.train[:1], policy, key=nip.key(3), num=2) == games[:2]
    assert all(len(game.rounds) == len(game.rewards) > 0 for game in games)
    assert {game.status for game in games} <= {"decided", "truncated"}


# ----------------------------------------------------------------------------------------- trainers

MALT = nip.malt(nip.chain(nip.interval(0.1), nip.one_per_node()), k=3)
EI = nip.ei(nip.at_least(0.0), batch_size=2)


def updates(trainer: nip.Trainer[Any], batches: list[nip.SampleBatch]) -> list[nip.Update[Any]]:
    state, found = trainer.init(GROUPS), []
    for index, batch in enumerate(batches):
        found.append(trainer.update(batch, state, nip.keys.fold_in(nip.key(7), index)))
        state = found[-1].state
    return found


def outcome(update: nip.Update[Any]) -> tuple[Any, ...]:
    return dict(update.rows), update.metrics, update.selection


@pytest.mark.parametrize("length", [0, 1, 2])
def test_a_sequence_is_its_first_trainer_and_then_its_second(length: int) -> None:
    batches = [batch_of(seed, seed, k=1) for seed in range(4)]
    both = nip.sequence((EI, length), (MALT, None))
    expected = [*updates(EI, batches)[:length], *updates(MALT, batches)[length:]]
    assert [*map(outcome, updates(both, batches))] == [*map(outcome, expected)]
    state = both.init(GROUPS)
    turns = (nip.Turn(1, 0, nip.key(0)),)
    for index, batch in enumerate(batches):
        one: nip.Trainer[Any] = EI if index < length else MALT
        assert both.branching(state, turns) == one.branching(one.init(GROUPS), turns)
        assert both.batch_size(state) == one.batch_size(one.init(GROUPS))
        state = both.update(batch, state, nip.key(0)).state


@pytest.mark.parametrize("iteration", range(7))
def test_sequences_and_joined_schedules_hand_over_at_the_same_iterations(iteration: int) -> None:
    """The numbers are boundaries, as optax has them, and not lengths."""
    ends = (2, 5, None)
    joined = nip.schedules.join(
        *((nip.schedules.constant(part), end) for part, end in enumerate(ends))
    )
    sizes = [nip.ei(nip.at_least(0.0), batch_size=part) for part in range(3)]
    whole, empty = nip.sequence(*zip(sizes, ends, strict=True)), batch_of(0, k=1)
    empty = replace(empty, trees=())
    state = whole.init(GROUPS)
    for _ in range(iteration):
        state = whole.update(empty, state, nip.key(0)).state
    assert whole.batch_size(state) == joined(iteration) == (iteration >= 2) + (iteration >= 5)


@pytest.mark.parametrize("ends", [(2, 2, None), (5, 2, None), (None, 2), (0, 0)])
def test_a_part_that_would_never_run_is_refused(ends: tuple[int | None, ...]) -> None:
    with pytest.raises(ValueError, match="do not ascend; they are iterations counted from the st"):
        nip.sequence(*((EI, end) for end in ends))
    with pytest.raises(ValueError, match="do not ascend"):
        nip.schedules.join(*((nip.schedules.constant(1.0), end) for end in ends))


def test_a_sequence_that_is_over_says_so() -> None:
    short = nip.sequence((MALT, 1))
    state = short.update(batch_of(0), short.init(GROUPS), nip.key(0)).state
    with pytest.raises(ValueError, match="no trainer of the sequence is left for iteration 1"):
        short.update(batch_of(0), state, nip.key(0))


def test_accumulated_rows_are_those_of_all_iterations_so_far() -> None:
    batches = [batch_of(seed, seed) for seed in range(3)]
    alone, whole = updates(MALT, batches), updates(nip.accumulate(MALT), batches)
    for index, update in enumerate(whole):
        for name in ("prover", "verifier"):
            earlier = [row for one in alone[: index + 1] for row in one.rows[name]]
            assert list(update.rows[name]) == earlier
        assert update.selection == alone[index].selection
    assert len(whole[2].rows["verifier"]) > len(alone[2].rows["verifier"]) > 0


def test_a_masked_trainer_trains_the_others_no_more() -> None:
    batches = [batch_of(0)]
    [whole], [part] = updates(MALT, batches), updates(nip.training.masked(MALT, (1,)), batches)
    assert part.rows.get("prover", ()) == ()
    assert part.rows["verifier"] == whole.rows["verifier"] != ()
    assert {pair.agent for pair in part.selection.pairs} == {1}
    state = nip.training.masked(MALT, (1,)).init(GROUPS)
    assert MALT.branching(state, (nip.Turn(0, 0, nip.key(0)),)) == 1  # its replies are not compared
    [same] = updates(nip.training.masked(MALT, (0, 1)), batches)
    assert outcome(same) == outcome(whole)


def test_a_trainer_needs_no_parameters_of_a_run() -> None:
    """Groups and prompts by hand: the rows are on the chats that the batch's function writes."""

    def chat(datapoint: nip.Datapoint, episode: nip.Episode, agent: int) -> nip.game.Chat:
        return (nip.game.Message("user", f"{datapoint.solution}, {len(episode.rounds)}, {agent}"),)

    groups = tuple(
        nip.training.Group(name, (agent,), "model", trainable=True)
        for agent, name in enumerate(("prover", "verifier"))
    )
    batch = nip.SampleBatch(PROTOCOL, chat, groups, DATA.train, batch_of(0).trees)
    update = MALT.update(batch, MALT.init(groups), nip.key(0))
    expected = {
        pair: (batch.datapoint(pair.tree).solution, batch.trees[pair.tree].depth_N[pair.parent])
        for pair in update.selection.pairs
    }
    assert expected
    assert sorted(row.prompt[0].content for rows in update.rows.values() for row in rows) == sorted(
        f"{solution}, {depth}, {pair.agent}" for pair, (solution, depth) in expected.items()
    )


def test_trees_of_another_game_are_refused() -> None:
    """They got the prompts of the batch's game without a word."""
    adp = nip.protocol_of(nip.from_dict({"interaction_protocol": "adp"}).unwrap())
    tree = nip.grow(nip.Rules(adp, 3), DATA.train[0], policy, key=nip.key(3))
    with pytest.raises(ValueError, match="tree 1 is one of 'adp', in a batch of 'nip'"):
        nip.SampleBatch(PROTOCOL, CHAT, GROUPS, DATA.train, (batch_of(0).trees[0], tree))
    assert nip.SampleBatch(adp, CHAT, GROUPS, DATA.train, (tree,)).protocol is adp


# ---------------------------------------------------------------------------------------- schedules


@given(st.integers(0, 30), st.integers(0, 8), st.floats(0, 1), st.floats(0, 1))
def test_schedules(iteration: int, until: int, start: float, rate: float) -> None:
    linear, constant = nip.schedules.linear(start, rate), nip.schedules.constant(start)
    joined = nip.schedules.join((constant, until), (linear, None))
    assert joined(iteration) == (start if iteration < until else linear(iteration - until))
    # The schedules count exactly, in the decimals that were written.
    assert linear(iteration) == pytest.approx(max(start - iteration * rate, 0.0), abs=1e-12)
    decayed = start * (1 - rate) ** iteration
    assert nip.schedules.exponential(start, rate)(iteration) == pytest.approx(decayed, abs=1e-12)
    assert nip.schedules.periodic(4, 1, 3)(iteration) == (iteration % 4 in (1, 2))


# --------------------------------------------------------------------------------------- whole runs


def test_a_simulated_run_replays_and_its_trees_are_those_of_grow() -> None:
    run = list(nip.simulate(nip.run.started(PARAMS, DATA), nip.run.pure_world(DATA, sampler)))
    events, (*_, last) = [event for event, _ in run], [state for _, state in run]
    assert last.stage.name == "done"
    recording = checkpoint.read(checkpoint.write(events)).unwrap()
    replayed = nip.replay(recording.events).unwrap()
    assert replayed.state.faults == ()
    assert nip.digest(replayed.state) == nip.digest(last)
    sampled = next(stage for stage in replayed.stages if stage.stage == "sample")
    trees, points = sampled.batch.trees, sampled.batch.datapoints
    rules, keys = nip.Rules(PROTOCOL, 2, attempts=20), [tree.key for tree in trees]
    assert nip.grow_many(rules, points, nip.batched(policy), keys=keys) == trees


def test_a_trainer_of_ones_own_runs_and_a_redefined_one_takes_effect() -> None:
    def rows_with(trainer: nip.Trainer[Any]) -> int:
        nip.config.TRAINERS["mine"] = lambda params: trainer
        params = nip.from_dict({**nip.config.to_dict(PARAMS), "trainer": "mine"}).unwrap()
        *_, (_, state) = nip.simulate(
            nip.run.started(params, DATA), nip.run.pure_world(DATA, sampler)
        )
        return sum(dict(row.metrics).get("verifier.pairs", 0.0) > 0 for row in state.rows)

    try:
        assert rows_with(MALT) == 3
        assert rows_with(EI) == 0
    finally:
        del nip.config.TRAINERS["mine"]


def test_a_script_that_redefines_values_during_a_run_does_not_change_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = {"agents": {"prover": {"model_provider": "scripted", "model_name": "random"}}}
    params = nip.from_dict(merge(nip.config.to_dict(PARAMS), table)).unwrap()

    def digests(redefine: Callable[[], None]) -> list[str]:
        run = nip.simulate(nip.run.started(params, DATA), nip.run.pure_world(DATA, sampler))
        states = [state for number, (_, state) in enumerate(run) if number or not redefine()]
        return list(map(nip.digest, states))

    def redefine() -> None:
        def refuse(*arguments: object) -> Any:
            raise AssertionError("a registry was read")

        for registry in (
            nip.protocols.PROTOCOLS,
            nip.config.TRAINERS,
            nip.config.SELECTORS,
            BACKUPS,
            nip.protocols.STRATEGIES,
        ):
            for name in registry:
                monkeypatch.setitem(registry, name, refuse)

    assert digests(lambda: None) == digests(redefine)
    with pytest.raises(AssertionError, match="a registry was read"):
        nip.step(nip.run.EMPTY, nip.run.started(replace(params, seed=1), DATA))


@pytest.mark.parametrize(
    ("changes", "address"),
    [
        ({"interaction_protocol": "mine"}, "interaction_protocol"),
        ({"trainer": "mine"}, "trainer"),
        ({"trainer": "games/own.py:MINE"}, "trainer"),
        ({"malt": nip.HyperParameters().malt}, "malt.pair_selection_method"),
    ],
)
def test_a_name_that_is_unknown_is_a_problem(changes: dict[str, Any], address: str) -> None:
    if "malt" in changes:
        changes = {"malt": replace(changes["malt"], pair_selection_method="mine")}
    with pytest.raises(ValueError, match=r"mine|MINE") as raised:
        nip.step(nip.run.EMPTY, nip.run.started(replace(PARAMS, **changes), DATA))
    problem = raised.value.__cause__
    assert isinstance(problem, nip.Problem)
    assert problem.address == address
    assert problem.remedy


def test_the_built_in_trainers_are_made_of_the_public_values() -> None:
    params = nip.from_dict(
        {
            "malt": {
                "pair_selection_method": "interval",
                "interval_threshold_proportion": 0.1,
                "num_responses_per_timestep": 3,
            }
        }
    ).unwrap()
    ours = nip.malt(nip.chain(nip.interval(0.1), nip.margin(0.0), nip.one_per_node()), k=3)
    batches = [batch_of(seed, seed) for seed in range(2)]
    assert [*map(outcome, updates(malt_of(params), batches))] == [
        *map(outcome, updates(ours, batches))
    ]


def test_arrays_in_records_cannot_be_written_to() -> None:
    tree = batch_of(0).trees[0]
    for array in (tree.reward_NA, tree.parent_N, tree.usable_NA, nip.mean_children(tree)):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


# --------------------------------------------------------------------------------------------- keys


@given(st.integers(0, 10**6), st.integers(0, 40))
def test_a_permutation_has_every_element_once(seed: int, size: int) -> None:
    assert sorted(nip.keys.permutation(nip.key(seed), size)) == list(range(size))


def test_draws_by_weight_have_the_frequencies_of_their_weights() -> None:
    weights, num = (1.0, 0.0, 3.0), 4000
    drawn = nip.keys.weighted_choice(nip.key(0), weights, num, replace=True)
    assert drawn.count(1) == 0
    assert abs(drawn.count(2) / num - 0.75) < 4 * (0.75 * 0.25 / num) ** 0.5
    orders = [
        nip.keys.weighted_choice(nip.keys.fold_in(nip.key(1), i), weights, 2, replace=False)
        for i in range(1000)
    ]
    assert {frozenset(order) for order in orders} == {frozenset({0, 2})}
    first = sum(order[0] == 2 for order in orders) / 1000
    assert abs(first - 0.75) < 4 * (0.75 * 0.25 / 1000) ** 0.5


def test_permutations_are_uniform() -> None:
    counts: dict[tuple[int, ...], int] = {}
    for i in range(6000):
        order = nip.keys.permutation(nip.keys.fold_in(nip.key(2), i), 3)
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 6
    chi_squared = fsum((count - 1000) ** 2 / 1000 for count in counts.values())
    assert chi_squared < 20.5  # 0.999 quantile with 5 degrees of freedom
