"""`check_protocol`, the conformance suite of protocols, built in or your own."""

from collections.abc import Iterator

import msgspec

from nip_fn.game.answer import MARKER
from nip_fn.game.decision import SPECTRA
from nip_fn.game.episode import Episode, may_decide
from nip_fn.game.protocol import Move, Protocol
from nip_fn.game.reply import Completion
from nip_fn.keys import Key, fold_in, key, randint, uniform
from nip_fn.params.protocol import CommonProtocolParameters
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.registry import MakeProtocol
from nip_fn.testing.laws import GAME_LAWS, LAWS, PlayedGame, Subject, Violation, word_of
from nip_fn.trees.grow import Rules, insert, insert_label, new_tree
from nip_fn.trees.node import ReplyArrival, node_at, pending_checks, pending_requests

# What is checked where no parameters are given.
# Each turns on a rule that protocols are often written without thinking of: another first speaker,
# drawn sides, shared or negative rewards, penalties, undecided verdicts, forced ones.
SPREAD: tuple[CommonProtocolParameters, ...] = (
    CommonProtocolParameters(),
    CommonProtocolParameters(verifier_first=False),
    CommonProtocolParameters(randomize_prover_stance=True, prover_reward=-3.0),
    CommonProtocolParameters(shared_reward=True, verifier_no_guess_reward=-0.25),
    CommonProtocolParameters(prover_invalid_response_penalty=-2.0, verifier_no_guess_reward=0.5),
    CommonProtocolParameters(prover_invalid_response_penalty=2.0, shared_reward=True),
    CommonProtocolParameters(verifier_decision_spectrum="likert_scale_4"),
    CommonProtocolParameters(
        verifier_decision_spectrum="likert_scale_5", verifier_neither_accept_nor_reject_reward=4.0
    ),
    CommonProtocolParameters(force_guess="zero"),
    CommonProtocolParameters(force_guess="y", verifier_first=False),
)

RAISED = "an exception"  # where a violation is that kept a law from being looked at


class ProtocolError(AssertionError):
    """A protocol breaks a law; the message has one line for each violation."""


def check_protocol(
    make: MakeProtocol | Protocol,
    params: HyperParameters | None = None,
    *,
    num_games: int = 200,
    seed: int = 0,
) -> None:
    """Check that a protocol obeys every law, under `params` or else under a spread of them.

    A protocol that is a value, and no function of parameters, is checked as it is.

    Plays `num_games` random games under each; the same `seed` plays the same ones.  Raises
    `ProtocolError` with one line for each violation: the protocol, the law, where, what to do.
    """
    if isinstance(make, Protocol):
        make, params = _constant(make), params or HyperParameters()
    # Named by its changes, so that a violation says under which parameters it shows.
    spread = {_changes(common): HyperParameters(protocol_common=common) for common in SPREAD}
    lines: dict[tuple[str, ...], str] = {}
    for changes, variant in spread.items() if params is None else [("", params)]:
        keys = tuple(fold_in(key(seed), "check", game) for game in range(num_games))
        for name, law, (where, problem, remedy) in _breaches(make, variant, keys):
            line = f"{name}: {law}: {where}: {problem}; {remedy}{changes}"
            # The first variant that shows a fault speaks for the others, or one fault would fill
            # the screen.
            lines.setdefault((law, where, remedy), line)
    if lines:
        raise ProtocolError("\n".join(lines.values()))


# ----------------------------------------------------------------------------- looking for breaches


def _breaches(
    make: MakeProtocol, params: HyperParameters, keys: tuple[Key, ...]
) -> Iterator[tuple[str, str, Violation]]:
    """(name of the protocol, name of the law, where it is broken) under these parameters.

    What breaks one law may keep others from being looked at, so an exception is reported only
    where there is nothing else to report.
    """
    name = getattr(make, "__name__", "protocol")
    try:
        protocol, again = make(params), make(params)
        name, subject = (
            protocol.name or name,
            Subject(protocol, again, keys, _rounds(protocol, keys)),
        )
    # A protocol is the user's own code and may raise anything; whatever it is, the check ends with
    # a report and not with a traceback.
    except Exception as error:
        yield name, "it can be made and asked", _raised(error)
        return
    breaches = [
        *(breach for law in LAWS for breach in _guarded(law.__name__, law(subject))),
        *(breach for game_key in keys for breach in _in_play(subject, game_key)),
    ]
    proper = [breach for breach in breaches if breach[1].where != RAISED]
    yield from ((name, law.replace("_", " "), violation) for law, violation in proper or breaches)


def _in_play(subject: Subject, key: Key) -> Iterator[tuple[str, Violation]]:
    try:
        game = _play(subject.protocol, key)
    except Exception as error:
        yield "games_can_be_played", _raised(error)
        return
    for law in GAME_LAWS:
        yield from _guarded(law.__name__, law(subject, game))


def _guarded(law: str, violations: Iterator[Violation]) -> Iterator[tuple[str, Violation]]:
    try:
        yield from ((law, violation) for violation in violations)
    except Exception as error:
        yield law, _raised(error)


def _raised(error: Exception) -> Violation:
    return Violation(RAISED, f"{type(error).__name__}: {error}", "correct what raises it")


def _constant(protocol: Protocol) -> MakeProtocol:
    return lambda params: protocol


def _changes(common: CommonProtocolParameters) -> str:
    """The rules that differ from the default, in brackets."""
    rules, default = map(msgspec.structs.asdict, (common, CommonProtocolParameters()))
    changed = [f"{name} = {rules[name]!r}" for name in rules if rules[name] != default[name]]
    return f" ({', '.join(changed)})" if changed else ""


def _rounds(protocol: Protocol, keys: tuple[Key, ...]) -> tuple[tuple[int, tuple[Move, ...]], ...]:
    """Every (round, who speaks) that games with these keys can come to."""
    verifiers = {index for index, agent in enumerate(protocol.agents) if agent.role == "verifier"}
    movers_by_round: dict[tuple[int, tuple[Move, ...]], None] = {}
    for game_key in keys:
        rounds = [protocol.schedule(r, game_key) for r in range(protocol.max_message_rounds)]
        turns = [r for r, moves in enumerate(rounds) if any(m.agent in verifiers for m in moves)]
        # The game is over after the verifier's last turn, so laws do not look at what a schedule
        # says of later rounds.
        for round, moves in enumerate(rounds[: turns[-1] + 1] if turns else rounds):
            movers_by_round[
                round,
                tuple(move._replace(channels=tuple(move.channels)) for move in moves),
            ] = None
    return tuple(movers_by_round)


# ----------------------------------------------------------------------------------- random play


def _play(protocol: Protocol, key: Key) -> PlayedGame:
    """A game of random play, grown as a tree with one branch; `key` is consumed."""
    play_key = fold_in(key, "play")
    # Most games have no invalid reply, or few of those whose provers are penalised would get past
    # the first round.  In a third of them nobody decides, so that the last round is reached.
    invalid = (0.0, 0.0, 0.3)[randint(fold_in(play_key, "invalid"), 3)]
    decides = (0.0, 0.3, 1.0)[randint(fold_in(play_key, "decides"), 3)]
    label, stance = (randint(fold_in(play_key, side), 2) for side in ("label", "stance"))
    start = Episode(key, label, stance)
    rules = Rules(protocol)
    root = new_tree(rules, start)
    for _ in range(protocol.max_message_rounds + 1):  # one more than a game may have
        for path, agent, _, _ in tuple(pending_requests(root)):
            moves = protocol.schedule(len(path), key)
            move = next(move for move in moves if move.agent == agent)
            reply_key = fold_in(play_key, len(path), agent)
            text = random_text(protocol, len(path), move, (invalid, decides), reply_key)
            arrival = ReplyArrival(path, agent, 0, 0, Completion(text, "stop", model="random"))
            root, _ = insert(rules, root, start, arrival)
        for answer in pending_checks(root):
            # Few answers cannot be checked: they would end the game.
            drawn = (0, 1, 0, 1, None)[randint(fold_in(play_key, "check"), 5)]
            root, _ = insert_label(rules, root, start, answer, drawn)
    node, nodes = root, []
    while node.children:
        node = node.children[0]
        nodes.append(node)
    return PlayedGame(start, root, tuple(nodes), node_at(root, start, (0,) * len(nodes))[1])


def random_text(
    protocol: Protocol,
    round: int,
    move: Move,
    habits: tuple[float, float],
    key: Key,
) -> str:
    """Nothing, a decision where it counts (shares of all replies), or a word in each channel."""
    invalid, decides = habits
    if uniform(fold_in(key, "invalid")) < invalid:
        return ""
    if may_decide(protocol, round, move.agent) and uniform(fold_in(key, "decides")) < decides:
        spectrum = SPECTRA[protocol.spectrum]
        any_rank = randint(fold_in(key, "rank"), len(spectrum))
        # The two firmest decisions are drawn most: rewards reach their bounds there.
        rank = (0, -1, any_rank)[randint(fold_in(key, "side"), 3)]
        return f"Decision: {spectrum[rank].text}"
    headers = protocol.headers(move) or ("",)
    words = (word_of(round, move.agent, channel) for channel in move.channels)
    text = "\n".join(f"{header} {word}" for header, word in zip(headers, words, strict=True))
    return f"{text}\n{MARKER} 42" if move.answers else text
