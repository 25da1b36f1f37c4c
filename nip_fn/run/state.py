"""The state of a run, as one frozen record, and the functions that read it."""

from functools import partial
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from nip_fn.config.groups import is_due
from nip_fn.config.resolve import DEFAULTS, Resolved
from nip_fn.game.datapoint import Datapoint
from nip_fn.game.episode import Episode, reset
from nip_fn.game.protocol import Protocol
from nip_fn.keys import Key, fold_in, key
from nip_fn.metrics.formulas import Metrics
from nip_fn.metrics.usage import Usage
from nip_fn.params.agent import is_scripted, meets_others
from nip_fn.params.run import HyperParameters
from nip_fn.prompts.chat import build_chat
from nip_fn.run.events import DatasetInfo
from nip_fn.run.forest import Forest
from nip_fn.run.opponents import Script, is_learnt_from, player_of
from nip_fn.run.stages import Growing, JobState, NotStarted, Publishing, Stage, StageName, Training
from nip_fn.training.groups import Group, group_of
from nip_fn.training.trainer import SampleBatch, Trainer
from nip_fn.trees.grow import Rules, Turn
from nip_fn.trees.tree import Tree


class StageMetrics(msgspec.Struct, frozen=True, array_like=True):
    """The metrics of one stage, and the tokens that it used."""

    iteration: int
    stage: StageName
    metrics: Metrics
    usage: tuple[Usage, ...] = ()


class Origin(NamedTuple):
    """The replies that a fork took over.

    run: the name of the run that asked for them.
    iteration: of both runs.
    games: the key of the stage in which they were sampled.
    """

    run: str
    iteration: int
    games: Key


class RunState(msgspec.Struct, frozen=True):
    """All that is known of a run.

    params, dataset: as the run was started with.
    resolved: the values that `params` name, looked up when the run started; not in the digest.
    iteration: counted from 0.
    stage: the stage under way, with what belongs to it.
    groups: the model groups, with their adapters.
    trainer_state: of `trainer`.
    num_drawn: places of the train split's epochs that earlier iterations took.
    rows: one for each stage that ended, in their order.
    past: the digest at the end of the last stage.
    origin: the run that this one is a fork of, if it is one; not in the digest.
    seconds: (iteration, stage, seconds) of each ended stage; not in the digest.
    faults: where a recorded digest and its derivation disagree; not in the digest.
    """

    # The defaults describe no run.  They make `EMPTY` a state like any other, so that a scan begins
    # with a record and not with None.
    params: HyperParameters = HyperParameters()
    # By name in the digest, through `params`: functions have no digest.
    resolved: Resolved = DEFAULTS
    dataset: DatasetInfo = DatasetInfo("", "", 0, 0, 0)
    iteration: int = 0
    stage: Stage = NotStarted()
    groups: tuple[Group, ...] = ()
    # Each trainer has a type of state of its own, which a run carries and never looks into.
    trainer_state: Any = None
    num_drawn: int = 0
    rows: tuple[StageMetrics, ...] = ()
    past: str = ""
    origin: Origin | None = None
    # Neither of the next two is a fact of the experiment: a replay must derive the digests of the
    # run however long it takes, and however many differences it has found before.
    seconds: tuple[tuple[int, StageName, float], ...] = ()
    faults: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """The state in a line: where the run is."""
        params = self.params
        return (
            f"RunState({params.interaction_protocol} by {params.trainer}, iteration "
            f"{self.iteration} of {params.rl.num_iterations}, stage {self.stage.name})"
        )

    @property
    def protocol(self) -> Protocol:
        """The game that is played."""
        return self.resolved.protocol

    @property
    def trainer(self) -> Trainer[Any]:
        """The way in which its agents learn."""
        return self.resolved.trainer

    @property
    def sampled(self) -> Growing | None:
        """The trees of the stage under way, or those that it trains on; None if it has none."""
        match self.stage:
            case Growing():
                return self.stage
            case Training(sampled=sampled):
                return sampled
        return None

    @property
    def forest(self) -> Forest:
        """The trees of `sampled`; without any if there are none."""
        return self.sampled.forest if self.sampled else Forest()

    @property
    def jobs(self) -> tuple[JobState, ...]:
        """The trainings of the stage under way; () if it has none."""
        return self.stage.jobs if isinstance(self.stage, Training | Publishing) else ()


EMPTY = RunState()


def stage_key(state: RunState, stage: StageName | None = None) -> Key:
    """The key of the stage under way, or of another one of the same iteration."""
    # By name and iteration, not by a count of stages: a run that tests more often still samples the
    # same trees.
    return fold_in(key(state.params.seed), stage or state.stage.name, state.iteration)


def rules(state: RunState) -> Rules:
    """The rules by which the trees of the stage grow: in a test, plain dialogues by default."""
    params = state.params
    # Tests measure the policy, where branching would only buy correlated games, unless they search
    # among the replies themselves.
    is_tree = state.stage.name == "sample" or params.text_rl.test_trees
    branching = partial(_branching, state) if is_tree else _one_reply
    return Rules(
        protocol=state.protocol,
        branching=branching,
        # In spite of its name the parameter counts attempts, the first one included, as in the
        # *nip* library.
        attempts=tuple(agent.num_invalid_generation_retries for agent in params.agents),
        simultaneous_branching=params.malt.simultaneous_branching,
    )


def _one_reply(turns: object) -> int:
    return 1


def _branching(state: RunState, turns: tuple[Turn, ...]) -> int:
    """The replies that the trainer wants of each agent that moves."""
    marked = tuple(turn._replace(trained=_is_trained(state, turn)) for turn in turns)
    return state.trainer.branching(state.trainer_state, marked)


def _is_trained(state: RunState, turn: Turn) -> bool:
    """True if the agent is due, and plays its present model in that game."""
    group = group_of(state.groups, turn.agent)
    due = is_due(state.params, group, state.iteration)
    return due and player(state, turn.game, turn.agent) == group.serving


def adapter_of(state: RunState, game: Key, agent: int) -> str | None:
    """The adapter that an agent plays with in a game of the stage; None: the base, or a script."""
    playing = player(state, game, agent)
    return None if isinstance(playing, Script) else playing


def player(state: RunState, game: Key, agent: int) -> str | Script | None:
    """The adapter (None: the base model) or the script by which an agent plays a game."""
    parameters = state.params.agents[agent]
    if is_scripted(parameters):
        return Script(parameters.model_name)
    group = group_of(state.groups, agent)
    # The one that is served, which is not always the group's latest (with `switch_adapters` off the
    # control goes on sampling with the model that it began with), or one that was served before.
    # A test plays the present models alone.
    if state.stage.name == "test":
        return group.serving
    return player_of(state.params, group, agent, game)


def with_row(state: RunState, metrics: Metrics, usage: tuple[Usage, ...] = ()) -> RunState:
    """The state with the metrics of the stage under way, and the tokens that it used."""
    row = StageMetrics(state.iteration, state.stage.name, metrics, usage)
    return replace(state, rows=(*state.rows, row))


def is_tested(params: HyperParameters, iteration: int) -> bool:
    """True if the model after `iteration` trainings is tested."""
    # "Last" is the model after the last training.  The *nip* library leaves its loop before that
    # training, so its N iterations are N - 1 trainings.
    first, last = iteration == 0, iteration == params.rl.num_iterations
    return {
        "none": False,
        "all": True,
        "last": last,
        "first_and_last": first or last,
    }[params.text_rl.test_scheme]


def sample_batch(
    state: RunState, grown: Growing, trees: tuple[Tree, ...] | None = None
) -> SampleBatch:
    """The trees of a stage, those of its forest by default, as a trainer takes them."""
    # Whatever reads trees reads arrays.  The persistent nodes are for growing alone: a new reply
    # copies a path in them, where arrays would have to be copied whole.
    trees = grown.forest.arrays() if trees is None else trees
    return SampleBatch(
        protocol=state.protocol,
        chat=partial(build_chat, state.params, state.protocol),
        groups=state.groups,
        datapoints=grown.datapoints,
        trees=trees,
        iteration=state.iteration,
        off_policy=_off_policy(state, trees) if grown.name == "sample" else frozenset(),
    )


def _off_policy(state: RunState, trees: tuple[Tree, ...]) -> frozenset[tuple[int, int]]:
    """(tree, agent) for each tree in which an earlier model or a script played the agent's part."""
    if not any(map(meets_others, state.params.agents)):
        return frozenset()
    return frozenset(
        (index, agent)
        for index, tree in enumerate(trees)
        for group in state.groups
        for agent in group.agents
        if not is_learnt_from(state.params, group, agent, tree.key)
    )


def answered_datapoint(state: RunState, tree: int) -> Datapoint:
    """The datapoint of a tree of the stage, in which an answer is to be checked.

    Raises:
        ValueError: No trees grow in this stage.
    """
    if not isinstance(state.stage, Growing):
        raise ValueError(f"no trees grow in stage {state.stage.name!r}")
    return state.stage.datapoints[state.stage.forest[tree].datapoint_index]


def episode_of(grown: Growing, tree: int) -> Episode:
    """The game at the root of a tree of the stage."""
    game = grown.forest[tree]
    # Not kept in the state: the game at a root follows from its datapoint and its key, and a second
    # copy of a fact can disagree with the first.
    return reset(grown.datapoints[game.datapoint_index], game.key)
