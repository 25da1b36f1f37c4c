"""A recorded run as records that a page can show: facts, curves, trees, games, models.

Nothing here is markup but the pictures; `page` renders the records.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import fsum
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup
from msgspec import to_builtins

from nip_fn.config.codec import differences, from_dict, get, params_hash, to_dict
from nip_fn.export.curves import (
    Spent,
    accuracy,
    charts,
    is_cut,
    is_right,
    is_undecided,
    percent,
    signed,
)
from nip_fn.export.svg import Chart, Colours, Series, draw_outcomes, draw_trees, value_bins
from nip_fn.game.decision import ACCEPT, REJECT, Decision
from nip_fn.game.episode import Episode, Utterance
from nip_fn.game.protocol import Protocol, Status
from nip_fn.params.agent import max_tokens
from nip_fn.params.run import HyperParameters
from nip_fn.prompts.chat import build_chat
from nip_fn.protocols.registry import protocol_of
from nip_fn.run.digest import digest
from nip_fn.run.replay import Replayed, StageForest, summary
from nip_fn.run.stages import Growing
from nip_fn.select.pairs import Pair
from nip_fn.training.registry import BACKUPS
from nip_fn.trees.rollouts import Rollout, leaf_games
from nip_fn.trees.tree import Tree, children_of

VERDICTS = {REJECT: "reject", ACCEPT: "accept"}
CLASSES = {REJECT: "buggy", ACCEPT: "right"}


class Limits(NamedTuple):
    """The most that one page shows.

    whole: nodes of all trees together, up to which all are shown.
    nodes: of the trees that are shown otherwise; one of each iteration is shown in any case.
    packed: nodes of trees beyond these, which the page holds compressed.
    games: of each kind (wrong, undecided, cut) in a test.
    problems: whose games before and after are compared.
    """

    whole: int = 3_000
    nodes: int = 1_000
    packed: int = 50_000
    games: int = 12
    problems: int = 8


ONE_PAGE = Limits()


class Said(NamedTuple):
    """A reply: who gave it, its text, and what is to be known of it beside the text."""

    agent: int
    speaker: str
    text: str
    notes: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """The number of its characters."""
        return len(self.text)


class Value(NamedTuple):
    """An agent's expected reward at a node, and its bin (`svg.value_bins`)."""

    letter: str  # of the agent
    written: str
    bin: int


class Mark(NamedTuple):
    """A reply that was chosen, or rejected, in pairs of an agent."""

    chosen: bool
    letter: str  # of the agent
    times: int


class Node(NamedTuple):
    """A node of a tree.

    said: the replies that led to it.
    values: expected rewards, by agent.
    marks: in pairs.
    end: (kind, words) if the game ends here; kinds as of `outcome_of`.
    copies: ends with the same words, rewards and no marks that are shown as this one.
    children: in their order.
    """

    said: tuple[Said, ...]
    values: tuple[Value, ...]
    marks: tuple[Mark, ...]
    end: tuple[str, str] | None
    copies: int
    children: tuple["Node", ...]


class TreeView(NamedTuple):
    """A tree with everything that is known of it."""

    id: str
    about: "About"
    nodes: int
    games: int
    right: str
    pairs: int
    pictures: tuple[tuple[str, Markup], ...]  # (agent, the tree in the colours of its values)
    root: Node


class About(NamedTuple):
    """The datapoint of a tree or a game."""

    id: str
    label: str
    question: str
    solution: str
    views: tuple[tuple[str, str], ...]


class ForestView(NamedTuple):
    """The trees of an iteration, as many as a page has room for.

    total, nodes: of the iteration.
    trees: those that are shown.
    packs: those that are held compressed, as many in each as are opened at a time.
    """

    iteration: int
    total: int
    nodes: int
    trees: tuple[TreeView, ...]
    packs: tuple[tuple[TreeView, ...], ...] = ()

    @property
    def held(self) -> int:
        """The number of trees in the page."""
        return len(self.trees) + sum(map(len, self.packs))


class Turn(NamedTuple):
    """An agent's last turn in a game: the chat that its model was shown, and its reply."""

    agent: int
    speaker: str
    model: str
    chat: tuple[tuple[str, str, str], ...]  # (role, speaker, text)
    reply: Said


class GameView(NamedTuple):
    """A game with the chats as its models saw them."""

    id: str
    about: About
    end: tuple[str, str]
    rewards: tuple[Value, ...]
    turns: tuple[Turn, ...]


class Listing(NamedTuple):
    """Games of a test that have something in common."""

    kind: str
    total: int
    games: tuple[GameView, ...]


class TestView(NamedTuple):
    """A test: its games that went wrong, by kind."""

    iteration: int
    games: int
    listings: tuple[Listing, ...]


class Episodes(NamedTuple):
    """The same problem in the first and in the last test."""

    id: str
    about: About
    outcomes: tuple[tuple[int, str], ...]  # (iteration, kind) of every test
    first: tuple[int, tuple[Said, ...], tuple[str, str]]
    last: tuple[int, tuple[Said, ...], tuple[str, str]]


class Changes(NamedTuple):
    """The outcomes of all problems in all tests, and what changed from the first to the last."""

    rows: tuple[tuple[str, Markup, str], ...]  # (test, its outcomes as a bar, the share of right)
    problems: int
    gained: int
    lost: int
    shown: tuple[Episodes, ...]


class AdapterView(NamedTuple):
    """An adapter of a lineage and the numbers of its training."""

    name: str
    iteration: int
    method: str
    parent: str
    reference: str
    data_hash: str
    serving: bool
    numbers: tuple[tuple[str, str], ...]


class GroupView(NamedTuple):
    """A model group and its lineage."""

    name: str
    agents: tuple[str, ...]
    model: str
    trainable: bool
    base_serves: bool
    adapters: tuple[AdapterView, ...]


class RunView(NamedTuple):
    """A run, ready to be shown; its fields are the parts of a page."""

    id: str
    name: str
    lede: str
    tiles: tuple[tuple[str, str, str], ...]  # (name, value, remark)
    facts: tuple[tuple[str, str], ...]
    faults: tuple[str, ...]
    agents: tuple[tuple[str, str, str, str], ...]  # (letter, name, role, model)
    charts: tuple[Chart, ...]
    accuracy: Series
    changes: Changes | None
    forests: tuple[ForestView, ...]
    tests: tuple[TestView, ...]
    groups: tuple[GroupView, ...]
    spent: tuple[Spent, ...]
    settings: tuple[tuple[str, str, str], ...]  # (address, value, default) where they differ
    data: Mapping[str, Any]


def view_run(
    name: str,
    replayed: Replayed,
    spent: Sequence[Spent],
    *,
    version: str,
    id: str = "r0",
    limits: Limits = ONE_PAGE,
) -> RunView:
    """The records of a run.

    Args:
        name: Of the run.
        replayed: The run, derived from its recording.
        spent: What it used and cost, by stage.
        version: Of nip-fn, that recorded it.
        id: A prefix of the page's anchors, different for each run on a page.
        limits: The most that the page shows.
    """
    state = replayed.state
    params, protocol = state.params, protocol_of(state.params)
    tests = [stage for stage in replayed.stages if stage.stage == "test"]
    return RunView(
        id=id,
        name=name,
        lede=_lede(replayed),
        tiles=_tiles(replayed, spent),
        facts=_facts(replayed, version),
        faults=state.faults,
        agents=tuple(
            (letter, spec.name, spec.role, own.model_name)
            for letter, spec, own in zip(
                _letters(protocol), protocol.agents, params.agents, strict=True
            )
        ),
        charts=charts(replayed, spent),
        accuracy=accuracy(state, name),
        changes=_changes(id, tests, limits),
        forests=forests(id, replayed, limits),
        tests=tuple(_test(id, stage, limits) for stage in tests[-1:]),
        groups=_groups(replayed),
        spent=_by_name(spent),
        settings=_settings(params),
        data=_data(name, replayed, spent),
    )


def short_names(names: Sequence[str]) -> tuple[str, ...]:
    """One or two capitals for each name, all different where the names allow it.

    >>> short_names(["prover0", "prover1", "verifier"])
    ('P0', 'P1', 'V')
    """
    firsts = Counter(name[:1] for name in names)
    return tuple(
        (name[:1] if firsts[name[:1]] == 1 else f"{name[:1]}{name[-1:]}").upper() for name in names
    )


def _letters(protocol: Protocol) -> tuple[str, ...]:
    return short_names([agent.name for agent in protocol.agents])


# ------------------------------------------------------------------------------------ what it is


def _lede(replayed: Replayed) -> str:
    state, stage = replayed.state, replayed.state.stage
    params = state.params
    models = ", ".join(dict.fromkeys(agent.model_name for agent in params.agents))
    if stage.name == "done":
        now = "It is finished."
    elif isinstance(stage, Growing):
        now = (
            f"It is under way: iteration {state.iteration}, {stage.name}, "
            f"{stage.num_waiting:,} replies to come."
        )
    else:
        now = f"It is under way: iteration {state.iteration}, {stage.name}."
    what = (
        f"{params.trainer.upper() if params.trainer in ('ei', 'malt') else params.trainer} over "
        f"{params.rl.num_iterations} iterations"
        if params.rl.num_iterations
        else "A test"
    )
    return f"{what} of {params.interaction_protocol} on {state.dataset.name} with {models}. {now}"


def _tiles(replayed: Replayed, spent: Sequence[Spent]) -> tuple[tuple[str, str, str], ...]:
    curve = accuracy(replayed.state).points
    tiles = []
    if curve:
        last = curve[-1]
        remark = f"{100 * (last.low or 0):.1f} to {100 * (last.high or 0):.1f} %"
        if len(curve) > 1:
            remark = f"from {100 * curve[0].y:.1f} %; {remark}"
        tiles.append(("Held-out accuracy", f"{100 * last.y:.1f} %", remark))
    tests = [stage for stage in replayed.stages if stage.stage == "test"]
    if tests:
        games = tests[-1].games()
        wrong = sum(not is_right(game) and not is_undecided(game) for game in games)
        undecided = sum(map(is_undecided, games))
        tiles.append(
            (
                "Wrong in the last test",
                f"{wrong:,}",
                f"of {len(games):,} games; {undecided:,} undecided",
            )
        )
    samples = [stage for stage in replayed.stages if stage.stage == "sample"]
    if samples:
        trees = [tree for stage in samples for tree in stage.batch.trees]
        nodes = sum(tree.num_nodes for tree in trees)
        tiles.append(("Trees", f"{len(trees):,}", f"{nodes:,} nodes"))
        pairs = sum(len(stage.selection.pairs) for stage in samples)
        if pairs:
            tiles.append(("Preference pairs", f"{pairs:,}", f"in {len(samples)} iterations"))
    costs = [one.dollars for one in spent]
    tokens = sum(one.prompt + one.completion for one in spent)
    cost = "price unknown" if None in costs else f"${fsum(c for c in costs if c):,.2f}"
    seconds = fsum(seconds for _, _, seconds in replayed.state.seconds)
    tiles.append(("Cost", cost, f"{_short(tokens)} tokens read and written"))
    tiles.append(("Time", _duration(seconds), "in stages that ended"))
    return tuple(tiles)


def _short(value: float) -> str:
    for size, name in ((1e9, "billion"), (1e6, "million")):
        if value >= size:
            return f"{value / size:.1f} {name}"
    return f"{value:,.0f}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{seconds:.1f} s"


def _facts(replayed: Replayed, version: str) -> tuple[tuple[str, str], ...]:
    state = replayed.state
    data = state.dataset
    return (
        ("Protocol", state.params.interaction_protocol),
        ("Trainer", state.params.trainer),
        (
            "Data",
            f"{data.name}: {data.train_size:,} train, {data.validation_size:,} validation, "
            f"{data.test_size:,} test; {data.hash}",
        ),
        ("Seed", str(state.params.seed)),
        ("Configuration", params_hash(state.params)),
        ("Recorded by", f"nip-fn {version}, format {state.format}"),
        ("Events", f"{replayed.num_events:,}"),
        (
            "Digest",
            f"{digest(state)} ({'DIFFERS from the recorded one' if state.faults else 'verified'})",
        ),
    )


def _settings(params: HyperParameters) -> tuple[tuple[str, str, str], ...]:
    usual = from_dict({"interaction_protocol": params.interaction_protocol}).unwrap()
    return tuple(
        (address, _shown(params, address), _shown(usual, address))
        for address in differences(params, usual)
    )


def _shown(params: HyperParameters, address: str) -> str:
    try:
        value = get(params, address)
    except KeyError:
        return "-"
    return (
        "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )


# -------------------------------------------------------------------------------------------- ends


def outcome_of(game: Rollout) -> tuple[str, str]:
    """(kind, words) of a game's end; the kinds are right, wrong, undecided and broken."""
    return _end(game.status, game.decision, game.datapoint.label)


def _end(status: Status, decision: Decision | None, label: int) -> tuple[str, str]:
    if decision is not None:
        told = VERDICTS.get(decision.discrete, "neither")
        words = told if decision.text == told else f"{decision.text} ({told})"
        kind = "right" if decision.discrete == label else "wrong"
        return kind, f"{words}: {kind}"
    if status == "aborted":
        return "broken", "broken off by an unusable reply"
    if status == "truncated":
        return "undecided", "undecided: out of rounds"
    return "undecided", "still open"


def _about(stage: StageForest, tree: int) -> About:
    point = stage.datapoint(tree)
    return About(point.id, CLASSES[point.label], point.question, point.solution, point.views)


def _said(params: HyperParameters, protocol: Protocol, one: Utterance) -> Said:
    agent = params.agents[one.agent]
    notes = (
        *((f"cut at {max_tokens(agent):,} tokens",) if one.token_limit else ()),
        *((f"unusable: {one.error.replace('_', ' ')}",) if one.error else ()),
        *((f"attempt {one.attempts}",) if one.attempts > 1 else ()),
    )
    return Said(one.agent, protocol.agents[one.agent].name, one.raw, notes)


# ------------------------------------------------------------------------------------------- trees


# Of trees that a browser opens at a time, in a second or so.
NODES_AT_ONCE = 6_000


def forests(id: str, replayed: Replayed, limits: Limits) -> tuple[ForestView, ...]:
    """The first trees of each iteration; all iterations have an equal part of the limits."""
    stages = [stage for stage in replayed.stages if stage.stage == "sample"]
    total = sum(nodes_of(stage.batch.trees) for stage in stages)
    found, shown, packed = [], limits.nodes, limits.packed
    for place, stage in enumerate(stages):
        trees, left = stage.batch.trees, len(stages) - place
        first = fitting(trees, 0, total if total <= limits.whole else shown // left)
        rest = fitting(trees, first.stop, packed // left, least=0)
        shown -= nodes_of(trees[: first.stop])
        packed -= nodes_of(trees[rest.start : rest.stop])
        found.append(view_forest(id, stage, first, parts(trees, rest)))
    return tuple(found)


def nodes_of(trees: Sequence[Tree]) -> int:
    """The number of nodes of all the trees."""
    return sum(tree.num_nodes for tree in trees)


def fitting(trees: Sequence[Tree], start: int, room: int, least: int = 1) -> range:
    """The trees from `start` on that have so many nodes together, `least` of them in any case."""
    stop = min(start + least, len(trees))
    total = nodes_of(trees[start:stop])
    while stop < len(trees) and (total := total + trees[stop].num_nodes) <= room:
        stop += 1
    return range(start, stop)


def parts(trees: Sequence[Tree], among: range) -> tuple[range, ...]:
    """The trees among these, as many at a time as a browser opens at once."""
    found, start = [], among.start
    while start < among.stop:
        found.append(fitting(trees[: among.stop], start, NODES_AT_ONCE))
        start = found[-1].stop
    return tuple(found)


def view_forest(
    id: str, stage: StageForest, shown: Sequence[int], packs: Sequence[Sequence[int]] = ()
) -> ForestView:
    """The trees of an iteration that have these indices."""
    pairs: dict[int, list[Pair]] = defaultdict(list)
    for pair in stage.selection.pairs:
        pairs[pair.tree].append(pair)

    def views(indices: Sequence[int]) -> tuple[TreeView, ...]:
        return tuple(_tree(id, stage, index, pairs[index]) for index in indices)

    return ForestView(
        iteration=stage.iteration,
        total=len(stage.batch.trees),
        nodes=nodes_of(stage.batch.trees),
        trees=views(shown),
        packs=tuple(map(views, packs)),
    )


def _tree(id: str, stage: StageForest, index: int, pairs: Sequence[Pair]) -> TreeView:
    batch, tree = stage.batch, stage.batch.trees[index]
    protocol = batch.protocol
    value_NA = BACKUPS[batch.params.malt.value_backup](tree)
    bins = [
        value_bins(value_NA[:, agent], protocol.reward_bounds(agent))
        for agent in range(len(protocol.agents))
    ]
    names = [agent.name for agent in protocol.agents]
    games = leaf_games(tree, stage.datapoint(index))
    own_pairs = [[pair for pair in pairs if pair.agent == agent] for agent in range(len(names))]
    pictures = draw_trees(
        tree,
        f"{id}-lines-{stage.iteration}-{index}",
        [
            Colours(
                f"Expected reward of {name} at each node; {len(own)} pairs",
                bins[agent],
                frozenset(pair.chosen for pair in own),
                frozenset(pair.rejected for pair in own),
            )
            for agent, (name, own) in enumerate(zip(names, own_pairs, strict=True))
        ],
    )
    return TreeView(
        id=f"{id}-tree-{stage.iteration}-{index}",
        about=_about(stage, index),
        nodes=tree.num_nodes,
        games=len(games),
        right=percent(fsum(map(is_right, games)) / len(games)),
        pairs=len(pairs),
        pictures=tuple(zip(names, pictures, strict=True)),
        root=_nodes(stage, index, tree, value_NA, bins, pairs),
    )


def _nodes(
    stage: StageForest,
    index: int,
    tree: Tree,
    value_NA: np.ndarray[Any, np.dtype[np.float64]],
    bins: Sequence[Sequence[int]],
    pairs: Sequence[Pair],
) -> Node:
    """The root, with all that is below it."""
    batch, label = stage.batch, stage.datapoint(index).label
    params, protocol = batch.params, batch.protocol
    letters = _letters(protocol)
    marked: Counter[tuple[int, bool, int]] = Counter()
    for pair in pairs:
        marked[pair.chosen, True, pair.agent] += 1
        marked[pair.rejected, False, pair.agent] += 1
    marks: dict[int, list[Mark]] = defaultdict(list)
    for (node, chosen, agent), times in marked.items():
        marks[node].append(Mark(chosen, letters[agent], times))
    values = value_NA.tolist()
    children = children_of(tree)

    def build(node: int) -> Node:
        status, said = tree.status_N[node], tree.utterances_N[node]
        decision = next((one.decision for one in said if one.decision is not None), None)
        end = None if children[node] else _end(status, decision, label)
        return Node(
            said=tuple(_said(params, protocol, one) for one in said),
            values=tuple(
                Value(letters[agent], signed(value), bins[agent][node])
                for agent, value in enumerate(values[node])
            ),
            marks=tuple(marks.get(node, ())),
            end=end,
            copies=1,
            children=tuple(_merged(build(child) for child in children[node])),
        )

    return build(0)


def _merged(nodes: Iterator[Node]) -> Iterator[Node]:
    """The nodes, equal ends without marks as one with the number of its copies."""
    ends: Counter[Node] = Counter()
    kept: list[Node] = []
    for node in nodes:
        if node.end and not node.marks:
            ends[node] += 1
            if ends[node] > 1:
                continue
        kept.append(node)
    return (node._replace(copies=ends[node]) if ends[node] > 1 else node for node in kept)


# ------------------------------------------------------------------------------------------- games


KINDS: dict[str, Callable[[Rollout], bool]] = {
    "wrong": lambda game: not is_right(game) and not is_undecided(game),
    "undecided": is_undecided,
    "cut": is_cut,
}


def _test(id: str, stage: StageForest, limits: Limits) -> TestView:
    games = [
        (tree, game)
        for tree, grown in enumerate(stage.batch.trees)
        for game in leaf_games(grown, stage.datapoint(tree))
    ]
    listings = []
    for kind, holds in KINDS.items():
        found = [(tree, game) for tree, game in games if holds(game)]
        shown = tuple(
            _game(f"{id}-{kind}-{place}", stage, tree, game)
            for place, (tree, game) in enumerate(found[: limits.games])
        )
        listings.append(Listing(kind, len(found), shown))
    return TestView(stage.iteration, len(games), tuple(listings))


def _game(id: str, stage: StageForest, tree: int, game: Rollout) -> GameView:
    params, protocol = stage.batch.params, stage.batch.protocol
    point = game.datapoint
    turns = []
    for agent in range(len(protocol.agents)):
        last = next(
            (
                (place, said)
                for place, turn in reversed(list(enumerate(game.rounds)))
                for said in turn
                if said.agent == agent
            ),
            None,
        )
        if last is not None:
            place, said = last
            before = Episode(game.key, point.label, point.stance, game.rounds[:place])
            chat = build_chat(params, point, before, agent)
            turns.append(
                Turn(
                    agent,
                    protocol.agents[agent].name,
                    said.model,
                    tuple((one.role, one.name or "", one.content) for one in chat),
                    _said(params, protocol, said),
                )
            )
    rewards = [
        Value(
            letter, signed(value), value_bins(np.array([value]), protocol.reward_bounds(agent))[0]
        )
        for agent, (letter, value) in enumerate(zip(_letters(protocol), game.returns, strict=True))
    ]
    return GameView(id, _about(stage, tree), outcome_of(game), tuple(rewards), tuple(turns))


# ------------------------------------------------------------------------------------ before, after


def _changes(id: str, tests: Sequence[StageForest], limits: Limits) -> Changes | None:
    """The outcomes of all problems that every test has; None without two tests."""
    if len(tests) < 2:
        return None
    by_test = [_outcomes(stage) for stage in tests]
    ids = [name for name in by_test[0] if all(name in own for own in by_test)]
    if not ids:
        return None
    # From the last test backwards, so that problems that ended alike lie together.
    ids.sort(key=lambda name: tuple(_ORDER[own[name]] for own in reversed(by_test)))
    rows = tuple(
        (
            f"test {stage.iteration}",
            draw_outcomes([_OUTCOME_CLASSES[own[name]] for name in ids]),
            percent(sum(own[name] == "right" for name in ids) / len(ids)),
        )
        for stage, own in zip(tests, by_test, strict=True)
    )
    first, last = by_test[0], by_test[-1]
    gained = [name for name in ids if first[name] != "right" and last[name] == "right"]
    lost = [name for name in ids if first[name] == "right" and last[name] != "right"]
    half = limits.problems // 2
    shown = (*gained[: limits.problems - min(half, len(lost))], *lost[:half])
    return Changes(
        rows=rows,
        problems=len(ids),
        gained=len(gained),
        lost=len(lost),
        shown=tuple(
            _episodes(f"{id}-problem-{place}", name, tests, by_test)
            for place, name in enumerate(shown)
        ),
    )


_ORDER = {"right": 0, "mixed": 1, "undecided": 2, "broken": 3, "wrong": 4}
_OUTCOME_CLASSES = {"right": "o1", "mixed": "o2", "undecided": "o3", "broken": "o3", "wrong": "o4"}


def _outcomes(stage: StageForest) -> dict[str, str]:
    """The outcome of all games about each datapoint, or mixed."""
    found: dict[str, set[str]] = {}
    for game in stage.games():
        found.setdefault(game.datapoint.id, set()).add(outcome_of(game)[0])
    return {name: own.pop() if len(own) == 1 else "mixed" for name, own in found.items()}


def _episodes(
    id: str, name: str, tests: Sequence[StageForest], by_test: Sequence[Mapping[str, str]]
) -> Episodes:
    def told(stage: StageForest) -> tuple[int, tuple[Said, ...], tuple[str, str]]:
        tree = stage.trees_about(name)[0]
        game = leaf_games(stage.batch.trees[tree], stage.datapoint(tree))[0]
        said = tuple(
            _said(stage.batch.params, stage.batch.protocol, one)
            for turn in game.rounds
            for one in turn
        )
        return stage.iteration, said, outcome_of(game)

    return Episodes(
        id=id,
        about=_about(tests[0], tests[0].trees_about(name)[0]),
        outcomes=tuple(
            (stage.iteration, own[name]) for stage, own in zip(tests, by_test, strict=True)
        ),
        first=told(tests[0]),
        last=told(tests[-1]),
    )


# ------------------------------------------------------------------------------------------ models


def _groups(replayed: Replayed) -> tuple[GroupView, ...]:
    state = replayed.state
    names = [agent.name for agent in state.params.agents]
    numbers: dict[tuple[int, str], dict[str, float]] = defaultdict(dict)
    for row in state.rows:
        for name, value in row.metrics:
            group, _, metric = name.partition(".")
            if row.stage in ("train", "publish") and metric:
                numbers[row.iteration, group][metric] = value
    return tuple(
        GroupView(
            name=group.name,
            agents=tuple(names[agent] for agent in group.agents),
            model=group.model,
            trainable=group.trainable,
            base_serves=group.serving is None,
            adapters=tuple(
                AdapterView(
                    name=one.name,
                    iteration=one.iteration,
                    method=one.method.upper(),
                    parent=one.parent or group.model,
                    reference=one.reference or group.model,
                    data_hash=one.data_hash,
                    serving=one.name == group.serving,
                    numbers=tuple(
                        (title, f"{numbers[one.iteration, group.name][metric]:,.4g}")
                        for title, metric in _TRAINING
                        if metric in numbers[one.iteration, group.name]
                    ),
                )
                for one in group.lineage
            ),
        )
        for group in state.groups
    )


_TRAINING = (
    ("rows", "rows"),
    ("loss at first", "loss_first"),
    ("loss at last", "loss_last"),
    ("KL", "kl"),
    ("canary gap", "canary_gap"),
)


def _by_name(spent: Sequence[Spent]) -> tuple[Spent, ...]:
    """Tokens and dollars of each agent and each training over the whole run."""
    found: dict[tuple[bool, str], list[Spent]] = defaultdict(list)
    for one in spent:
        found[one.stage == "train", one.name].append(one)
    return tuple(
        Spent(
            iteration=-1,
            stage="training" if training else "replies",
            name=name,
            model=own[0].model,
            prompt=sum(one.prompt for one in own),
            cached=sum(one.cached for one in own),
            completion=sum(one.completion for one in own),
            trained=fsum(one.trained for one in own),
            dollars=None
            if any(one.dollars is None for one in own)
            else fsum(one.dollars or 0.0 for one in own),
        )
        for (training, name), own in sorted(found.items())
    )


# -------------------------------------------------------------------------------------------- data


def _data(name: str, replayed: Replayed, spent: Sequence[Spent]) -> dict[str, Any]:
    """The numbers of the page, for programs."""
    state = replayed.state
    return {
        "run": name,
        "digest": digest(state),
        "faults": list(state.faults),
        "dataset": to_builtins(state.dataset),
        "stage": state.stage.name,
        "iteration": state.iteration,
        "parameters": to_dict(state.params),
        "iterations": [
            {
                key: round(value, 6) if isinstance(value, float) else value
                for key, value in record.items()
            }
            for record in summary(state)
        ],
        "lineage": {
            group.name: [to_builtins(adapter) for adapter in group.lineage]
            for group in state.groups
        },
        "usage": [one._asdict() for one in spent],
    }
