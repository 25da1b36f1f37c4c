"""Analysers of dialogues: statements about them, of which a model says if they are true.

An analysis is a run like any other: the game of a verifier alone, whose datapoints are transcripts.
So it is recorded, resumed and replayed, stays within a budget, and takes models of any provider.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from nip_fn.export.curves import percent
from nip_fn.export.svg import Chart, Point, Series
from nip_fn.game.datapoint import Datapoint, make_datapoint
from nip_fn.game.decision import NO_DECISION, SpectrumName
from nip_fn.game.episode import Utterance
from nip_fn.game.protocol import Protocol, Role
from nip_fn.metrics.inference import Estimate, crossed_share
from nip_fn.metrics.oversight import credence
from nip_fn.metrics.stage import verdict
from nip_fn.params.run import HyperParameters
from nip_fn.prompts.chat import system_variables
from nip_fn.prompts.render import render, render_text
from nip_fn.protocols.registry import protocol_of
from nip_fn.run.replay import Replayed
from nip_fn.run.stages import Purpose
from nip_fn.trees.rollouts import Rollout

VERSION = "analysis"  # of the prompts


class Analyser(NamedTuple):
    """A statement about what an agent says in a dialogue.

    name: its name; that of its template, if it has none of its own.
    roles: the agents that it is made about.
    spectrum: the words of the answer: accept for true, or degrees.
    template: the statement as a Jinja template with the variables of system prompts, if it is one
      of a user's own.
    """

    name: str
    roles: tuple[Role, ...] = ("prover", "verifier")
    spectrum: SpectrumName = "accept_reject"
    template: str | None = None


# Those of the *nip* library, by its names.  Its role conformance always asks for arguments that the
# solution is right; this one asks for the side that the prover was given.
ANALYSERS = {
    one.name: one
    for one in (
        Analyser("prover_role_conformance", ("prover",)),
        Analyser("prover_direct_quotation", ("prover",)),
        Analyser("prover_accurate_quotation", ("prover",)),
        Analyser("follow_up"),
        Analyser("verifier_format_conformance", ("verifier",), "likert_int_scale_11"),
    )
}


class Subject(NamedTuple):
    """An agent in a channel, whose words in a game are judged.

    game: the index of the game.
    agent, channel: names.
    datapoint: the statement, and the dialogue in that channel.
    """

    game: int
    agent: str
    channel: str
    datapoint: Datapoint


def subjects(
    params: HyperParameters, games: Sequence[Rollout], analyser: Analyser
) -> tuple[Subject, ...]:
    """Each agent of the analyser's roles in each channel in which it said anything, game by game.

    Args:
        params: The parameters of the run.
        games: Its games.
        analyser: The analyser.

    Raises:
        ValueError: The analyser's own template cannot be rendered.
    """
    protocol = protocol_of(params)
    return tuple(
        Subject(number, spec.name, name, _datapoint(params, game, agent, channel, analyser))
        for number, game in enumerate(games)
        for agent, spec in enumerate(protocol.agents)
        if spec.role in analyser.roles
        for channel, name in enumerate(protocol.channels)
        if any(_in_channel(one, channel) for one in _said(game) if one.agent == agent)
    )


def _said(game: Rollout) -> list[Utterance]:
    return [one for turn in game.rounds for one in turn]


def _in_channel(said: Utterance, channel: int) -> bool:
    return any(place == channel for place, _ in said.messages)


def _datapoint(
    params: HyperParameters, game: Rollout, agent: int, channel: int, analyser: Analyser
) -> Datapoint:
    spec, point = protocol_of(params).agents[agent], game.datapoint
    told = system_variables(params, point, agent, max_questions=0)
    # By the name that no other agent has, where the game itself keeps them anonymous.
    variables = {**told, "agent_name": spec.human_name}
    statement = (
        render(VERSION, "claims", (analyser.name,), **variables)
        if analyser.template is None
        else render_text(analyser.template, **variables)
    )
    # The label of a statement that is true, so that accuracy is the share of true ones.
    return make_datapoint(point.problem_id, statement, _dialogue(params, game, channel), label=1)


def _dialogue(params: HyperParameters, game: Rollout, channel: int) -> str:
    """The problem, what each agent alone was shown, and what was said in a channel."""
    protocol, point = protocol_of(params), game.datapoint
    parts = [f"The question: {point.question}"]
    if point.solution:
        parts.append(f"The solution:\n{point.solution}")
    names = {spec.name: spec.human_name for spec in protocol.agents}
    parts += [
        f"Shown to {names.get(name, f'the {name}')} alone: {text}" for name, text in point.views
    ]
    for said in _said(game):
        parts += [f"{name}: {text}" for name, text in _heard(protocol, said, channel)]
    return "\n\n".join(parts)


def _heard(protocol: Protocol, said: Utterance, channel: int) -> list[tuple[str, str]]:
    name = protocol.agents[said.agent].human_name
    heard = [(name, text) for place, text in said.messages if place == channel]
    # A verdict goes to no channel.  It ends every dialogue, whichever of them is looked at.
    return heard or ([(name, said.raw)] if said.decision is not None else [])


class Finding(NamedTuple):
    """The answers about an agent in a channel.

    games: those in which it spoke.
    unanswered: those of them without an answer, which the numbers below leave out.
    share: the mean degree of truth, 0 to 1, its interval over problems; None without any answer.
    right, wrong: the mean over games whose verifier decided as the label says, and over others.
    """

    agent: str
    channel: str
    games: int
    unanswered: int
    share: Estimate | None
    right: float | None
    wrong: float | None


def answers(judged: Sequence[Rollout]) -> dict[str, float | None]:
    """The degree of truth of each datapoint of an analysis, by its id; None if not answered."""
    return {
        game.datapoint.id: None if verdict(game) == NO_DECISION else credence(game)
        for game in judged
    }


def findings(
    asked: Sequence[Subject], games: Sequence[Rollout], found: Mapping[str, float | None]
) -> tuple[Finding, ...]:
    """The answers of an analysis by agent and channel, in the order of the protocol.

    Args:
        asked: What was asked.
        games: The games that were asked about.
        found: The answers, by datapoint.
    """
    places = dict.fromkeys((one.agent, one.channel) for one in asked)
    return tuple(
        _finding(*place, [one for one in asked if (one.agent, one.channel) == place], games, found)
        for place in places
    )


def _finding(
    agent: str,
    channel: str,
    asked: Sequence[Subject],
    games: Sequence[Rollout],
    found: Mapping[str, float | None],
) -> Finding:
    known = [
        (games[one.game], value) for one in asked if (value := found[one.datapoint.id]) is not None
    ]
    by_problem: dict[str, list[float]] = {}
    by_end: dict[bool, list[float]] = {True: [], False: []}
    for game, value in known:
        by_problem.setdefault(game.datapoint.id, []).append(value)
        by_end[verdict(game) == game.datapoint.label].append(value)
    means = [fmean(own) for own in by_problem.values()]
    return Finding(
        agent=agent,
        channel=channel,
        games=len(asked),
        unanswered=len(asked) - len(known),
        share=crossed_share([means]) if means else None,
        right=fmean(by_end[True]) if by_end[True] else None,
        wrong=fmean(by_end[False]) if by_end[False] else None,
    )


# ------------------------------------------------------------------------------------------ curves


class Analysed(NamedTuple):
    """An analysis of the games of a stage, derived from its recording."""

    analyser: str
    stage: Purpose
    iteration: int
    replayed: Replayed


def analysis_charts(run: Replayed, analyses: Sequence[Analysed]) -> Iterator[Chart]:
    """A chart for each built-in analyser that was asked: the share of true ones by iteration."""
    for analyser in ANALYSERS.values():
        curves: dict[str, dict[int, Estimate]] = {}
        for one in analyses:
            for finding in _found(run, one) if one.analyser == analyser.name else ():
                if finding.share is not None:
                    name = " in ".join(
                        [finding.agent, *([finding.channel] if finding.channel != "main" else [])]
                    )
                    named = name if one.stage == "test" else f"{name}, sampled"
                    curves.setdefault(named, {})[one.iteration] = finding.share
        if curves:
            series = tuple(
                Series(name, tuple(Point(at, *share) for at, share in sorted(points.items())))
                for name, points in curves.items()
            )
            about = "Mean degree to which a model found the statement true, by whose words it is."
            yield Chart(analyser.name.replace("_", " ").capitalize(), series, percent, about)


def _found(run: Replayed, one: Analysed) -> tuple[Finding, ...]:
    """The findings of an analysis of one stage of a run, as far as both are there."""
    stages = [stage for stage in run.stages if (stage.stage, stage.iteration) == one[1:3]]
    judged = [game for stage in one.replayed.stages for game in stage.games()]
    if not stages or not judged:
        return ()
    games, found = stages[0].games(), answers(judged)
    asked = subjects(run.state.params, games, ANALYSERS[one.analyser])
    # A part of the games may have been drawn.
    return findings([own for own in asked if own.datapoint.id in found], games, found)
