"""A recorded run, derived again: everything that a notebook or a paper asks of it.

>>> from nip_fn_adapters import load_run
>>> run = load_run("runs/malt-nip").unwrap()  # doctest: +SKIP
>>> pandas.DataFrame(run.games())  # doctest: +SKIP
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace
from numpy.typing import NDArray
from returns.result import Failure, Result, Success

from nip_fn.config.codec import to_dict
from nip_fn.errors import Problem, collect
from nip_fn.export.arrays import to_arrays
from nip_fn.export.transcripts import transcript
from nip_fn.game.protocol import Protocol
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.registry import protocol_of
from nip_fn.run.checkpoint import Recording
from nip_fn.run.digest import digest
from nip_fn.run.events import Forked, RunStarted
from nip_fn.run.replay import Replayed, StageForest, replay, summary
from nip_fn.run.stages import Purpose
from nip_fn.run.state import RunState
from nip_fn.training.groups import Adapter, Group, group_of
from nip_fn.trees.rollouts import Rollout, leaf_games
from nip_fn_adapters import extensions
from nip_fn_adapters.costs.note import prices_of_run
from nip_fn_adapters.costs.prices import Prices, PriceTable, listed_prices
from nip_fn_adapters.costs.spending import stage_expenses
from nip_fn_adapters.processes.cores import map_on_cores
from nip_fn_adapters.processes.garbage import rare_collections
from nip_fn_adapters.recording import store
from nip_fn_adapters.recording.store import CHECKPOINT

Columns = dict[str, list[Any]]  # for `pandas.DataFrame(...)` or `polars.DataFrame(...)`


class RecordedGame(NamedTuple):
    """A game of a run, with its stage and tree.

    stage: the stage and its forest.
    tree: the index of its tree in the forest.
    number: the index of the game among those of its tree, left to right.
    rollout: the game.
    """

    stage: StageForest
    tree: int
    number: int
    rollout: Rollout

    @property
    def is_wrong(self) -> bool:
        """True if the game was decided, and not as its label says."""
        decision = self.rollout.decision
        return decision is not None and decision.discrete != self.rollout.label


class WrongVerdicts(NamedTuple):
    """The games that were decided against the label of their datapoint.

    datapoints: the ids of their datapoints with the number of such games, most of them first.
    games: the games, in the order in which they were played.
    """

    datapoints: tuple[tuple[str, int], ...]
    games: tuple[RecordedGame, ...]


@dataclass(frozen=True, repr=False)
class Run:
    """A recorded run, derived again from its events.

    The methods that return columns give one list for each column, all of the same length, ready for
    `pandas.DataFrame` or `polars.DataFrame`.  Where a method takes `stage` and `iteration`, None
    stands for all of them.
    """

    path: Path
    """The checkpoint file."""
    recording: Recording
    """The events."""
    replayed: Replayed
    """The state at the end, and the forest of each stage of sampling or testing."""
    changed_sources: tuple[Problem, ...] = ()
    """The protocols, trainers, selectors and data sets of one's own whose source has changed."""

    @property
    def state(self) -> RunState:
        """The state after the last event."""
        return self.replayed.state

    @property
    def params(self) -> HyperParameters:
        """The run's parameters; `to_dict` of them is the written configuration."""
        return self.state.params

    @property
    def protocol(self) -> Protocol:
        """The game that was played."""
        return protocol_of(self.params)

    @property
    def faults(self) -> tuple[str, ...]:
        """The places where a recorded digest differs from the derived one; () if none does."""
        return self.state.faults

    @property
    def digest(self) -> str:
        """The digest of the state at the end."""
        return digest(self.state)

    def stages(
        self, stage: Purpose | None = None, iteration: int | None = None
    ) -> tuple[StageForest, ...]:
        """The forests of the stages "test" and "sample" that have ended, in their order."""
        return tuple(
            forest
            for forest in self.replayed.stages
            if stage in (None, forest.stage) and iteration in (None, forest.iteration)
        )

    def lineage(self, agent: str) -> tuple[Adapter, ...]:
        """The adapters of an agent's model group, oldest first."""
        return self._group(agent, self.state.groups).lineage

    def adapter(self, agent: str, iteration: int | None = None) -> Adapter | None:
        """The adapter that an agent played with in an iteration, or the last that was trained.

        None for the base model.  Of an iteration that has played nothing it is the one that is
        served at the end.
        """
        lineage = self.lineage(agent)
        if iteration is None:
            return lineage[-1] if lineage else None
        played = self.stages(None, iteration)
        groups = played[0].batch.groups if played else self.state.groups
        serving = self._group(agent, groups).serving
        return next((adapter for adapter in lineage if adapter.name == serving), None)

    def _group(self, agent: str, groups: Sequence[Group]) -> Group:
        members = [spec.name for spec in self.params.agents]
        return group_of(groups, members.index(agent))

    def rollouts(
        self, stage: Purpose | None = None, iteration: int | None = None
    ) -> tuple[RecordedGame, ...]:
        """All whole games, stage by stage and tree by tree."""
        return tuple(
            RecordedGame(forest, tree, number, rollout)
            for forest in self.stages(stage, iteration)
            for tree, grown in enumerate(forest.batch.trees)
            for number, rollout in enumerate(leaf_games(grown, forest.datapoint(tree)))
        )

    def transcripts(
        self, stage: Purpose | None = None, iteration: int | None = None
    ) -> tuple[dict[str, Any], ...]:
        """The games as plain records, with all that was said (see `export.transcripts`)."""
        return tuple(
            {**_place(game), **transcript(self.params, game.rollout)}
            for game in self.rollouts(stage, iteration)
        )

    def wrong_verdicts(
        self, stage: Purpose | None = "test", iteration: int | None = None
    ) -> WrongVerdicts:
        """The games that the verifier decided against the label, those of tests by default."""
        games = tuple(game for game in self.rollouts(stage, iteration) if game.is_wrong)
        counts = Counter(game.rollout.datapoint.id for game in games)
        return WrongVerdicts(tuple(counts.most_common()), games)

    def to_arrays(
        self, stage: Purpose | None = None, iteration: int | None = None
    ) -> dict[str, NDArray[Any]]:
        """The games as the arrays of `nip_fn.export.to_arrays`, in the order of `rollouts`."""
        games = self.rollouts(stage, iteration)
        return to_arrays(self.params, [game.rollout for game in games])

    # ------------------------------------------------------------------------------------- columns

    def games(self) -> Columns:
        """Columns with a row for each game.

        iteration, stage, datapoint, tree, game (its number in the tree), label and decision (1
        right, 0 buggy), confidence (-1 to 1), correct, end, rounds, and `reward.AGENT` in all.
        Decision, confidence and correct are None in games that were not decided.
        """
        rewards = (f"reward.{agent.name}" for agent in self.protocol.agents)
        return _columns((*_GAME, *rewards), (self._game_row(game) for game in self.rollouts()))

    def rounds(self) -> Columns:
        """Columns with a row for each utterance of each game.

        The place of its game (as in `games`), round, agent, text (as the model wrote it), error
        (why it could not be used), decision (its words), attempts, model, prompt_tokens,
        completion_tokens, reward (of the agent, for that round).

        Games of one tree share the utterances of their common rounds: to count tokens, use `usage`.
        """
        return _columns(_ROUND, (row for game in self.rollouts() for row in self._round_rows(game)))

    def pairs(self) -> Columns:
        """Columns with a row for each preference pair that was selected.

        iteration, datapoint, tree, agent, parent (its node in the tree), chosen and rejected (the
        texts), chosen_value and rejected_value (expected rewards).
        """
        stages = self.stages("sample")
        return _columns(_PAIR, (row for stage in stages for row in self._pair_rows(stage)))

    def metrics(self) -> Columns:
        """Columns with a row for each metric of each stage: iteration, stage, name, value."""
        rows = (
            {"iteration": row.iteration, "stage": row.stage, "name": name, "value": value}
            for row in self.state.rows
            for name, value in row.metrics
        )
        return _columns(("iteration", "stage", "name", "value"), rows)

    def usage(self, prices: Prices | None = None) -> Columns:
        """Columns with a row for each agent, or each trained group, of each stage that has ended.

        iteration, stage, name, model, prompt_tokens, cached_tokens (of these), completion_tokens,
        trained_tokens, dollars (None if the price is unknown).  Without `prices` they are those
        that were given for the run, and those that nip-fn lists.
        """
        of_run = prices_of_run(self.path.parent).value_or(PriceTable())
        all_prices = prices or Prices(of_run, listed_prices())
        rows = (
            {
                "iteration": row.iteration,
                "stage": row.stage,
                "name": spent.name,
                "model": spent.model,
                **{f"{sort}_tokens": number for sort, number in spent.tokens._asdict().items()},
                "dollars": spent.dollars,
            }
            for row in self.state.rows
            for spent in stage_expenses(self.params, row, all_prices)
        )
        return _columns(_USAGE, rows)

    def _game_row(self, game: RecordedGame) -> dict[str, Any]:
        rollout, decision = game.rollout, game.rollout.decision
        names = [agent.name for agent in self.protocol.agents]
        return {
            **_place(game),
            "label": rollout.label,
            "decision": decision and decision.discrete,
            "confidence": decision and decision.continuous,
            "correct": None if decision is None else not game.is_wrong,
            "end": rollout.status,
            "rounds": len(rollout.rounds),
            **{
                f"reward.{name}": total
                for name, total in zip(names, rollout.returns or [0.0] * len(names), strict=True)
            },
        }

    def _round_rows(self, game: RecordedGame) -> Iterator[dict[str, Any]]:
        for number, (turn, rewards) in enumerate(
            zip(game.rollout.rounds, game.rollout.rewards, strict=True)
        ):
            for utterance in turn:
                yield {
                    **_place(game),
                    "round": number,
                    "agent": self.protocol.agents[utterance.agent].name,
                    "text": utterance.raw,
                    "error": utterance.error,
                    "decision": utterance.decision and utterance.decision.text,
                    "attempts": utterance.attempts,
                    "model": utterance.model,
                    "prompt_tokens": utterance.prompt_tokens,
                    "completion_tokens": utterance.completion_tokens,
                    "reward": rewards[utterance.agent],
                }

    def _pair_rows(self, stage: StageForest) -> Iterator[dict[str, Any]]:
        for pair in stage.selection.pairs:
            texts = {
                node: stage.batch.utterance(pair.tree, node, pair.agent).raw
                for node in (pair.chosen, pair.rejected)
            }
            yield {
                "iteration": stage.iteration,
                "datapoint": stage.datapoint(pair.tree).id,
                "tree": pair.tree,
                "agent": self.protocol.agents[pair.agent].name,
                "parent": pair.parent,
                "chosen": texts[pair.chosen],
                "rejected": texts[pair.rejected],
                "chosen_value": pair.chosen_value,
                "rejected_value": pair.rejected_value,
            }

    # --------------------------------------------------------------------------------------- shown

    def _facts(self) -> dict[str, str]:
        state, params = self.state, self.params
        return {
            "protocol": params.interaction_protocol,
            "trainer": params.trainer,
            "data": state.dataset.name,
            "models": ", ".join(dict.fromkeys(agent.model_name for agent in params.agents)),
            "stage": f"{state.stage.name}, iteration {state.iteration}",
            "events": f"{self.replayed.num_events:,}",
            "digest": f"{self.digest}{' DIFFERS FROM THE RECORDED ONE' if self.faults else ''}",
        }

    def __repr__(self) -> str:
        """A line that says what the run is and how far it is."""
        facts = self._facts()
        shown = ", ".join(facts[name] for name in ("protocol", "trainer", "data", "stage"))
        return f"<Run {self.path.parent}: {shown}, {facts['events']} events>"

    def _repr_html_(self) -> str:
        """Two tables for a notebook: what the run is, and its iterations."""
        split = self.params.test_dataset_split
        shown = ("iteration", f"{split}.accuracy", "sample.nodes", "seconds")
        facts = "".join(
            f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>"
            for name, value in {"run": str(self.path.parent), **self._facts()}.items()
        )
        head = "".join(f"<th>{escape(name)}</th>" for name in shown)
        rows = "".join(
            f"<tr>{''.join(f'<td>{_cell(record.get(name))}</td>' for name in shown)}</tr>"
            for record in summary(self.state)
        )
        return f"<table>{facts}</table><table><tr>{head}</tr>{rows}</table>"


def load_run(
    path: Path | str, runs: Path | str = "runs", *, trust: bool = False
) -> Result[Run, Problem]:
    """A recorded run, derived again.

    Args:
        path: A run's folder, its checkpoint file, or its name.
        runs: The folder in which a name is looked for.
        trust: Run the Python code that the recording names, even if you never named it yourself.

    Returns:
        The run, also one that has not ended or whose last event is torn.  A failure says why there
        is none: no such file, a damaged one, or a protocol of one's own that cannot be loaded.
        `Run.faults` and `Run.changed_sources` tell of a run that is derived, but not as it was.
    """
    file = checkpoint_file(Path(path), Path(runs))
    return file.bind(
        lambda checkpoint: begun(checkpoint).bind(
            # A torn tail is no reason to refuse: whoever looks at a run under way finds one.
            lambda recording: derive(recording, trust=trust).map(
                lambda replayed: Run(checkpoint, recording, replayed, changed_sources(recording))
            )
        )
    )


def begun(path: Path, limit: int | None = None) -> Result[Recording, Problem]:
    """The events in a checkpoint, or the first `limit`; a failure if it holds none at all."""

    def check(recording: Recording) -> Result[Recording, Problem]:
        if recording.events or limit == 0:
            return Success(recording)
        remedy = "resume it with the settings that it was started with, or name another run"
        return Failure(Problem("holds no event of a run", str(path), remedy, kind="truncated"))

    with rare_collections():
        return store.read_recording(path, limit).bind(check)


def checkpoint_file(path: Path, runs: Path) -> Result[Path, Problem]:
    """The checkpoint of a run that is given as its folder, its checkpoint file, or its name."""
    for file in (path, path / CHECKPOINT, runs / path / CHECKPOINT):
        if file.is_file():
            return Success(file)
    # `nip-fn eval` and `nip-fn attack` make folders of runs.
    remedy = next(
        (
            known_runs(folder)
            for folder in (path, runs / path)
            if any(folder.glob(f"*/{CHECKPOINT}"))
        ),
        known_runs(runs),
    )
    return Failure(Problem("there is no such run", str(path), remedy, kind="run"))


def known_runs(runs: Path) -> str:
    """The names of the runs in a folder, as a remedy for a name that is none of them."""
    names = sorted(path.parent.name for path in runs.glob(f"*/{CHECKPOINT}"))
    return f"the runs in {runs} are: {', '.join(names)}" if names else f"there is no run in {runs}"


def derive(recording: Recording, *, trust: bool = False) -> Result[Replayed, Problem]:
    """The replay of a recording; its own protocol, trainer and selector are loaded first.

    With `trust` their code is run whoever wrote it; otherwise only code that the user has named.
    """
    loading = collect(_register(begun, trust) for begun in beginnings(recording))
    derived = loading.bind(lambda _: _replayed(recording))
    return derived.map(partial(_with_causes, recording)).alt(partial(_with_cause, recording))


def _replayed(recording: Recording) -> Result[Replayed, Problem]:
    try:
        with rare_collections():
            return replay(recording.events, map=map_on_cores)
    except Exception as error:
        # The bug of a source that was edited since is no bug of this program.
        if not changed_sources(recording):
            raise
        return Failure(Problem(f"{type(error).__name__}: {error}", kind="mismatch"))


def _register(begun: RunStarted | Forked, trust: bool) -> Result[None, Problem]:
    table = to_dict(begun.params)
    registered = extensions.register(table, trust=trust, recorded=begun.sources)
    known = registered.bind(lambda _: extensions.known(table))
    return known.alt(lambda problem: problem.of("mismatch"))


def _with_causes(recording: Recording, replayed: Replayed) -> Replayed:
    """The run; its faults name the sources that have changed since it was started."""
    state = replayed.state
    causes = "; ".join(map(str, changed_sources(recording))) if state.faults else ""
    if not causes:
        return replayed
    faults = tuple(f"{fault}; {causes}" for fault in state.faults)
    return replayed._replace(state=replace(state, faults=faults))


def _with_cause(recording: Recording, problem: Problem) -> Problem:
    """The problem of a run that cannot be derived, with the sources that have changed since."""
    # Its event, or its traceback, would be a riddle to somebody who has edited his protocol.
    changed = [
        change for change in changed_sources(recording) if change.problem not in problem.problem
    ]
    if not changed:
        return problem
    causes = "; ".join(f"{change.address}: {change.problem}" for change in changed)
    return dataclasses.replace(
        problem, problem=f"{problem.problem}; {causes}", remedy=changed[0].remedy
    )


def changed_sources(recording: Recording) -> tuple[Problem, ...]:
    """A problem for each of the run's own values whose source has changed since it was started."""
    recorded = {pair: None for begun in beginnings(recording) for pair in begun.sources}
    return extensions.changed_sources(tuple(recorded))


def beginnings(recording: Recording) -> tuple[RunStarted | Forked, ...]:
    """The first event, and the forks after it."""
    return tuple(event for event in recording.events if isinstance(event, RunStarted | Forked))


def start_of(recording: Recording) -> RunStarted | None:
    """The first event; None if the writer died before it."""
    first = next(iter(recording.events), None)
    return first if isinstance(first, RunStarted) else None


def _place(game: RecordedGame) -> dict[str, Any]:
    """The columns that say where a game was played."""
    return {
        "iteration": game.stage.iteration,
        "stage": game.stage.stage,
        "datapoint": game.rollout.datapoint.id,
        "tree": game.tree,
        "game": game.number,
    }


_PLACE = ("iteration", "stage", "datapoint", "tree", "game")
_GAME = (*_PLACE, "label", "decision", "confidence", "correct", "end", "rounds")
_ROUND = (
    *(*_PLACE, "round", "agent", "text", "error", "decision", "attempts", "model"),
    *("prompt_tokens", "completion_tokens", "reward"),
)
_PAIR = (
    *("iteration", "datapoint", "tree", "agent", "parent", "chosen", "rejected"),
    *("chosen_value", "rejected_value"),
)
_USAGE = (
    *("iteration", "stage", "name", "model", "prompt_tokens", "cached_tokens"),
    *("completion_tokens", "trained_tokens", "dollars"),
)


def _columns(names: Iterable[str], rows: Iterable[dict[str, Any]]) -> Columns:
    """The records as one list for each of their fields, which are there without any record, too."""
    columns: Columns = {name: [] for name in names}
    for row in rows:
        for name, value in row.items():
            columns[name].append(value)
    return columns


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return escape(f"{value:.4g}" if isinstance(value, float) else str(value))
