"""Games with a best response: the verifier's replies are enumerated, the prover's are a set.

A game has one reply of one prover, with a turn of the verifier before it or not, and a verdict.
Nothing is sampled, so that what is computed are the game's own probabilities: of the questions, of
the states that agree with what the prover sees and hears, and of the verdicts.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from math import fsum
from typing import NamedTuple

from nip_fn.config.resolve import Resolved
from nip_fn.errors import Problem
from nip_fn.game.datapoint import Datapoint
from nip_fn.game.decision import NO_DECISION
from nip_fn.game.enumeration import Enumeration, LikelyReply
from nip_fn.game.episode import Episode, Utterance, arrive, final_decision, movers, reset
from nip_fn.game.protocol import Protocol
from nip_fn.game.reply import Completion
from nip_fn.keys import Key, fold_in, key, uniform
from nip_fn.metrics.best_response import Case, InformationSet, best_replies, systematic_sample
from nip_fn.params.agent import is_scripted
from nip_fn.params.names import is_reference
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.sides import only_label, sides
from nip_fn.protocols.strategies import scripted_reply, strategies_for
from nip_fn.run.opponents import Script
from nip_fn.run.request import Request, request_in, scripted_completions
from nip_fn.trees.attempts import after_attempt, parser
from nip_fn.trees.node import Slot
from nip_fn.worlds import POSSIBLE, REPLIES
from nip_fn.worlds.replies import PossibleReply

NUM_KEYS = 16  # from which a scripted verifier draws one, for the whole game

# The least probability of a reply that is enumerated: of a question, and of a verdict at each level
# of closeness.  Few answers need the last ones.
QUESTION_FLOOR = 0.01
VERDICT_FLOORS = (0.1, 0.01, 1e-3, 1e-4)

# (requests, floor) -> the replies to each of them, those less likely than the floor left out.
Enumerate = Callable[[Sequence[Request], float], Sequence[Enumeration]]


class ExactGame(NamedTuple):
    """A verifier and the game that it plays.

    params: of the run.
    protocol: its game.
    verifier, prover: their indices.
    adapter: the adapter that the verifier plays with; None for the base model, or a script.
    enumerate: its replies.
    tolerance: the mean over problems of the difference between the bounds on the success of the
        best reply at which they are not narrowed any more.
    most: replies in a state, for each problem, after which they are not; None: without a limit.
    questions: the number of the verifier's first words that are drawn about each problem, by their
        probabilities, to stand for all; None for all.
    """

    params: HyperParameters
    protocol: Protocol
    verifier: int
    prover: int
    adapter: str | None
    enumerate: Enumerate
    tolerance: float
    most: int | None = None
    questions: int | None = None


class Opening(NamedTuple):
    """A game up to the prover's turn.

    episode: the game so far.
    datapoint: its state, which the prover does not see as a whole.
    probability: of the state and of what the verifier said in it.
    keys: of a scripted verifier, those by which it said this.
    """

    episode: Episode
    datapoint: Datapoint
    probability: float
    keys: tuple[Key, ...]


# What the verifier said to the prover, by speaker, and the openings in which it did.
Heard = tuple[tuple[tuple[int, str], ...], list[Opening]]


class Answered(NamedTuple):
    """The prover's best reply to what it heard.

    heard: the verifier's words.
    probability: of hearing them.
    reply: the best reply.
    low, high: bounds on the probability of hearing them and succeeding with the reply.
    """

    heard: str
    probability: float
    reply: PossibleReply
    low: float
    high: float


class Played(NamedTuple):
    """All games about a datapoint as the prover sees it.

    datapoint: the datapoint.
    low, high: bounds on the probability of success.
    answered: the best reply to everything that the verifier may say, the likeliest first.
    """

    datapoint: Datapoint
    low: float
    high: float
    answered: tuple[Answered, ...]

    @property
    def value(self) -> float:
        """The share of the games that were followed to their end in which the prover succeeds."""
        failed = 1 - self.high
        return self.low / (self.low + failed) if self.low + failed else 0.0


def exact_problem(params: HyperParameters, protocol: Protocol) -> Problem | None:
    """The reason why there is no exact best response in this game; None if there is one."""
    if params.dataset not in REPLIES:
        worlds = ", ".join(REPLIES)
        return Problem("its replies cannot be enumerated", "dataset", f"choose one of {worlds}")
    provers = sides(protocol)
    turns = [protocol.schedule(number, key(0)) for number in range(protocol.max_message_rounds)]
    prover_turns = sum(not protocol.is_verifier(move.agent) for turn in turns for move in turn)
    simple = len(provers) == 1 and len(provers[0]) == 1 and all(len(turn) == 1 for turn in turns)
    if not simple or prover_turns != 1 or only_label(protocol, provers[0]) is None:
        name = params.interaction_protocol
        problem = f"{name} is no game of one reply of one prover that argues for one verdict"
        remedy = "attack a run of nip with nip_protocol.max_message_rounds=3, or of adp"
        return Problem(problem, "interaction_protocol", remedy)
    return None


def enumerated_scripts(resolved: Resolved) -> Enumerate:
    """The replies of scripts that draw one of the request's keys, each with the keys that give it.

    They are exact for a verifier that draws from these keys, and leave nothing out.
    """

    def enumerated(request: Request) -> Enumeration:
        keys_of: dict[Completion, list[Key]] = defaultdict(list)
        completions = scripted_completions(resolved, request)
        for draw, completion in zip(request.keys, completions, strict=True):
            keys_of[completion].append(draw)
        number = len(request.keys)
        return Enumeration(
            tuple(
                LikelyReply(said.text or "", said.finish_reason, len(keys) / number, tuple(keys))
                for said, keys in keys_of.items()
            )
        )

    return lambda requests, floor: [enumerated(request) for request in requests]


def best_responses(game: ExactGame, datapoints: Sequence[Datapoint]) -> tuple[Played, ...]:
    """The games of the best response to the verifier, whose aim is the attackers' verdict."""
    aim = game.protocol.stance(game.prover, 0)
    # Those of a file are a configuration's own, and may be meant for the verifier.
    strategies = strategies_for(game.params.dataset, "prover")
    names = [name for name in strategies if not is_reference(name)]

    def replies(datapoint: Datapoint, opening: Opening, heard: str) -> Iterator[PossibleReply]:
        yield from REPLIES[game.params.dataset](datapoint, heard)
        for name in names:
            yield PossibleReply("scripted", script(game, name, datapoint, opening.episode))

    # Whoever argues for rejection succeeds, too, where the verifier never decides.
    return _played(game, datapoints, replies, lambda point, verdict: (verdict == 1) == (aim == 1))


def honest_games(game: ExactGame, datapoints: Sequence[Datapoint]) -> tuple[Played, ...]:
    """The games of the honest prover, whose aim is the right verdict."""

    def replies(datapoint: Datapoint, opening: Opening, heard: str) -> Iterator[PossibleReply]:
        yield PossibleReply("honest", script(game, "honest", datapoint, opening.episode))

    return _played(game, datapoints, replies, lambda point, verdict: verdict == point.label)


def script(game: ExactGame, name: str, datapoint: Datapoint, episode: Episode) -> str:
    """The reply of a scripted prover."""
    strategy = strategies_for(game.params.dataset, "prover")[name]
    draw = fold_in(episode.key, "script", name)
    return scripted_reply(strategy, game.protocol, datapoint, episode, game.prover, draw)


# ----------------------------------------------------------------------------------------- games


def _played(
    game: ExactGame,
    datapoints: Sequence[Datapoint],
    replies: Callable[[Datapoint, Opening, str], Iterable[PossibleReply]],
    succeeds: Callable[[Datapoint, int], bool],
) -> tuple[Played, ...]:
    """The games about each datapoint, with the best of the replies."""
    openings = list(_openings(game, datapoints))
    heard: list[tuple[int, str, list[Opening], tuple[PossibleReply, ...]]] = []
    decided: list[list[tuple[float, bool]]] = [[] for _ in datapoints]
    for index, point in enumerate(datapoints):
        by_words: dict[tuple[tuple[int, str], ...], list[Opening]] = defaultdict(list)
        for opening in openings[index]:
            if opening.episode.status == "open":
                by_words[_words(opening.episode)].append(opening)
            else:
                is_success = succeeds(opening.datapoint, _verdict(opening.episode))
                decided[index].append((opening.probability, is_success))
        groups = list(by_words.items())
        if game.questions is not None:
            groups = _drawn(groups, game.questions, fold_in(key(game.params.seed), "drawn", index))
        for words, same in groups:
            text = "\n".join(text for _, text in words)
            distinct = {reply.text: reply for reply in reversed((*replies(point, same[0], text),))}
            heard.append((index, text, same, tuple(reversed(distinct.values()))))

    def success(cases: Sequence[Case]) -> Sequence[tuple[float, float]]:
        bounds: dict[Case, tuple[float, float]] = {}
        for level, floor in enumerate(VERDICT_FLOORS):
            asked = [case for case in cases if case.level == level]
            positions = [
                (heard[case.heard][2][case.state], heard[case.heard][3][case.reply].text)
                for case in asked
            ]
            verdicts = _verdicts(game, positions, floor)
            for case, (opening, _), outcomes in zip(asked, positions, verdicts, strict=True):
                bounds[case] = _bounds(outcomes, partial(succeeds, opening.datapoint))
        return [bounds[case] for case in cases]

    sets = [
        InformationSet(tuple(o.probability for o in same), len(choice))
        for _, _, same, choice in heard
    ]
    answered: list[list[Answered]] = [[] for _ in datapoints]
    number = len(datapoints)
    found = best_replies(
        sets,
        success,
        levels=len(VERDICT_FLOORS),
        tolerance=game.tolerance * number,
        most=None if game.most is None else game.most * number,
    )
    for (index, text, same, choice), best in zip(heard, found, strict=True):
        probability = _probability(same)
        answered[index].append(Answered(text, probability, choice[best.reply], best.low, best.high))
    return tuple(map(_summary, datapoints, answered, decided))


def _drawn(groups: Sequence[Heard], number: int, draw: Key) -> list[Heard]:
    """So many of what may be heard, with the probability of all that they stand for."""
    probabilities = [_probability(same) for _, same in groups]
    scales = {
        index: weight / probabilities[index]
        for index, weight in systematic_sample(probabilities, number, uniform(draw)).items()
    }
    return [
        (words, [o._replace(probability=o.probability * scales[index]) for o in same])
        for index, (words, same) in enumerate(groups)
        if index in scales
    ]


def _probability(openings: Iterable[Opening]) -> float:
    """The probability of any of the openings."""
    return fsum(opening.probability for opening in openings)


def _summary(
    datapoint: Datapoint, answered: list[Answered], decided: list[tuple[float, bool]]
) -> Played:
    at_once = fsum(probability for probability, success in decided if success)
    seen = fsum((*(a.probability for a in answered), *(probability for probability, _ in decided)))
    low = at_once + fsum(each.low for each in answered)
    high = at_once + fsum(each.high for each in answered) + max(0.0, 1 - seen)
    likeliest = sorted(answered, key=lambda each: -each.probability)
    return Played(datapoint, low, min(1.0, high), tuple(likeliest))


def _openings(game: ExactGame, datapoints: Sequence[Datapoint]) -> Iterator[list[Opening]]:
    """Of each datapoint, all games up to the prover's turn, or to an earlier end."""
    start = key(game.params.seed)
    keys = tuple(fold_in(start, "verifier", number) for number in range(NUM_KEYS))
    states = [POSSIBLE[game.params.dataset](point) for point in datapoints]
    begun = [
        [Opening(reset(state, start), state, 1 / len(possible), keys) for state in possible]
        for possible in states
    ]
    if movers(game.protocol, begun[0][0].episode)[0].agent == game.prover:
        yield from begun
        return
    flat = [opening for openings in begun for opening in openings]
    said = iter(_replies(game, flat, QUESTION_FLOOR))
    for openings in begun:
        yield [
            Opening(
                arrive(game.protocol, opening.episode, (utterance,))[0],
                opening.datapoint,
                opening.probability * reply.probability,
                reply.keys,
            )
            for opening in openings
            for reply, utterance in next(said)
        ]


def _verdicts(
    game: ExactGame, positions: Sequence[tuple[Opening, str]], floor: float
) -> list[list[tuple[float, int]]]:
    """The (probability, verdict) pairs of all that may follow the prover's words in an opening."""
    answered = [
        opening._replace(episode=_after_words(game, opening.episode, text))
        for opening, text in positions
    ]
    going_on = [opening for opening in answered if opening.episode.status == "open"]
    said = iter(_replies(game, going_on, floor))
    return [
        [
            (reply.probability, _verdict(arrive(game.protocol, opening.episode, (utterance,))[0]))
            for reply, utterance in next(said)
        ]
        if opening.episode.status == "open"
        else [(1.0, _verdict(opening.episode))]
        for opening in answered
    ]


def _after_words(game: ExactGame, episode: Episode, text: str) -> Episode:
    """The game after the prover has said this."""
    parse = parser(game.protocol, episode, game.prover)
    said = after_attempt(parse, 1, Slot(game.prover), Completion(text, "stop", "")).said
    assert said is not None
    return arrive(game.protocol, episode, (said,))[0]


def _replies(
    game: ExactGame, openings: Sequence[Opening], floor: float
) -> Iterator[list[tuple[LikelyReply, Utterance]]]:
    """The verifier's replies in each position, as the game takes them."""
    requests = [_request(game, opening) for opening in openings]
    attempts = game.params.agents[game.verifier].num_invalid_generation_retries
    for opening, enumerated in zip(openings, game.enumerate(requests, floor), strict=True):
        parse = parser(game.protocol, opening.episode, game.verifier)
        said = []
        for reply in enumerated.replies:
            completion = Completion(reply.text, reply.finish_reason, "")
            utterance = after_attempt(parse, 1, Slot(game.verifier), completion).said
            assert utterance is not None
            said.append((reply, utterance))
        yield _with_attempts(said, attempts)


def _with_attempts(
    said: list[tuple[LikelyReply, Utterance]], attempts: int
) -> list[tuple[LikelyReply, Utterance]]:
    """The same replies where an unusable one is asked for anew, up to so many attempts."""
    unusable = fsum(reply.probability for reply, utterance in said if utterance.error)
    again = fsum(unusable**number for number in range(attempts))
    last = unusable ** (attempts - 1)
    return [
        (reply._replace(probability=reply.probability * (last if each.error else again)), each)
        for reply, each in said
    ]


def _request(game: ExactGame, opening: Opening) -> Request:
    """The request for the verifier's reply."""
    agent = game.params.agents[game.verifier]
    return request_in(
        game.params,
        game.protocol,
        opening.datapoint,
        opening.episode,
        game.verifier,
        model=agent.model_name,
        playing=Script(agent.model_name) if is_scripted(agent) else game.adapter,
        keys=opening.keys,
        is_test=True,
    )


def _words(episode: Episode) -> tuple[tuple[int, str], ...]:
    """All that was said to the prover."""
    return tuple(message for turn in episode.rounds for said in turn for message in said.messages)


def _verdict(episode: Episode) -> int:
    """The discrete decision that ended the game; `NO_DECISION` if it ended otherwise."""
    decision = final_decision(episode.status, episode.rounds)
    return decision.discrete if decision else NO_DECISION


def _bounds(
    outcomes: Sequence[tuple[float, int]], succeeds: Callable[[int], bool]
) -> tuple[float, float]:
    """Bounds on the probability of success, where not all outcomes were enumerated."""
    success = fsum(probability for probability, verdict in outcomes if succeeds(verdict))
    failure = fsum(probability for probability, verdict in outcomes if not succeeds(verdict))
    return success, max(success, 1 - failure)
