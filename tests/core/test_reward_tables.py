"""Rewards of every agent in every round: tables typed by hand, against games that are played."""

from collections.abc import Iterator
from itertools import product
from math import isclose
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nip_fn.game.bounds import reward_bounds, reward_mid_point
from nip_fn.game.decision import SPECTRA
from nip_fn.game.episode import Episode, Round, Utterance, may_decide, movers, play_round
from nip_fn.game.protocol import Protocol
from nip_fn.game.reply import Completion, FinishReason
from nip_fn.keys import Key
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.nip import PROVER, VERIFIER
from nip_fn.protocols.registry import protocol_of
from nip_fn.trees.grow import Rules, insert, new_tree
from nip_fn.trees.node import Node, ReplyArrival, pending_requests

from .games import make_params
from .test_protocol_tables import EVEN_KEYS, ODD_KEYS, ROUNDS

# Every way to be paid has an amount that no other has.
AMOUNTS = {
    "prover_reward": 120.0,
    "verifier_reward": 21.0,
    "verifier_incorrect_penalty": -33.0,
    "verifier_terminated_penalty": -50.0,
    "verifier_no_guess_reward": 0.25,
}
NEITHER, TERMINATED, NO_GUESS, PENALTY = 6.0, -50.0, 0.25, -70.0

# The words of each spectrum, from the firmest rejection to the firmest acceptance.
WORDS_OF: dict[str, tuple[str, ...]] = {
    "accept_reject": ("reject", "accept"),
    "likert_scale_4": ("strongly disagree", "disagree", "agree", "strongly agree"),
    "likert_scale_5": (
        *("strongly disagree", "disagree", "neither agree nor disagree"),
        *("agree", "strongly agree"),
    ),
    "likert_scale_6": (
        *("strongly disagree", "disagree", "somewhat disagree"),
        *("somewhat agree", "agree", "strongly agree"),
    ),
    "likert_scale_7": (
        *("strongly disagree", "disagree", "somewhat disagree", "neither agree nor disagree"),
        *("somewhat agree", "agree", "strongly agree"),
    ),
    "likert_int_scale_11": tuple(map(str, range(11))),
    "out_of_10": tuple(map(str, range(11))),
    "out_of_100": tuple(map(str, range(101))),
}


def meanings(spectrum: str) -> tuple[tuple[str, int, float], ...]:
    """(words, discrete decision: 0 reject, 1 accept, 3 neither; f from -1 to 1) by rank."""
    words = WORDS_OF[spectrum]
    half = len(words) // 2
    steps = [step for step in range(-half, half + 1) if step or len(words) % 2]
    return tuple(
        (text, int(step > 0) if step else 3, step / half)
        for text, step in zip(words, steps, strict=True)
    )


# Of scales of numbers, those that are played.
PLAYED = ("0", "4", "5", "6", "10"), ("0", "25", "40", "50", "60", "75", "100")
DECISIONS = {
    spectrum: [
        meaning
        for meaning in meanings(spectrum)
        if len(words) < 11 or meaning[0] in PLAYED[len(words) > 11]
    ]
    for spectrum, words in WORDS_OF.items()
}


def for_prover(f: float, accepts: bool) -> float:
    """The reward of a prover for a decision f: 0 for the wrong side, 120 for its own."""
    return 60 + 60 * f if accepts else 60 - 60 * f


def for_verifier(f: float, label: int, neither: float | None) -> float:
    """The reward of a verifier for a decision f: through -33, "neither" and 21.

    "neither" is paid 6 where it is given, and half-way otherwise: -6.
    """
    truth = f if label else -f
    middle = -6 if neither is None else neither
    return middle + truth * (21 - middle if truth > 0 else middle + 33)


# The side that each prover argues for: "open" is the datapoint's where sides are randomised and
# accept where they are not; an "unpaid" prover gets nothing, whatever happens.
SIDES = {
    "nip": ("open",),
    "adp": ("open",),
    "debate": ("reject", "accept"),
    "merlin_arthur": ("reject", "accept"),
    "mnip": ("open", "open"),
    "solo_verifier": (),
    "multi_channel_test": ("unpaid", "unpaid", "unpaid"),
}


class Setting(NamedTuple):
    """A game: its settings besides the rewards, its key, and the letters of its rounds."""

    protocol: str
    verifier_first: bool
    own: dict[str, Any]
    key: Key
    letters: str


IN_TURN, ZERO_LAST = {"sequential": True}, {"sequential": True, "prover0_first": False}


def two_provers(name: str) -> tuple[Setting, ...]:
    return (
        Setting(name, True, {"max_message_rounds": 3}, EVEN_KEYS[0], "VBV"),
        Setting(name, True, {"max_message_rounds": 5, **ZERO_LAST}, ODD_KEYS[0], "V10V"),
        Setting(name, False, {"max_message_rounds": 3}, ODD_KEYS[1], "BV"),
        Setting(name, False, {"max_message_rounds": 8, **IN_TURN}, EVEN_KEYS[1], "01V01V"),
    )


SETTINGS = (
    Setting("nip", True, {"max_message_rounds": 8}, EVEN_KEYS[0], "VPVPVPV"),
    Setting("nip", False, {"max_message_rounds": 4}, ODD_KEYS[0], "PVPV"),
    Setting("adp", True, {}, EVEN_KEYS[1], "PV"),
    *two_provers("debate"),
    *two_provers("mnip"),
    Setting("merlin_arthur", True, {}, EVEN_KEYS[2], "0V"),
    Setting("merlin_arthur", False, {}, ODD_KEYS[2], "1V"),
    Setting("solo_verifier", True, {}, EVEN_KEYS[3], "V"),
    Setting("multi_channel_test", True, {}, EVEN_KEYS[3], "abVabV"),
)


class Pay(NamedTuple):
    """The rules of payment that are varied."""

    shared: bool
    randomised: bool
    penalty: float | None
    neither: float | None


PAYS = tuple(
    map(Pay._make, product((False, True), (False, True), (None, PENALTY), (None, NEITHER)))
)


def make(setting: Setting, pay: Pay, spectrum: str, **common: Any) -> Protocol:
    table = {
        "interaction_protocol": setting.protocol,
        "protocol_common": {
            **AMOUNTS,
            "verifier_first": setting.verifier_first,
            "shared_reward": pay.shared,
            "randomize_prover_stance": pay.randomised,
            "prover_invalid_response_penalty": pay.penalty,
            "verifier_neither_accept_nor_reject_reward": pay.neither,
            "verifier_decision_spectrum": spectrum,
            **common,
        },
    }
    own = {f"{setting.protocol}_protocol": setting.own} if setting.own else {}
    return protocol_of(make_params(table, own))


class Script(NamedTuple):
    """The course of a game: who decides or fails, in which round."""

    decides: int | None = None  # the round in which the verifier decides
    f: float = 0.0  # and what
    words: str = ""
    fails: tuple[int, str] | None = None  # the round and the agent whose reply is unusable


def scripts(setting: Setting, spectrum: str) -> Iterator[Script]:
    """Every decision at the verifier's first and last turn, none at all, and unusable replies."""
    rounds = ROUNDS[setting.protocol]
    turns = [r for r, letter in enumerate(setting.letters) if letter == "V"]
    last = turns[-1]
    failures = [
        (round, agent)
        for round, letter in enumerate(setting.letters)
        for agent in rounds[letter]
        # A prover that fails at once with the verifier's last turn: no rule says which end it is.
        if not (round == last and agent == "prover2")
    ]
    yield Script()
    yield from (Script(fails=each) for each in failures)
    for words, _, f in DECISIONS[spectrum]:
        yield from (Script(turn, f, words) for turn in sorted({turns[0], last}))
        if abs(f) == 1:
            yield from (Script(last, f, words, each) for each in failures if each[0] < last)


class Played(NamedTuple):
    """The rewards of each round, `[rounds][A]`, and how the game ended."""

    rewards: tuple[tuple[float, ...], ...]
    end: str


def expected(setting: Setting, pay: Pay, label: int, stance: int, script: Script) -> Played:
    """The rewards and the end according to the tables."""
    rounds = ROUNDS[setting.protocol]
    rewards: list[tuple[float, ...]] = []
    for round, letter in enumerate(setting.letters):
        last = round == len(setting.letters) - 1
        decided = round == script.decides
        failed = script.fails[1] if script.fails and script.fails[0] == round else ""
        invalid = pay.penalty is not None and failed.startswith("prover")
        if decided:
            verifier = for_verifier(script.f, label, pay.neither)
        elif last:
            verifier = TERMINATED
        else:
            verifier = NO_GUESS if "verifier" in rounds[letter] else 0.0
        provers = []
        for number, side in enumerate(SIDES[setting.protocol]):
            accepts = side == "accept" or (side == "open" and bool(stance or not pay.randomised))
            if side == "unpaid":
                provers.append(0.0)
            elif invalid and failed in ("prover", f"prover{number}"):
                provers.append(PENALTY)
            elif pay.shared:
                provers.append(verifier)
            elif decided:
                provers.append(for_prover(script.f, accepts))
            else:
                provers.append(0.0)
        rewards.append((*provers, verifier))
        if decided or invalid:
            return Played(tuple(rewards), "decided" if decided else "aborted")
    return Played(tuple(rewards), "truncated")


def played(
    protocol: Protocol, setting: Setting, label: int, stance: int, script: Script
) -> tuple[Played, int]:
    """The rewards and the end of a game that is played, and its number of rounds."""
    episode = Episode(key=setting.key, label=label, stance=stance)
    rewards = []
    while moves := movers(protocol, episode):
        round = len(episode.rounds)
        turn: Round = ()
        for move in moves:
            name = protocol.agents[move.agent].name
            decision = None
            if name == "verifier" and round == script.decides:
                decision = next(d for d in SPECTRA[protocol.spectrum] if d.text == script.words)
            error = "no_content" if (round, name) == script.fails else None
            turn = (*turn, Utterance(move.agent, "raw", decision=decision, error=error))  # type: ignore[arg-type]
        episode, reward = play_round(protocol, episode, turn)
        rewards.append(reward)
    return Played(tuple(rewards), episode.status), len(episode.rounds)


def totals(game: Played) -> list[float]:
    """`[A]` what each agent gets in all."""
    return [sum(of_agent) for of_agent in zip(*game.rewards, strict=True)]


def same(one: Played, other: Played) -> bool:
    return (
        one.end == other.end
        and len(one.rewards) == len(other.rewards)
        and all(
            len(a) == len(b) and all(isclose(x, y, abs_tol=1e-9) for x, y in zip(a, b, strict=True))
            for a, b in zip(one.rewards, other.rewards, strict=True)
        )
    )


@pytest.mark.parametrize("spectrum", DECISIONS)
def test_the_words_of_a_spectrum_mean_what_the_tables_say(spectrum: str) -> None:
    decisions = [(d.text, d.discrete, d.continuous) for d in SPECTRA[spectrum]]  # type: ignore[index]
    assert decisions == [
        (text, discrete, pytest.approx(f)) for text, discrete, f in meanings(spectrum)
    ]


def test_rewards_are_these_by_hand() -> None:
    assert [for_prover(f, True) for f in (-1, -0.5, 0, 1)] == [0, 30, 60, 120]
    assert [for_prover(f, False) for f in (-1, -0.5, 0, 1)] == [120, 90, 60, 0]
    assert [for_verifier(f, 1, NEITHER) for f in (-1, -0.5, 0, 0.2, 1)] == [-33, -13.5, 6, 9, 21]
    assert [for_verifier(f, 0, None) for f in (1, 0.5, 0, -0.5, -1)] == [-33, -19.5, -6, 7.5, 21]


@pytest.mark.parametrize("share", [4, pytest.param(1, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("spectrum", DECISIONS)
@pytest.mark.parametrize("name", SIDES)
def test_every_way_to_play_pays_what_the_tables_say_within_the_bounds(
    name: str, spectrum: str, share: int
) -> None:
    """With every so many of the rules of payment, in rotation.

    With a quarter, every setting meets every rule under two spectra, and every spectrum every rule.
    """
    first = list(DECISIONS).index(spectrum)
    for number, setting in enumerate(SETTINGS):
        if setting.protocol == name:
            check_every_way(setting, PAYS[(first + number) % share :: share], spectrum)


def check_every_way(setting: Setting, pays: tuple[Pay, ...], spectrum: str) -> None:
    """Every script, for every label and stance, under each of these rules of payment."""
    for pay in pays:
        protocol = make(setting, pay, spectrum)
        bounds = [reward_bounds(protocol, agent) for agent in range(len(protocol.agents))]
        ways = list(scripts(setting, spectrum))
        ends = set()
        for label, stance, script in product((0, 1), (0, 1), ways):
            game, rounds = played(protocol, setting, label, stance, script)
            right = expected(setting, pay, label, stance, script)
            assert same(game, right), (setting, pay, label, stance, script, game, right)
            assert rounds == len(right.rewards)
            for total, (least, most) in zip(totals(game), bounds, strict=True):
                assert least - 1e-9 <= total <= most + 1e-9, (setting, pay, script, bounds)
            ends.add(game.end)
        breaks_off = pay.penalty is not None and setting.protocol != "solo_verifier"
        assert ends == {"decided", "truncated"} | ({"aborted"} if breaks_off else set())


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", ["debate", "mnip"])
def test_two_unusable_replies_at_once_are_two_penalties(name: str, shared: bool) -> None:
    for penalty, rewards, end in (
        (PENALTY, (-70.0, -70.0, 0.0), "aborted"),
        (None, (0.0, 0.0, 0.0), "open"),
    ):
        setting = Setting(name, False, {"max_message_rounds": 4}, EVEN_KEYS[0], "BVBV")
        protocol = make(setting, Pay(shared, False, penalty, None), "accept_reject")
        turn = tuple(Utterance(agent, "raw", error="no_content") for agent in (0, 1))
        episode, reward = play_round(protocol, Episode(key=setting.key, label=1, stance=1), turn)
        assert (reward, episode.status) == (rewards, end)


# ------------------------------------------------------------------------------- forced decisions

FORCED = {("zero", 0): -1.0, ("zero", 1): -1.0, ("one", 0): 1.0, ("one", 1): 1.0}
FORCED |= {("y", 0): -1.0, ("y", 1): 1.0}

WORDS: tuple[tuple[str | None, FinishReason], ...] = (
    ("Decision: {least}", "stop"),
    ("Decision: {most}", "stop"),
    ("Decision: perhaps", "stop"),
    ("What of the bound?", "stop"),
    ("What of the b", "length"),
    ("", "stop"),
    (None, "stop"),
    ("withheld", "content_filter"),
    ("cut", "other"),
)


def grown(rules: Rules, game: Episode, completions: dict[str, Completion]) -> Node:
    """A tree of one branch in which each agent gives the same completion whenever it is asked."""
    root = new_tree(rules, game)
    while ask := next(pending_requests(root), None):
        completion = completions[rules.protocol.agents[ask.agent].role]
        given = ReplyArrival(ask.path, ask.agent, ask.indices[0], ask.attempt, completion)
        root, _ = insert(rules, root, game, given)
    return root


def line_of(root: Node) -> list[Node]:
    """The nodes of a tree of one branch, its root left out."""
    nodes = []
    while root.children:
        (root,) = root.children
        nodes.append(root)
    return nodes


def check_forced(protocol: Protocol, game: Episode, right: Played, f: float) -> None:
    """Whatever the verifier says, the forced decision is what is heard and what is paid for."""
    least, most = SPECTRA[protocol.spectrum][0].text, SPECTRA[protocol.spectrum][-1].text
    rules = Rules(protocol, attempts=3)
    for text, finish in WORDS:
        words = text.format(least=least, most=most) if text else text
        said = {"verifier": Completion(words, finish, "m"), "prover": Completion("So.", "stop", "")}
        line = line_of(grown(rules, game, said))
        paid = Played(tuple(node.reward for node in line), line[-1].status)
        assert same(paid, right), (protocol.name, words, finish, paid, right)
        heard = line[-1].utterances[-1]
        assert heard.decision is not None
        assert (heard.decision.continuous, heard.raw) == (f, words or "")
        assert heard.attempts == 1, "there is nothing to ask again"


@pytest.mark.parametrize("spectrum", ["accept_reject", "likert_scale_4", "out_of_100"])
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: f"{setting[0]}-{setting[-1]}")
def test_a_forced_guess_is_the_decision_whatever_the_verifier_says(
    setting: Setting, spectrum: str
) -> None:
    first = setting.letters.index("V")
    pays = (Pay(False, True, PENALTY, None), Pay(True, False, None, NEITHER))
    for pay, force in product(pays, ("zero", "one", "y")):
        protocol = make(setting, pay, spectrum, force_guess=force)
        for label, stance in product((0, 1), (0, 1)):
            f = FORCED[force, label]
            game = Episode(key=setting.key, label=label, stance=stance)
            right = expected(setting, pay, label, stance, Script(first, f))
            check_forced(protocol, game, right, f)


@pytest.mark.parametrize(("least", "counts"), [(1, 0), (2, 2), (4, 4), (5, 4), (7, 6)])
@pytest.mark.parametrize("force", ["zero", "one", "y"])
def test_a_guess_is_forced_at_the_first_turn_that_counts(
    force: str, least: int, counts: int
) -> None:
    own = {"max_message_rounds": 8, "min_message_rounds": least}
    setting, pay = Setting("nip", True, own, EVEN_KEYS[0], "VPVPVPV"), PAYS[0]
    protocol = make(setting, pay, "accept_reject", force_guess=force)
    for label in (0, 1):
        f = FORCED[force, label]
        right = expected(setting, pay, label, 1, Script(counts, f))
        check_forced(protocol, Episode(key=setting.key, label=label, stance=1), right, f)


def test_a_prover_who_fails_before_the_forced_guess_ends_the_game() -> None:
    setting = Setting("nip", False, {"max_message_rounds": 2}, EVEN_KEYS[0], "PV")
    protocol = make(setting, Pay(False, False, PENALTY, None), "accept_reject", force_guess="y")
    rules = Rules(protocol, attempts=2)
    said = {role: Completion("", "stop", "m") for role in ("prover", "verifier")}
    (node,) = line_of(grown(rules, Episode(key=setting.key, label=1, stance=1), said))
    assert (node.reward, node.status) == ((-70.0, 0.0), "aborted")


# ------------------------------------------------------------------------------- bounds

LONG = Setting("nip", True, {"max_message_rounds": 8}, EVEN_KEYS[0], "VPVPVPV")
PROVERS_FIRST = Setting("nip", False, {"max_message_rounds": 4}, EVEN_KEYS[0], "PVPV")
DEBATE = Setting("debate", True, {"max_message_rounds": 8, **IN_TURN}, EVEN_KEYS[0], "V01V01V")
MNIP = Setting("mnip", False, {"max_message_rounds": 9, **IN_TURN}, ODD_KEYS[0], "01V01V01V")
ADP = Setting("adp", True, {}, EVEN_KEYS[0], "PV")
MAC = Setting("merlin_arthur", True, {}, ODD_KEYS[0], "1V")
SOLO = Setting("solo_verifier", True, {}, EVEN_KEYS[0], "V")
MULTI = Setting("multi_channel_test", True, {}, EVEN_KEYS[0], "abVabV")

WAITING_COSTS = {"verifier_no_guess_reward": -0.25}
MILD = {"verifier_terminated_penalty": -20.0}  # not as bad as a wrong decision
PENALISED = {"prover_invalid_response_penalty": -70.0}
SHARED = {"shared_reward": True}
NEITHER_PAYS = {"verifier_neither_accept_nor_reject_reward": 99.0}
ALL_ALIKE = {"verifier_reward": 5.0, "verifier_incorrect_penalty": 5.0}
ALL_ALIKE |= {"verifier_terminated_penalty": 5.0, "verifier_no_guess_reward": 0.0}

# What is changed, the spectrum, and for each agent the least, the most, and half-way between them.
BOUNDS: tuple[tuple[Setting, dict[str, Any], str, tuple[tuple[float, float, float], ...]], ...] = (
    (LONG, MILD, "accept_reject", ((0, 120, 60), (-33, 21.75, -5.625))),
    (LONG, WAITING_COSTS, "accept_reject", ((0, 120, 60), (-50.75, 21, -14.875))),
    (LONG, {**WAITING_COSTS, **SHARED}, "out_of_10", ((-50.75, 21, -14.875),) * 2),
    (
        LONG,
        {**WAITING_COSTS, **PENALISED},
        "accept_reject",
        ((-70, 120, 25), (-50.75, 21, -14.875)),
    ),
    (
        LONG,
        {**WAITING_COSTS, **PENALISED, **SHARED},
        "accept_reject",
        ((-70.75, 21, -24.875), (-50.75, 21, -14.875)),
    ),
    (
        LONG,
        {**MILD, "prover_invalid_response_penalty": 150.0},
        "out_of_100",
        ((0, 150, 75), (-33, 21.75, -5.625)),
    ),
    (
        LONG,
        {**MILD, "prover_reward": -120.0},
        "likert_scale_4",
        ((-120, 0, -60), (-33, 21.75, -5.625)),
    ),
    (
        LONG,
        {**MILD, "randomize_prover_stance": True},
        "likert_scale_6",
        ((0, 120, 60), (-33, 21.75, -5.625)),
    ),
    # "neither" itself can be met, only half of it, or nothing of it
    (LONG, {**MILD, **NEITHER_PAYS}, "likert_scale_5", ((0, 120, 60), (-33, 99.75, 33.375))),
    (LONG, {**MILD, **NEITHER_PAYS}, "likert_scale_4", ((0, 120, 60), (-33, 60.75, 13.875))),
    (LONG, {**MILD, **NEITHER_PAYS}, "accept_reject", ((0, 120, 60), (-33, 21.75, -5.625))),
    # a game that the prover breaks off pays the verifier nothing
    (PROVERS_FIRST, ALL_ALIKE, "accept_reject", ((0, 120, 60), (5, 5, 5))),
    (PROVERS_FIRST, {**ALL_ALIKE, **PENALISED}, "accept_reject", ((-70, 120, 25), (0, 5, 2.5))),
    # three turns of the verifier
    (DEBATE, WAITING_COSTS, "accept_reject", ((0, 120, 60), (0, 120, 60), (-50.5, 21, -14.75))),
    (DEBATE, {**MILD, **SHARED}, "accept_reject", ((-33, 21.5, -5.75),) * 3),
    (DEBATE, {**MILD, **PENALISED}, "out_of_10", ((-70, 120, 25),) * 2 + ((-33, 21.5, -5.75),)),
    (MNIP, WAITING_COSTS, "accept_reject", ((0, 120, 60), (0, 120, 60), (-50.5, 21, -14.75))),
    (MNIP, MILD, "likert_scale_7", ((0, 120, 60), (0, 120, 60), (-33, 21.5, -5.75))),
    # a single one, at which nobody waits
    (ADP, {}, "accept_reject", ((0, 120, 60), (-50, 21, -14.5))),
    (ADP, {"verifier_no_guess_reward": 99.0}, "out_of_10", ((0, 120, 60), (-50, 21, -14.5))),
    (MAC, WAITING_COSTS, "accept_reject", ((0, 120, 60), (0, 120, 60), (-50, 21, -14.5))),
    (SOLO, WAITING_COSTS, "out_of_100", ((-50, 21, -14.5),)),
    # two
    (MULTI, WAITING_COSTS, "accept_reject", ((0, 0, 0),) * 3 + ((-50.25, 21, -14.625),)),
    (MULTI, MILD, "likert_scale_5", ((0, 0, 0),) * 3 + ((-33, 21.25, -5.875),)),
)


def every_way(setting: Setting, spectrum: str) -> Iterator[Script]:
    """Every decision at every turn of the verifier, none at all, and every unusable reply."""
    yield from scripts(setting, spectrum)
    for round, letter in enumerate(setting.letters):
        if letter == "V":
            yield from (Script(round, f, words) for words, _, f in DECISIONS[spectrum])


@pytest.mark.parametrize(("setting", "common", "spectrum", "by_hand"), BOUNDS)
def test_bounds_and_mid_points_are_those_computed_by_hand_and_are_met(
    setting: Setting,
    common: dict[str, Any],
    spectrum: str,
    by_hand: tuple[tuple[float, float, float], ...],
) -> None:
    protocol = make(setting, PAYS[0], spectrum, **common)
    games = [
        totals(played(protocol, setting, label, stance, script)[0])
        for label, stance, script in product((0, 1), (0, 1), every_way(setting, spectrum))
    ]
    assert len(by_hand) == len(protocol.agents)
    for agent, (least, most, middle) in enumerate(by_hand):
        assert reward_bounds(protocol, agent) == pytest.approx((least, most))
        assert reward_mid_point(protocol, agent) == pytest.approx(middle)
        met = [total[agent] for total in games]
        assert (min(met), max(met)) == pytest.approx((least, most))


# -------------------------------------------------------------------- bounds, whatever the amounts


def all_totals(protocol: Protocol, episode: Episode) -> Iterator[tuple[float, ...]]:
    """The agents' total rewards in every continuation of a game of nip."""
    moves = movers(protocol, episode)
    if not moves:
        yield (0.0, 0.0)
        return
    agent = moves[0].agent
    turns: list[Round] = [(Utterance(agent, "raw"),)]
    if agent == PROVER:
        turns.append((Utterance(agent, "raw", error="no_content"),))
    elif may_decide(protocol, len(episode.rounds), agent):
        turns += [(Utterance(agent, "raw", decision=d),) for d in SPECTRA["accept_reject"]]
    for turn in turns:
        after, reward = play_round(protocol, episode, turn)
        for rest in all_totals(protocol, after):
            yield tuple(now + later for now, later in zip(reward, rest, strict=True))


AMOUNT = st.sampled_from([-3.0, -1.0, -0.25, 0.0, 0.25, 1.0, 3.0])


@st.composite
def rewarding(draw: st.DrawFn) -> HyperParameters:
    first = draw(st.booleans())
    return make_params(
        {
            "protocol_common": {
                **{name: draw(AMOUNT) for name in AMOUNTS},
                "verifier_first": first,
                "shared_reward": draw(st.booleans()),
                "randomize_prover_stance": draw(st.booleans()),
                "prover_invalid_response_penalty": draw(st.none() | AMOUNT),
                "verifier_neither_accept_nor_reject_reward": draw(st.none() | AMOUNT),
            },
            "nip_protocol": {"max_message_rounds": draw(st.integers(1 if first else 2, 5))},
        }
    )


@settings(max_examples=100)
@given(rewarding(), st.integers(0, 1), st.integers(0, 1))
def test_no_way_to_play_leaves_the_reward_bounds(
    params: HyperParameters, label: int, stance: int
) -> None:
    protocol = protocol_of(params)
    episode = Episode(key=EVEN_KEYS[0], label=label, stance=stance)
    for total in all_totals(protocol, episode):
        for agent in (PROVER, VERIFIER):
            least, most = reward_bounds(protocol, agent)
            assert least - 1e-9 <= total[agent] <= most + 1e-9
