import re
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from nip_fn.export.arrays import ARRAY_COLUMNS, TEXT_DTYPE, plain_arrays, to_arrays
from nip_fn.game.chat import Message
from nip_fn.game.datapoint import Datapoint, make_datapoint
from nip_fn.game.decision import SPECTRA
from nip_fn.game.episode import Episode, Round, movers, reset
from nip_fn.game.protocol import Protocol, game_seed
from nip_fn.game.reply import Completion
from nip_fn.keys import Key, fold_in, key, randint, uniform
from nip_fn.params.run import HyperParameters
from nip_fn.prompts.chat import build_chat
from nip_fn.protocols.registry import PROTOCOLS, protocol_of
from nip_fn.trees.grow import Branching, Policy, Rules, grow
from nip_fn.trees.node import ReplyRequest
from nip_fn.trees.rollouts import Rollout, leaf_games
from nip_fn.trees.tree import flatten, leaves_of

from .games import HOSTILE_CODE, make_params
from .trees import Speak, grown

POINT = make_datapoint("p", 'Is "a" < b & c?', HOSTILE_CODE, 0)

GAME_KEY = key(0)
Arrays = Mapping[str, NDArray[Any]]
NONE = float("nan")


# ---------------------------------------------------------------------------------------- the games


def random_words(protocol: Protocol) -> Policy:
    """Any kind of reply in any protocol."""

    def policy(point: Datapoint, episode: Episode, agent: int, key: Key) -> Completion:
        def chance(what: str) -> float:
            return uniform(fold_in(key, what))

        move = next(move for move in movers(protocol, episode) if move.agent == agent)
        words = f"<{randint(fold_in(key, 'words'), 10**9)}> & é"
        text = "\n".join(f"{header} {words}" for header in protocol.headers(move)) or words
        is_verifier, spectrum = protocol.is_verifier(agent), SPECTRA[protocol.spectrum]
        if is_verifier and chance("decides") < 0.3:
            text = f"Decision: {spectrum[randint(fold_in(key, 'decision'), len(spectrum))].text}"
        if chance("invalid") < 0.15:
            text = "Decision: perhaps" if is_verifier else ""
        return Completion(text, "length" if chance("cut") < 0.2 else "stop", "m")

    return policy


def random_games(
    params: HyperParameters, key: Key, *, k: int = 1, attempts: int = 1, point: Datapoint = POINT
) -> tuple[Rollout, ...]:
    """The games of a tree in which agents say anything."""
    protocol = protocol_of(params)
    rules = Rules(protocol, k, attempts)
    return leaf_games(grow(rules, point, random_words(protocol), key=key), point)


def scripted(*lines: tuple[tuple[int, ...], int, str]) -> Speak:
    """Agents that say what is written for (path, agent), one line for each reply there."""

    def speak(ask: ReplyRequest, index: int) -> str:
        return [text for path, agent, text in lines if (path, agent) == (ask.path, ask.agent)][
            index
        ]

    return speak


def games_of(
    params: HyperParameters,
    speak: Speak,
    *,
    game_key: Key = GAME_KEY,
    branching: int | Branching = 1,
    attempts: int = 1,
) -> tuple[Rollout, ...]:
    """The games of a tree in which every agent says what `speak` has it say."""
    protocol = protocol_of(params)
    rules = Rules(protocol, branching, attempts)
    return leaf_games(flatten(grown(rules, reset(POINT, game_key), speak)), POINT)


class Played(NamedTuple):
    params: HyperParameters
    games: tuple[Rollout, ...]


@st.composite
def played(draw: st.DrawFn, name: str) -> Played:
    """Random games of a protocol, several of them from one tree."""
    length = {"max_message_rounds": draw(st.integers(3, 5))}
    turns = {"sequential": draw(st.booleans()), "prover0_first": draw(st.booleans())}
    params = make_params(
        {
            "interaction_protocol": name,
            "nip_protocol": length,
            "mnip_protocol": {**length, **turns},
            "debate_protocol": {**length, **turns},
            "protocol_common": {
                "verifier_first": draw(st.booleans()),
                "verifier_decision_spectrum": draw(st.sampled_from(sorted(SPECTRA))),
                "prover_invalid_response_penalty": draw(st.sampled_from([None, -0.5])),
                "verifier_no_guess_reward": draw(st.sampled_from([0.0, 0.125])),
                "force_guess": draw(st.sampled_from([None, None, "y"])),
            },
        }
    )
    root_key, games = key(draw(st.integers(0, 2**32))), list[Rollout]()
    k = 1 if name == "multi_channel_test" else draw(st.integers(1, 2))
    for i in range(draw(st.integers(1, 3))):
        point = make_datapoint("p", f"Is it {i}?", f"{HOSTILE_CODE}{i}", i % 2)
        attempts = draw(st.integers(1, 2))
        game_key = fold_in(root_key, i)
        games.extend(random_games(params, game_key, k=k, attempts=attempts, point=point))
    return Played(params, tuple(games[:20]))


def last_real(arrays: Arrays) -> NDArray[np.bool_]:
    """`[R, T]` whether a row is the last that was played."""
    last: NDArray[np.bool_] = (arrays["done"] | arrays["terminated"]) & ~arrays["padding"]
    return last


# ------------------------------------------------------------------------------- worked out by hand


def nip_games() -> Played:
    """Three rounds, the verifier first; two replies of the verifier, one of the prover."""
    params = make_params({"nip_protocol": {"max_message_rounds": 3}})
    speak = scripted(
        ((), 1, "Why?"),
        ((), 1, "No.\n**Decision:** reject"),
        ((0,), 0, "Because."),
        ((0, 0), 1, "Decision: accept"),
        ((0, 0), 1, "Hm."),
    )
    games = games_of(params, speak, branching=lambda moves: 2 if moves[0].agent == 1 else 1)
    return Played(params, games)


def test_rollouts_are_the_games_of_a_tree_from_left_to_right() -> None:
    games = nip_games().games
    texts = [[said.raw for turn in game.rounds for said in turn] for game in games]
    assert texts == [
        ["Why?", "Because.", "Decision: accept"],
        ["Why?", "Because.", "Hm."],
        ["No.\n**Decision:** reject"],
    ]
    assert [game.status for game in games] == ["decided", "truncated", "decided"]
    assert [game.rewards for game in games] == [
        ((0.0, 0.0), (0.0, 0.0), (1.0, -1.0)),
        ((0.0, 0.0), (0.0, 0.0), (0.0, -1.0)),
        ((0.0, 1.0),),
    ]
    assert {(game.datapoint, game.key) for game in games} == {(POINT, key(0))}


def test_nip_by_hand() -> None:
    arrays = {name: array.tolist() for name, array in to_arrays(*nip_games()).items()}
    F, T = False, True
    assert arrays["round"] == [[0, 1, 2], [0, 1, 2], [0, 1, 1]]
    assert arrays["padding"] == [[F, F, F], [F, F, F], [F, T, T]]
    assert arrays["done"] == [[F, F, T], [F, F, F], [T, T, T]]
    assert arrays["agent_done"] == [[[d, d] for d in row] for row in arrays["done"]]
    assert arrays["terminated"] == [[F, F, F], [F, F, T], [F, F, F]]
    assert arrays["end"] == [
        ["open", "open", "decided"],
        ["open", "open", "truncated"],
        ["decided"] * 3,
    ]
    silent = [2, 2]
    assert arrays["decision"] == [
        [silent, silent, [2, 1]],
        [silent, silent, silent],
        [[2, 0], silent, silent],
    ]
    np.testing.assert_array_equal(
        arrays["continuous_decision"],
        [
            [[NONE, NONE], [NONE, NONE], [NONE, 1.0]],
            [[NONE, NONE], [NONE, NONE], [NONE, NONE]],
            [[NONE, -1.0], [NONE, NONE], [NONE, NONE]],
        ],
    )
    assert arrays["raw_decision"] == [
        [[None, ""], ["", None], [None, "accept"]],
        [[None, ""], ["", None], [None, ""]],
        [[None, "reject"], [None, None], [None, None]],
    ]
    assert arrays["message"] == [
        [[[None], ["Why?"]], [["Because."], [None]], [[None], [None]]],
        [[[None], ["Why?"]], [["Because."], [None]], [[None], ["Hm."]]],
        [[[None], [None]]] * 3,
    ]
    assert arrays["raw_message"][0] == [
        [None, "Why?"],
        ["Because.", None],
        [None, "Decision: accept"],
    ]
    assert arrays["raw_message"][2] == [[None, "No.\n**Decision:** reject"], [None] * 2, [None] * 2]
    assert arrays["reward"] == [
        [[0, 0], [0, 0], [1, -1]],
        [[0, 0], [0, 0], [0, -1]],
        [[0, 1], [0, 0], [0, 0]],
    ]


def test_nip_by_hand_what_is_remembered() -> None:
    arrays = {name: array.tolist() for name, array in to_arrays(*nip_games()).items()}
    nothing = [[None]] * 3
    assert arrays["message_history"] == [
        [nothing, [["Why?"], [None], [None]], [["Why?"], ["Because."], [None]]],
        [nothing, [["Why?"], [None], [None]], [["Why?"], ["Because."], [None]]],
        [nothing, nothing, nothing],
    ]
    assert arrays["message_agent_id"][0] == [[[-1]] * 3, [[1], [-1], [-1]], [[1], [0], [-1]]]
    assert arrays["message_agent_id"][2] == [[[-1]] * 3] * 3
    decided = [[None, "No.\n**Decision:** reject"], [None] * 2, [None] * 2]
    assert arrays["raw_message_history"][2] == [[[None] * 2] * 3, decided, decided]
    for name, value in {
        "question": POINT.question,
        "solution": POINT.solution,
        "datapoint_id": POINT.id,
        "y": 0,
        "prover_stance": POINT.stance,
        "seed": game_seed(key(0)),
    }.items():
        assert arrays[name] == [[value] * 3] * 3


@pytest.mark.parametrize("name", ["mnip", "debate"])
def test_two_provers_at_once_each_in_its_own_channel(name: str) -> None:
    params = make_params(
        {"interaction_protocol": name, f"{name}_protocol": {"max_message_rounds": 3}}
    )
    asked = "Question for Expert_1: A?\nQuestion for Expert_2: B?"
    speak = scripted(
        ((), 2, asked), ((0,), 0, "a"), ((0,), 1, "b"), ((0, 0), 2, "So.\nDecision: reject")
    )
    arrays = {n: a[0].tolist() for n, a in to_arrays(params, games_of(params, speak)).items()}
    silent = [None, None]
    question = ["Question for Expert_1: A?", "Question for Expert_2: B?"]
    assert arrays["message"] == [
        [silent, silent, question],
        [["a", None], [None, "b"], silent],
        [silent] * 3,
    ]
    assert arrays["message_history"][2] == [question, ["a", "b"], silent]
    assert arrays["message_agent_id"] == [
        [[-1, -1]] * 3,
        [[2, 2], [-1, -1], [-1, -1]],
        [[2, 2], [0, 1], [-1, -1]],
    ]
    assert arrays["raw_message_history"][2] == [[None, None, asked], ["a", "b", None], [None] * 3]
    assert arrays["decision"] == [[2, 2, 2], [2, 2, 2], [2, 2, 0]]
    assert arrays["reward"][2] == [0.0 if name == "mnip" else 1.0, 0.0, 1.0]


@pytest.mark.parametrize("parity", [0, 1])
def test_the_prover_that_was_not_drawn_is_silent_everywhere(parity: int) -> None:
    params = make_params({"interaction_protocol": "merlin_arthur"})
    game_key = next(key(i) for i in range(99) if game_seed(key(i)) % 2 == parity)
    speak = scripted(((), parity, "It holds."), ((0,), 2, "Decision: accept"))
    arrays = to_arrays(params, games_of(params, speak, game_key=game_key))
    silent = 1 - parity
    for name in ("message", "raw_message", "raw_decision", "prompt"):
        assert set(arrays[name][:, :, silent].ravel().tolist()) == {None}
        assert set(arrays[name][:, :, parity].ravel().tolist()) != {None}
    assert set(arrays["raw_message_history"][..., silent].ravel().tolist()) == {None}
    assert arrays["decision"][0, :, silent].tolist() == [2, 2]
    assert arrays["valid_response"][0, :, silent].tolist() == [True, True]
    assert arrays["message_agent_id"].tolist() == [[[[-1], [-1]], [[parity], [-1]]]]
    assert arrays["seed"][0, 0] % 2 == parity


def test_replies_that_could_not_be_used() -> None:
    params = make_params({"interaction_protocol": "adp"})
    texts = {(0, 0): "", (0, 1): "Yes.", (1, 0): "Decision: perhaps", (1, 1): "Decision: perhaps"}

    def speak(ask: ReplyRequest, index: int) -> Completion:
        text = texts[ask.agent, ask.attempt]
        return Completion(text, "stop" if ask.agent == 0 else "length", "m")

    arrays = to_arrays(params, games_of(params, speak, attempts=2))
    assert arrays["retry_count"].tolist() == [[[[1], [0]], [[0], [2]]]]
    assert arrays["valid_response"].tolist() == [[[True, True], [True, False]]]
    assert arrays["token_limit"].tolist() == [[[[False], [False]], [[False], [True]]]]
    assert arrays["raw_message"].tolist() == [[["Yes.", None], [None, "Decision: perhaps"]]]
    assert arrays["raw_decision"].tolist() == [[["", None], [None, ""]]]
    assert arrays["end"].tolist() == [["open", "truncated"]]


# --------------------------------------------------------------------------------------------- laws


@pytest.mark.parametrize("name", PROTOCOLS)
def test_shapes_and_types_with_and_without_games(name: str) -> None:
    params = make_params({"interaction_protocol": name})
    protocol = protocol_of(params)
    T, C, A = protocol.max_message_rounds, len(protocol.channels), len(protocol.agents)
    games = random_games(params, key(1))
    for R, arrays in ((0, to_arrays(params, ())), (2, to_arrays(params, games * 2))):
        sizes = {"R": R, "T": T, "C": C, "A": A}
        assert list(arrays) == [column.name for column in ARRAY_COLUMNS]
        for column in ARRAY_COLUMNS:
            assert arrays[column.name].shape == tuple(sizes[d] for d in column.shape)
            assert arrays[column.name].dtype == np.dtype(column.dtype)


def test_every_column_is_described_with_its_shape() -> None:
    described = {
        name: shape.replace(", ", "")
        for names, shape in re.findall(
            r"^ {8}(\w+(?:, \w+)*) +\[([\w, ]+)\] ", to_arrays.__doc__ or "", re.MULTILINE
        )
        for name in names.split(", ")
    }
    assert described == {column.name: column.shape for column in ARRAY_COLUMNS}


def padding_never_looks_like_a_decision_nor_a_reply(played: Played, arrays: Arrays) -> None:
    padding = arrays["padding"]
    assert padding.tolist() == [
        [t >= len(game.rounds) for t in range(padding.shape[1])] for game in played.games
    ]
    assert np.all(arrays["decision"][padding] == 2)
    assert np.all(np.isnan(arrays["continuous_decision"][padding]))
    assert np.all(arrays["valid_response"][padding])
    for column in ("reward", "retry_count", "token_limit"):
        assert not arrays[column][padding].any()
    for column in ("message", "raw_message", "raw_decision", "prompt"):
        assert set(arrays[column][padding].ravel().tolist()) <= {None}


def the_last_real_row_is_that_in_which_the_game_ends(played: Played, arrays: Arrays) -> None:
    assert last_real(arrays).sum(axis=1).tolist() == [1] * len(played.games)
    assert last_real(arrays).argmax(axis=1).tolist() == [len(g.rounds) - 1 for g in played.games]
    over = arrays["done"] | arrays["terminated"]
    assert np.all(np.diff(over.astype(int), axis=1) >= 0)
    assert not np.any(arrays["done"] & arrays["terminated"])
    for r, game in enumerate(played.games):
        assert set(arrays["end"][r, over[r]].tolist()) == {game.status}
        assert set(arrays["end"][r, ~over[r]].tolist()) <= {"open"}
        assert arrays["done"][r, -1] == (game.status == "decided")
    assert np.all(arrays["agent_done"] == arrays["done"][:, :, None])


def a_game_is_decided_in_its_last_real_row_alone(played: Played, arrays: Arrays) -> None:
    decided = np.any(arrays["decision"] != 2, axis=2)
    assert np.array_equal(decided, arrays["done"] & last_real(arrays))
    assert np.array_equal(arrays["decision"] == 2, np.isnan(arrays["continuous_decision"]))


def rewards_over_all_rounds_are_the_games_totals(played: Played, arrays: Arrays) -> None:
    totals = arrays["reward"].sum(axis=1)
    for total, game in zip(totals, played.games, strict=True):
        assert total == pytest.approx([sum(of) for of in zip(*game.rewards, strict=True)])


def prompts_are_the_chats_of_whoever_speaks(played: Played, arrays: Arrays) -> None:
    params, games = played
    prompts = arrays["prompt"]
    for r, game in enumerate(games):
        for t in range(prompts.shape[1]):
            episode = Episode(
                game.key, game.datapoint.label, game.datapoint.stance, game.rounds[:t]
            )
            speaking = {said.agent for turn in game.rounds[t : t + 1] for said in turn}
            for agent in range(prompts.shape[2]):
                shown = None
                if agent in speaking:
                    shown = build_chat(params, protocol_of(params), game.datapoint, episode, agent)
                assert prompts[r, t, agent] == shown


def a_row_remembers_the_rounds_before_it_and_no_others(played: Played, arrays: Arrays) -> None:
    for r, game in enumerate(played.games):
        for t in range(arrays["round"].shape[1]):
            before = game.rounds[:t]
            assert arrays["round"][r, t] == len(before)
            row = {name: arrays[name][r, t] for name in arrays}
            assert texts_of(row["raw_message_history"]) == raw_of(before)
            assert texts_of(row["message_history"]) == messages_of(before)
            senders = {place: row["message_agent_id"][place] for place in messages_of(before)}
            assert senders == {
                (s, channel): said.agent
                for s, turn in enumerate(before)
                for said in turn
                for channel, _ in said.messages
            }
            assert (row["message_agent_id"] != -1).sum() == len(senders)


def texts_of(history: NDArray[Any]) -> dict[tuple[int, ...], str]:
    places = np.ndindex(history.shape)
    return {place: str(history[place]) for place in places if history[place] is not None}


def raw_of(turns: tuple[Round, ...]) -> dict[tuple[int, ...], str]:
    return {(s, said.agent): said.raw for s, turn in enumerate(turns) for said in turn}


def messages_of(turns: tuple[Round, ...]) -> dict[tuple[int, ...], str]:
    return {
        (s, channel): text
        for s, turn in enumerate(turns)
        for said in turn
        for channel, text in said.messages
    }


def every_reply_that_could_not_be_used_is_marked_and_no_other(
    played: Played, arrays: Arrays
) -> None:
    bad = {
        (r, t, said.agent)
        for r, game in enumerate(played.games)
        for t, turn in enumerate(game.rounds)
        for said in turn
        if said.error is not None
    }
    assert {tuple(place) for place in np.argwhere(~arrays["valid_response"]).tolist()} == bad


LAWS = (
    padding_never_looks_like_a_decision_nor_a_reply,
    the_last_real_row_is_that_in_which_the_game_ends,
    a_game_is_decided_in_its_last_real_row_alone,
    rewards_over_all_rounds_are_the_games_totals,
    prompts_are_the_chats_of_whoever_speaks,
    a_row_remembers_the_rounds_before_it_and_no_others,
    every_reply_that_could_not_be_used_is_marked_and_no_other,
)


# Of two judges that decide together one may decide in vain, which no array tells.
@pytest.mark.parametrize("name", sorted(PROTOCOLS.keys() - {"symmetric_debate"}))
@settings(max_examples=20)
@given(st.data())
def test_arrays_of_any_games_keep_all_laws(name: str, data: st.DataObject) -> None:
    some = data.draw(played(name))
    arrays = to_arrays(*some)
    for law in LAWS:
        law(some, arrays)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_tree_has_one_rollout_for_each_of_its_leaves(name: str) -> None:
    params = make_params({"interaction_protocol": name, "mnip_protocol": {"max_message_rounds": 4}})
    protocol = protocol_of(params)
    tree = grow(Rules(protocol, 2), POINT, random_words(protocol), key=key(3))
    games, leaves = leaf_games(tree, POINT), leaves_of(tree)
    assert [game.rounds[-1] for game in games] == [tree.utterances_N[leaf] for leaf in leaves]
    assert [game.status for game in games] == [tree.status_N[leaf] for leaf in leaves]


# ---------------------------------------------------------------------------------- what is refused


def one_game(*tables: Mapping[str, Any]) -> Played:
    params = make_params(*tables)
    return Played(params, random_games(params, key(5)))


def test_rollouts_of_different_protocols_are_refused() -> None:
    params, games = nip_games()
    short = {"mnip_protocol": {"max_message_rounds": 3}}
    (other,) = one_game({"interaction_protocol": "mnip"}, short).games
    with pytest.raises(ValueError, match="rollout 3: round 0 of nip"):
        to_arrays(params, (*games, other))
    (same_agents,) = one_game({"interaction_protocol": "adp"}).games
    with pytest.raises(ValueError, match="rollout 0: round 0 of nip"):
        to_arrays(params, (same_agents,))


def test_rollouts_with_more_rounds_than_the_protocol_has_are_refused() -> None:
    shorter = make_params({"nip_protocol": {"max_message_rounds": 2}})
    with pytest.raises(ValueError, match="rollout 0: 3 rounds, but nip has 2 at most"):
        to_arrays(shorter, nip_games().games)


def test_games_that_have_not_ended_are_refused() -> None:
    params, games = nip_games()
    first = games[0]
    cut = first._replace(rounds=first.rounds[:2], rewards=first.rewards[:2], status="open")
    never_begun = Rollout(POINT, key(0), (), (), "open")
    longer = make_params({"nip_protocol": {"max_message_rounds": 5}})
    for how, game in ((params, cut), (params, never_begun), (longer, games[1])):
        with pytest.raises(ValueError, match="this game of nip is 'open'"):
            to_arrays(how, (game,))


def test_a_wrong_end_or_number_of_rewards_is_refused() -> None:
    params, games = nip_games()
    with pytest.raises(ValueError, match="ends as 'truncated', but this game of nip is 'decided'"):
        to_arrays(params, (games[0]._replace(status="truncated"),))
    for rewards in ((), ((0.0, 0.0),) * 2, ((0.0,),) * 3):
        with pytest.raises(ValueError, match="not a reward for each round and agent of nip"):
            to_arrays(params, (games[0]._replace(rewards=rewards),))


# ---------------------------------------------------------------------------------------- on a disk


def read_back(file: Path) -> Arrays:
    """The arrays in a file, read as docs/evaluation.md says."""
    games = np.load(file)
    encoded = np.split(games["text_bytes"], games["text_ends"][:-1])
    texts = [bytes(text).decode() for text in encoded] + [None]
    chats = np.split(games["prompt_messages"], games["prompt_ends"][:-1])
    prompts = [tuple(Message(texts[r], texts[c], texts[n]) for c, r, n in chat) for chat in chats]

    def objects(name: str) -> NDArray[Any]:
        values = [*prompts, None] if name == "prompt" else texts
        cells = np.empty(games[name].size, dtype=TEXT_DTYPE)
        for place, index in enumerate(games[name].flat):
            cells[place] = values[index]
        return cells.reshape(games[name].shape)

    return {
        column.name: objects(column.name) if column.dtype == TEXT_DTYPE else games[column.name]
        for column in ARRAY_COLUMNS
    }


@pytest.mark.parametrize("num", [0, 3])
def test_what_is_saved_without_pickles_is_read_back(tmp_path: Path, num: int) -> None:
    params, games = nip_games()
    arrays, file = to_arrays(params, games[:num]), tmp_path / "games.npz"
    np.savez(file, allow_pickle=False, **plain_arrays(arrays))
    loaded = read_back(file)
    assert list(loaded) == list(arrays)
    for name, array in arrays.items():
        assert loaded[name].shape == array.shape
        np.testing.assert_array_equal(loaded[name], array)


def test_memory_is_in_proportion_to_the_text() -> None:
    # One text much longer than the others, of which a cell of fixed width would be a copy each.
    params = make_params({"nip_protocol": {"max_message_rounds": 6}})

    def speak(ask: ReplyRequest, index: int) -> str:
        at = len(ask.path)
        return f"{at} {ask.path} {index} " + "x" * (200_000 if at == 1 else 50 * at)

    games = games_of(params, speak, branching=lambda moves: 2)
    tracemalloc.start()
    plain = plain_arrays(to_arrays(params, games))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(games) == 32
    assert peak < 4 * plain["text_bytes"].size + 500_000, (peak, plain["text_bytes"].size)


def test_texts_are_kept_to_the_last_character() -> None:
    text = "é\N{PILE OF POO}\r\n ends with zeros \0\0"
    params = make_params({"nip_protocol": {"max_message_rounds": 3}})
    speak = scripted(((), 1, text), ((0,), 0, text), ((0, 0), 1, "Decision: accept"))
    arrays = to_arrays(params, games_of(params, speak))
    assert arrays["raw_message"][0, 0, 1] == text
    assert arrays["message_history"][0, 2, :, 0].tolist() == [text, text, None]
    assert text in [message.content for message in arrays["prompt"][0, 2, 1]]
