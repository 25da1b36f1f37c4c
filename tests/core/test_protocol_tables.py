"""Speakers and listeners of every round, as tables typed by hand."""

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import pytest

from nip_fn.config.codec import from_dict
from nip_fn.game.decision import SPECTRA
from nip_fn.game.episode import Episode, Utterance, may_decide, movers, play_round
from nip_fn.game.protocol import Protocol, channels_seen, game_seed, verifier_rounds
from nip_fn.keys import Key, key
from nip_fn.protocols.registry import protocol_of

from .fresh import printed
from .games import make_params

# ------------------------------------------------------------------------------- who speaks when

Speakers = dict[str, tuple[str, ...]]  # who speaks in a round, and in which channels

# A letter for each kind of round of a protocol.
ROUNDS: dict[str, dict[str, Speakers]] = {
    "nip": {"P": {"prover": ("main",)}, "V": {"verifier": ("main",)}},
    "adp": {"P": {"prover": ("main",)}, "V": {"verifier": ("main",)}},
    "consultancy": {"P": {"prover": ("main",)}, "V": {"verifier": ("main",)}},
    "merlin_arthur": {
        "0": {"prover0": ("main",)},
        "1": {"prover1": ("main",)},
        "V": {"verifier": ("main",)},
    },
    "solo_verifier": {"V": {"verifier": ("main",)}},
    "debate": {
        "0": {"prover0": ("prover0_channel",)},
        "1": {"prover1": ("prover1_channel",)},
        "B": {"prover0": ("prover0_channel",), "prover1": ("prover1_channel",)},
        "V": {"verifier": ("prover0_channel", "prover1_channel")},
    },
    "mnip": {
        "0": {"prover0": ("prover0_channel",)},
        "1": {"prover1": ("prover1_channel",)},
        "B": {"prover0": ("prover0_channel",), "prover1": ("prover1_channel",)},
        "V": {"verifier": ("prover0_channel", "prover1_channel")},
    },
    "multi_channel_test": {
        "a": {"prover0": ("prover_chat",), "prover1": ("main",)},
        "b": {"prover0": ("prover0_verifier",), "prover1": ("prover_chat",), "prover2": ("main",)},
        "V": {"prover2": ("prover_chat",), "verifier": ("main", "prover0_verifier")},
    },
}

# The rounds of a game in which the verifier never decides.  It ends with the verifier's last turn;
# "" where the verifier would have none.
NIP = {
    # verifier_first, max_message_rounds
    (True, 1): "V",
    (True, 2): "V",
    (True, 3): "VPV",
    (True, 8): "VPVPVPV",
    (True, 9): "VPVPVPVPV",
    (False, 1): "",
    (False, 2): "PV",
    (False, 3): "PV",
    (False, 8): "PVPVPVPV",
    (False, 9): "PVPVPVPV",
}
# The rounds of two provers who speak in turn, the first of whom is prover0 (1 and 0 are swapped
# otherwise); of those who speak at once (B) the letters are those of nip.
IN_TURN = {
    # verifier_first, max_message_rounds
    (True, 1): "V",
    (True, 2): "V",
    (True, 3): "V",
    (True, 8): "V01V01V",
    (True, 9): "V01V01V",
    (False, 1): "",
    (False, 2): "",
    (False, 3): "01V",
    (False, 8): "01V01V",
    (False, 9): "01V01V01V",
}
# Games of a fixed length, which no setting changes: for an even seed, and for an odd one.
FIXED = {
    "adp": ("PV", "PV"),
    "merlin_arthur": ("0V", "1V"),
    "solo_verifier": ("V", "V"),
    "multi_channel_test": ("abVabV", "abVabV"),
}

EVEN_KEYS = tuple(key(i) for i in range(40) if game_seed(key(i)) % 2 == 0)[:4]
ODD_KEYS = tuple(key(i) for i in range(40) if game_seed(key(i)) % 2 == 1)[:4]


SWAPPED = str.maketrans("01", "10")


class Game(NamedTuple):
    """A configuration, and the letters of its rounds."""

    protocol: str
    table: dict[str, Any]
    even: str  # where the seed of the game is even
    odd: str


def with_rounds(name: str, first: bool, most: int, **own: Any) -> dict[str, Any]:
    """A table in which only this protocol has these rounds; the others have other ones."""
    others = {"max_message_rounds": 5, "min_message_rounds": 4}
    return {
        "interaction_protocol": name,
        "protocol_common": {"verifier_first": first},
        **{f"{other}_protocol": others for other in ("nip", "debate", "mnip")},
        f"{name}_protocol": {"max_message_rounds": most, **own},
    }


def configurations() -> Iterator[Game]:
    for (first, most), letters in NIP.items():
        table = with_rounds("nip", first, most)
        yield Game("nip", table, letters, letters)
        # Its length is that of nip.
        advised = {**table, "interaction_protocol": "consultancy"}
        yield Game("consultancy", advised, letters, letters)
    for name, first_most, zero in product(("debate", "mnip"), NIP, (True, False)):
        at_once = with_rounds(name, *first_most, sequential=False, prover0_first=zero)
        letters = NIP[first_most].replace("P", "B")
        yield Game(name, at_once, letters, letters)
        in_turn = with_rounds(name, *first_most, sequential=True, prover0_first=zero)
        letters = IN_TURN[first_most] if zero else IN_TURN[first_most].translate(SWAPPED)
        yield Game(name, in_turn, letters, letters)
    for (name, (even, odd)), first, in_turn, zero, most in product(
        FIXED.items(), (True, False), (True, False), (True, False), (1, 2, 3, 8, 9)
    ):
        own = {"max_message_rounds": most}
        two = {**own, "sequential": in_turn, "prover0_first": zero}
        lengths = {"nip_protocol": own, "debate_protocol": two, "mnip_protocol": two}
        table = {"interaction_protocol": name, "protocol_common": {"verifier_first": first}}
        yield Game(name, {**table, **lengths}, even, odd)


CONFIGURATIONS = tuple(configurations())
PLAYABLE = tuple(game for game in CONFIGURATIONS if game.even)
REFUSED = tuple(game for game in CONFIGURATIONS if not game.even)


def parities(game: Game) -> Iterator[tuple[Key, str]]:
    """Keys of games, even seeds and odd ones, and the rounds that belong to them."""
    yield from ((each, game.even) for each in EVEN_KEYS)
    yield from ((each, game.odd) for each in ODD_KEYS)


def index_of(protocol: Protocol, agent: str) -> int:
    return [spec.name for spec in protocol.agents].index(agent)


def speakers(protocol: Protocol, moves: tuple[Any, ...]) -> dict[str, set[str]]:
    named = {
        protocol.agents[move.agent].name: {protocol.channels[channel] for channel in move.channels}
        for move in moves
    }
    assert len(named) == len(moves)
    return named


def as_sets(round: Speakers) -> dict[str, set[str]]:
    return {agent: set(channels) for agent, channels in round.items()}


def spoken(moves: tuple[Any, ...]) -> Speakers:
    """The movers' utterances in a round without a decision; each channel has its own words."""
    return tuple(
        Utterance(move.agent, "raw", tuple((c, f"<{move.agent} in {c}>") for c in move.channels))
        for move in moves
    )


def test_there_is_a_table_for_every_configuration() -> None:
    assert {game.protocol for game in CONFIGURATIONS} == set(ROUNDS)
    assert (len(PLAYABLE), len(REFUSED)) == (246, 14)
    assert (len(EVEN_KEYS), len(ODD_KEYS)) == (4, 4)


@pytest.mark.parametrize("name", ROUNDS)
def test_those_speak_whose_turn_it_is_and_the_game_ends_with_the_verifiers_last(name: str) -> None:
    for game in (game for game in PLAYABLE if game.protocol == name):
        protocol = protocol_of(make_params(game.table))
        for each, letters in parities(game):
            episode = Episode(key=each, label=1, stance=1)
            for round, letter in enumerate(letters):
                expected = as_sets(ROUNDS[name][letter])
                moves = movers(protocol, episode)
                assert speakers(protocol, moves) == expected, (game, round)
                assert speakers(protocol, protocol.schedule(round, each)) == expected
                assert episode.status == "open", (game, round)
                episode, _ = play_round(protocol, episode, spoken(moves))
            assert episode.status == "truncated", game
            assert movers(protocol, episode) == (), game
            with pytest.raises(ValueError, match=f"over after {len(letters)} rounds"):
                play_round(protocol, episode, spoken(moves))
            turns = tuple(r for r, letter in enumerate(letters) if letter == "V")
            assert verifier_rounds(protocol, each) == turns, game


@pytest.mark.parametrize("name", ROUNDS)
def test_nobody_speaks_out_of_turn_or_where_it_is_not_its_turn(name: str) -> None:
    for game in (game for game in PLAYABLE if game.protocol == name):
        protocol = protocol_of(make_params(game.table))
        episode = Episode(key=EVEN_KEYS[0], label=1, stance=1)
        right = spoken(movers(protocol, episode))
        elsewhere = len(protocol.channels)
        present = {said.agent for said in right}
        absent = next((a for a in range(len(protocol.agents)) if a not in present), None)
        wrong: list[Speakers] = [
            (),
            right[:-1],
            (*right, right[-1]),
            (Utterance(right[0].agent, "raw", ((elsewhere, "?"),)), *right[1:]),
        ]
        if absent is not None:
            wrong += [(*right, Utterance(absent, "raw")), (Utterance(absent, "raw"), *right[1:])]
        for turn in wrong:
            with pytest.raises(ValueError, match="round 0"):
                play_round(protocol, episode, turn)


def test_a_game_without_a_turn_of_the_verifier_is_refused_in_one_line() -> None:
    for game in REFUSED:
        problem = from_dict(game.table).failure()
        section = "nip" if game.protocol == "consultancy" else game.protocol
        assert problem.address == f"{section}_protocol.max_message_rounds", game
        assert problem.problem == "the verifier never gets a turn", game


NIP_ALONE, DEBATES = ("nip",), ("debate", "mnip")


@pytest.mark.parametrize(
    ("names", "first", "in_turn", "most", "least", "counting"),
    [  # the rounds in which a decision counts
        (NIP_ALONE, True, None, 8, 1, (0, 2, 4, 6)),
        (NIP_ALONE, True, None, 8, 2, (2, 4, 6)),
        (NIP_ALONE, True, None, 8, 4, (4, 6)),
        (NIP_ALONE, True, None, 8, 7, (6,)),
        (NIP_ALONE, True, None, 8, 8, None),
        (NIP_ALONE, False, None, 8, 8, (7,)),
        (NIP_ALONE, False, None, 9, 9, None),
        (DEBATES, True, False, 9, 4, (4, 6, 8)),
        (DEBATES, True, False, 9, 9, (8,)),
        (DEBATES, True, True, 9, 4, (3, 6)),
        (DEBATES, True, True, 9, 7, (6,)),
        (DEBATES, True, True, 9, 8, None),
        (DEBATES, False, True, 9, 4, (5, 8)),
        (DEBATES, False, False, 8, 5, (5, 7)),
    ],
)
def test_decisions_count_from_the_protocols_own_first_round_on(
    names: tuple[str, ...],
    first: bool,
    in_turn: bool | None,
    most: int,
    least: int,
    counting: tuple[int, ...] | None,
) -> None:
    own = {} if in_turn is None else {"sequential": in_turn}
    for name in names:
        table = with_rounds(name, first, most, min_message_rounds=least, **own)
        if counting is None:
            line = str(from_dict(table).failure())
            assert line.startswith(f"{name}_protocol.min_message_rounds: {least} is too many")
            assert "\n" not in line
        else:
            heard = assert_decisions_count_in(protocol_of(make_params(table)), counting)
            assert heard == set(counting)


@pytest.mark.parametrize(
    ("name", "counting"),
    [("adp", {1}), ("merlin_arthur", {1}), ("solo_verifier", {0}), ("multi_channel_test", {2, 5})],
)
def test_decisions_of_short_games_count_whatever_the_others_are_told(
    name: str, counting: set[int]
) -> None:
    own = {"max_message_rounds": 9, "min_message_rounds": 9}
    lengths = {f"{other}_protocol": own for other in ("nip", "debate", "mnip")}
    protocol = protocol_of(make_params({"interaction_protocol": name, **lengths}))
    assert assert_decisions_count_in(protocol, tuple(counting)) == counting


def assert_decisions_count_in(protocol: Protocol, rounds: tuple[int, ...]) -> set[int]:
    """Plays once, a decision tried at every turn of every agent; the rounds in which it counts."""
    episode = Episode(key=EVEN_KEYS[0], label=1, stance=1)
    accept = SPECTRA["accept_reject"][1]
    heard = set()
    while moves := movers(protocol, episode):
        turn, round = spoken(moves), len(episode.rounds)
        for place, said in enumerate(turn):
            decided = Utterance(said.agent, "raw", decision=accept)
            attempt = (*turn[:place], decided, *turn[place + 1 :])
            counts = round in rounds and protocol.agents[said.agent].name == "verifier"
            assert may_decide(protocol, round, said.agent) == counts
            if counts:
                assert play_round(protocol, episode, attempt)[0].status == "decided"
                heard.add(round)
            else:
                with pytest.raises(ValueError, match="no decision counts here"):
                    play_round(protocol, episode, attempt)
        episode, _ = play_round(protocol, episode, turn)
    return heard


# ------------------------------------------------------------------------------- who hears what

# Who sees which channels, in natural order; what the others call it; the side it argues for.
SEEN: dict[str, dict[str, tuple[tuple[str, ...], str]]] = {
    "nip": {"prover": (("main",), "Expert"), "verifier": (("main",), "Verifier")},
    "adp": {"prover": (("main",), "Expert"), "verifier": (("main",), "Verifier")},
    "consultancy": {"prover": (("main",), "Expert"), "verifier": (("main",), "Verifier")},
    "debate": {
        "prover0": (("prover0_channel", "prover1_channel"), "Expert_1"),
        "prover1": (("prover0_channel", "prover1_channel"), "Expert_2"),
        "verifier": (("prover0_channel", "prover1_channel"), "Verifier"),
    },
    "merlin_arthur": {  # nobody is told which of the two experts it is
        "prover0": (("main",), "Expert"),
        "prover1": (("main",), "Expert"),
        "verifier": (("main",), "Verifier"),
    },
    "mnip": {
        "prover0": (("prover0_channel",), "Expert_1"),
        "prover1": (("prover1_channel",), "Expert_2"),
        "verifier": (("prover0_channel", "prover1_channel"), "Verifier"),
    },
    "solo_verifier": {"verifier": (("main",), "Verifier")},
    "multi_channel_test": {
        "prover0": (("main", "prover0_verifier", "prover_chat"), "Expert_0"),
        "prover1": (("main", "prover_chat"), "Expert_1"),
        "prover2": (("main", "prover_chat"), "Expert_2"),
        "verifier": (("main", "prover0_verifier"), "Verifier"),
    },
}
CHANNELS = {
    "nip": ("main",),
    "adp": ("main",),
    "consultancy": ("main",),
    "debate": ("prover0_channel", "prover1_channel"),
    "merlin_arthur": ("main",),
    "mnip": ("prover0_channel", "prover1_channel"),
    "solo_verifier": ("main",),
    "multi_channel_test": ("main", "prover0_verifier", "prover_chat"),
}
# Where the order in which an agent reads its channels is not the natural one.
FIRST_OTHERS_THEN_ITS_OWN = {
    ("debate", "prover0"): ("prover1_channel", "prover0_channel"),
    ("debate", "prover1"): ("prover0_channel", "prover1_channel"),
}


def protocol_named(name: str, *, shuffled: bool = False) -> Protocol:
    """The protocol; the order in which the others' channels are read is the opposite."""
    one, other = {"randomize_channel_order": shuffled}, {"randomize_channel_order": not shuffled}
    orders = {f"{each}_protocol": one if each == name else other for each in ("debate", "mnip")}
    return protocol_of(make_params({"interaction_protocol": name, **orders}))


@pytest.mark.parametrize("name", SEEN)
def test_agents_channels_and_who_sees_which(name: str) -> None:
    protocol = protocol_named(name)
    assert tuple(spec.name for spec in protocol.agents) == tuple(SEEN[name])
    assert protocol.channels == CHANNELS[name]
    for agent, (spec, visible) in enumerate(zip(protocol.agents, protocol.visibility, strict=True)):
        seen, shown = SEEN[name][spec.name]
        assert spec.shown_name == shown
        assert spec.anonymous == (name == "merlin_arthur" and spec.role == "prover")
        assert spec.role == ("verifier" if spec.name == "verifier" else "prover")
        assert protocol.is_verifier(agent) == (spec.name == "verifier")
        pairs = zip(CHANNELS[name], visible, strict=True)
        assert tuple(channel for channel, see in pairs if see) == seen


@pytest.mark.parametrize("name", SEEN)
def test_channels_are_read_in_a_fixed_order_where_it_is_not_random(name: str) -> None:
    protocol = protocol_named(name)
    for agent, round, each in product(SEEN[name], range(9), (*EVEN_KEYS, *ODD_KEYS)):
        seen = channels_seen(protocol, index_of(protocol, agent), round, each)
        expected = FIRST_OTHERS_THEN_ITS_OWN.get((name, agent), SEEN[name][agent][0])
        assert tuple(protocol.channels[channel] for channel in seen) == expected


@pytest.mark.parametrize("name", ["debate", "mnip"])
def test_only_the_verifier_may_read_in_random_order(name: str) -> None:
    protocol = protocol_named(name, shuffled=True)
    for agent, round, each in product(("prover0", "prover1"), range(9), EVEN_KEYS):
        seen = channels_seen(protocol, index_of(protocol, agent), round, each)
        expected = FIRST_OTHERS_THEN_ITS_OWN.get((name, agent), SEEN[name][agent][0])
        assert tuple(protocol.channels[channel] for channel in seen) == expected
    orders = [channels_seen(protocol, 2, r, key(i)) for r in range(20) for i in range(20)]
    assert set(orders) == {(0, 1), (1, 0)}
    assert 150 <= orders.count((0, 1)) <= 250  # of 400: fair within five standard deviations
    by_round = {tuple(channels_seen(protocol, 2, r, key(i)) for i in range(20)) for r in range(20)}
    by_game = {tuple(channels_seen(protocol, 2, r, key(i)) for r in range(20)) for i in range(20)}
    assert len(by_round) == len(by_game) == 20


def random_orders() -> str:
    """The order in which the verifier reads in each of many places."""
    return "".join(
        str(channels_seen(protocol_named(name, shuffled=True), 2, round, key(i))[0])
        for name, round, i in product(("debate", "mnip"), range(8), range(30))
    )


def test_a_fresh_process_reads_in_the_same_order_whatever_its_hash_seed() -> None:
    script = "from tests.core.test_protocol_tables import random_orders; print(random_orders())"
    assert printed("-c", script, hash_seed="1").strip() == random_orders()


@pytest.mark.parametrize(
    ("name", "sides", "randomised"),
    [  # the default sides (0 reject, 1 accept), and whether a datapoint may decide them
        ("nip", (1,), True),
        ("adp", (1,), True),
        ("debate", (0, 1), False),
        ("merlin_arthur", (0, 1), False),
        ("mnip", (1, 1), True),
    ],
)
def test_the_sides_of_the_provers(name: str, sides: tuple[int, ...], randomised: bool) -> None:
    for on, stance in product((True, False), (0, 1)):
        common = {"randomize_prover_stance": on}
        params = make_params({"interaction_protocol": name, "protocol_common": common})
        argued = tuple(protocol_of(params).stance(a, stance) for a in range(len(sides)))
        assert argued == ((stance,) * len(sides) if on and randomised else sides)
