import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from nip_fn.config.codec import from_dict
from nip_fn.game.chat import Chat
from nip_fn.game.datapoint import make_datapoint
from nip_fn.game.decision import strongest
from nip_fn.game.episode import Episode, movers, reset
from nip_fn.game.reply import Completion
from nip_fn.keys import key
from nip_fn.params.run import HyperParameters
from nip_fn.prompts.chat import build_chat, questions_left
from nip_fn.protocols.nip import PROVER, VERIFIER
from nip_fn.protocols.registry import protocol_of
from nip_fn.run.events import Replied, SampleReplies
from nip_fn.run.request import request
from nip_fn.run.stages import Growing
from nip_fn.run.state import RunState, episode_of, rules
from nip_fn.training.rows import preference
from nip_fn.training.tuning import Job
from nip_fn.trees.grow import Rules, insert, new_tree
from nip_fn.trees.node import Path, ReplyArrival, episode_after, node_at
from nip_fn.trees.tree import flatten

from .games import (
    BUSY,
    HOSTILE_CODE,
    Play,
    Setup,
    ends,
    last_verifier_round,
    make_params,
    play,
    setups,
)

POINT = make_datapoint("p", 'Is "a" < b & c?', HOSTILE_CODE, 0)

LENGTHS = [(rounds, first) for first in (True, False) for rounds in range(1 if first else 2, 10)]


def say(params: HyperParameters, episode: Episode, text: str) -> Episode:
    """The game after whoever is to speak has said `text`."""
    protocol = protocol_of(params)
    how = Rules(protocol)
    (move,) = movers(protocol, episode)
    completion = Completion(text, "stop", "m")
    root, _ = insert(
        how, new_tree(how, episode), episode, ReplyArrival((), move.agent, 0, 0, completion)
    )
    return episode_after(episode, root.children[0])


def dialogue(params: HyperParameters, texts: dict[int, str]) -> list[tuple[Episode, int, Chat]]:
    """The games before each turn, who speaks then, and the chat; every agent repeats its text.

    The last entry is the game when it is over.
    """
    episode = reset(POINT, key(0))
    shown: list[tuple[Episode, int, Chat]] = []
    while moves := movers(protocol_of(params), episode):
        (move,) = moves
        shown.append(
            (
                episode,
                move.agent,
                build_chat(params, protocol_of(params), POINT, episode, move.agent),
            )
        )
        episode = say(params, episode, texts[move.agent])
    return [*shown, (episode, -1, ())]


def with_length(rounds: int, first: bool, **agents: str) -> HyperParameters:
    return make_params(
        {
            "protocol_common": {"verifier_first": first},
            "nip_protocol": {"max_message_rounds": rounds},
            "agents": {"_default": agents},
        }
    )


UNDECIDED = {PROVER: "Answer: it is.", VERIFIER: "Question for Expert: is it?"}


# --------------------------------------------------------------------------- no wasted round


@pytest.mark.parametrize(("rounds", "first"), LENGTHS)
def test_the_game_ends_at_the_verifiers_last_turn(rounds: int, first: bool) -> None:
    *shown, (ended, _, _) = dialogue(with_length(rounds, first), UNDECIDED)
    assert ended.status == "truncated"
    assert len(ended.rounds) == last_verifier_round(rounds, first) + 1
    assert shown[-1][1] == VERIFIER
    assert [agent for _, agent, _ in shown] == [
        VERIFIER if (r % 2 == 0) == first else PROVER for r in range(len(shown))
    ]


@pytest.mark.parametrize("rule", ["none", "all", "first", "all_but_first"])
def test_the_verifiers_last_prompt_says_that_it_must_decide_and_no_earlier_one_does(
    rule: str,
) -> None:
    for rounds, first in LENGTHS:
        params = with_length(rounds, first, use_supervisor_message=rule)
        *shown, _ = dialogue(params, UNDECIDED)
        chats = [chat for _, agent, chat in shown if agent == VERIFIER]
        told = ["Decide now" in chat[-1].content for chat in chats]
        assert told == [False] * (len(chats) - 1) + [True], (rounds, first)
        assert chats[-1][-1].role == "user"
        assert "Decision: accept" in chats[-1][-1].content


@pytest.mark.parametrize(("rounds", "first"), LENGTHS)
def test_the_count_of_questions_left_goes_down_by_one_to_none(rounds: int, first: bool) -> None:
    params = with_length(rounds, first, use_supervisor_message="all")
    *shown, _ = dialogue(params, UNDECIDED)
    turns = [(episode, chat) for episode, agent, chat in shown if agent == VERIFIER]
    left = [questions_left(protocol_of(params), episode) for episode, _ in turns]
    assert left == list(reversed(range(len(turns))))
    for count, (_, chat) in zip(left, turns, strict=True):
        found = re.search(r"You may ask (\d+) more question(s?)\b", chat[-1].content)
        assert (int(found[1]) if found else 0) == count
        assert not found or bool(found[2]) == (count != 1)
        most = f"at most {len(turns) - 1} question" if len(turns) > 1 else "cannot ask anything"
        assert most in chat[0].content


@pytest.mark.parametrize(("rounds", "first"), LENGTHS)
def test_an_early_decision_is_heard_as_a_message_and_a_later_one_ends_the_game(
    rounds: int, first: bool
) -> None:
    """For each minimum that leaves the verifier a turn to decide in."""
    texts = {PROVER: "Answer: yes.", VERIFIER: "Sure.\nDecision: reject"}
    for minimum in range(1, last_verifier_round(rounds, first) + 2):
        params = with_length(rounds, first)
        params = replace(
            params, nip_protocol=replace(params.nip_protocol, min_message_rounds=minimum)
        )
        *shown, (ended, _, _) = dialogue(params, texts)
        heard = [r for r in range(rounds) if (r % 2 == 0) == first and r + 1 >= minimum]
        assert ended.status == "decided"
        assert len(ended.rounds) == heard[0] + 1
        for episode, agent, chat in shown:
            if agent == PROVER and episode.rounds:
                assert chat[-1].content == f"Verifier: {texts[VERIFIER]}"
        early = [turn[0] for turn in ended.rounds[:-1] if turn[0].agent == VERIFIER]
        assert all(said.messages == ((0, texts[VERIFIER]),) for said in early)


@pytest.mark.parametrize(("rounds", "first"), LENGTHS)
def test_parameters_leave_the_verifier_a_turn_in_which_its_decision_counts(
    rounds: int, first: bool
) -> None:
    texts = {PROVER: "Answer: yes.", VERIFIER: "Decision: reject"}
    for minimum in range(1, 10):
        table = {
            "protocol_common": {"verifier_first": first},
            "nip_protocol": {"max_message_rounds": rounds, "min_message_rounds": minimum},
        }
        params = from_dict(table).value_or(None)
        if params is not None:
            *_, (ended, _, _) = dialogue(params, texts)
            assert ended.status == "decided", minimum


# ------------------------------------------------------------------------------------- chats


# (iteration, stage, tree, path, agent), the game then, and the chat
Asked = tuple[tuple[int, str, int, Path, int], Episode, Chat]


def asked(run: Play) -> Iterator[Asked]:
    """Every chat that was sampled from, with its place: iteration, stage, tree, path, agent."""
    for moment in run:
        for effect in moment.emitted:
            if isinstance(effect, SampleReplies):
                state, (path, agent, _, _) = moment.state, effect.ask
                place = (state.iteration, state.stage.name, effect.tree, path, agent)
                yield place, _episode(moment.state, effect), request(state, effect).chat


def _episode(state: RunState, effect: SampleReplies) -> Episode:
    assert isinstance(state.stage, Growing)
    game = state.stage.forest[effect.tree]
    return node_at(game.root, episode_of(state.stage, effect.tree), effect.ask.path)[1]


@pytest.mark.parametrize("first", [True, False])
def test_nobody_is_asked_to_go_on_after_its_own_words(first: bool) -> None:
    """The supervisor asks if unusable replies leave nothing to answer."""
    params, episode = with_length(6, first), reset(POINT, key(0))
    while moves := movers(protocol_of(params), episode):
        chat = build_chat(params, protocol_of(params), POINT, episode, moves[0].agent)
        assert chat[-1].role == "user"
        episode = say(params, episode, "" if len(episode.rounds) >= 2 else "Well?")


@settings(max_examples=30)
@given(setups())
def test_the_chats_of_any_run_show_each_agent_what_it_may_see_and_train_it_on_that(
    setup: Setup,
) -> None:
    run = play(setup)
    shown = tuple(asked(run))
    for (_, _, _, _, agent), episode, chat in shown:
        own = [each.raw for turn in episode.rounds for each in turn if each.agent == agent]
        others = heard(setup, episode, agent)
        assert_one_system_message_and_a_user(chat)
        assert_nothing_of_channels_it_cannot_see(chat, own, others)
        assert_its_own_replies_are_the_assistants(setup, agent, chat, own)
        assert_it_hears_the_others_in_order(setup, agent, chat, others)
    check_rows(run, shown)


def heard(setup: Setup, episode: Episode, agent: int) -> list[tuple[int, int, str]]:
    """(round, speaker, message) of all that others said in channels that the agent can see."""
    visible = protocol_of(setup.params).visibility[agent]
    return [
        (round_id, said.agent, text)
        for round_id, turn in enumerate(episode.rounds)
        for said in turn
        if said.agent != agent
        for channel, text in said.messages
        if visible[channel]
    ]


def assert_one_system_message_and_a_user(chat: Chat) -> None:
    roles = [message.role for message in chat]
    assert roles[0] == "system"
    assert roles.count("system") == 1
    assert "user" in roles


# Every message of these games carries a token of its own.
TOKEN = re.compile(r"<\d+> & é #\d")


def assert_nothing_of_channels_it_cannot_see(
    chat: Chat, own: list[str], others: list[tuple[int, int, str]]
) -> None:
    may_see = [*own, *(text for _, _, text in others)]
    shown = [found for message in chat for found in TOKEN.findall(message.content)]
    assert sorted(shown) == sorted(found for text in may_see for found in TOKEN.findall(text))


def assert_its_own_replies_are_the_assistants(
    setup: Setup, agent: int, chat: Chat, own: list[str]
) -> None:
    shown = [message.content for message in chat if message.role == "assistant"]
    said = [text for text in own if text.strip()]
    if setup.params.agents[agent].merge_same_role_messages:
        assert all(one.role != other.role for one, other in pairwise(chat))
        assert "\n\n".join(shown) == "\n\n".join(said)
    else:
        assert shown == said


def assert_it_hears_the_others_in_order(
    setup: Setup, agent: int, chat: Chat, others: list[tuple[int, int, str]]
) -> None:
    """By name if the parameters ask for it."""
    own, specs = setup.params.agents[agent], protocol_of(setup.params).agents
    users = [message.content for message in chat if message.role == "user"]
    expected = {
        f"{specs[speaker].shown_name}: {text}" if own.name_speakers_in_content else text: round_id
        for round_id, speaker, text in others
    }
    everything = "\n\n".join(users)
    assert all(text in everything for text in expected)
    if not own.merge_same_role_messages:
        order = [expected[content] for content in users if content in expected]
        assert order == sorted(order)
        assert len(users) - len(others) in (0, 1)  # the supervisor


def test_training_prompts_of_both_agents_are_the_chats_that_were_sampled_from() -> None:
    run = play(BUSY)
    assert check_rows(run, tuple(asked(run))) >= 40


def check_rows(run: Play, shown: tuple[Asked, ...]) -> int:
    """Compares the rows of all jobs with the requests and replies; returns the number of pairs."""
    chats = {place: chat for place, _, chat in shown}
    raw = {
        (before.state.iteration, e.tree, e.path, e.agent, e.index): e.completion.text or ""
        for before, moment in pairwise(run)
        if isinstance(e := moment.event, Replied) and before.state.stage.name == "sample"
    }  # of several attempts, the last
    said = {
        (chats[iteration, "sample", tree, path, agent], text)
        for (iteration, tree, path, agent, _), text in raw.items()
    }
    spectrum, checked = protocol_of(run[-1].state.params).spectrum, 0
    for state in ends(run, "train"):
        for job in (under_way.job for under_way in state.jobs):
            for row in job.rows:
                if row.is_preference:
                    assert all((row.prompt, reply) in said for reply in row.replies)
                else:
                    labels = {f"Decision: {strongest(spectrum, y).text}" for y in (0, 1)}
                    (reply,) = row.replies
                    assert (row.prompt, reply) in said or reply in labels
                    assert any(row.prompt == prompt for prompt, _ in said)
            checked += _check_pairs(state, job, chats, raw)
    return checked


def _check_pairs(state: RunState, job: Job, chats: Any, raw: Any) -> int:
    """Compares the rows of an iteration with its pairs, one by one."""
    agents = next(group.agents for group in state.groups if group.name == job.group)
    assert state.sampled is not None
    pairs = [pair for pair in state.sampled.selection.pairs if pair.agent in agents]
    for pair, row in zip(pairs, job.rows[len(job.rows) - len(pairs) :], strict=True):
        path_N = flatten(state.forest[pair.tree]).path_N
        parent = path_N[pair.parent]
        place = (state.iteration, pair.tree, parent, pair.agent)
        assert row == preference(
            prompt=chats[state.iteration, "sample", pair.tree, parent, pair.agent],
            chosen=raw[*place, path_N[pair.chosen][-1]],
            rejected=raw[*place, path_N[pair.rejected][-1]],
        )
    return len(pairs)


@pytest.mark.parametrize("agent", [PROVER, VERIFIER])
def test_code_reaches_the_prompt_as_it_is(agent: int) -> None:
    params = make_params()
    episode = reset(POINT, key(0))
    if agent == PROVER:
        episode = say(params, episode, "Is <b> & 'c' \"d\"?")
    chat = build_chat(params, protocol_of(params), POINT, episode, agent)
    assert HOSTILE_CODE in chat[0].content
    assert POINT.question in chat[0].content
    if agent == PROVER:
        assert chat[-1].content == "Verifier: Is <b> & 'c' \"d\"?"


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("none", [False, False, False, False]),
        ("first", [True, False, False, False]),
        ("all_but_first", [False, True, True, True]),
        ("all", [True, True, True, True]),
    ],
)
def test_the_supervisor_speaks_in_the_rounds_that_were_asked_for(
    rule: str, expected: list[bool]
) -> None:
    params = with_length(6, True, use_supervisor_message=rule, supervisor_name="Judge")
    *shown, _ = dialogue(params, UNDECIDED)
    spoke = [chat[-1].name == "Judge" for _, _, chat in shown]
    assert spoke[:4] == expected
    assert all(chat[-1].role == "user" for _, _, chat in shown), "every model is addressed"


@pytest.mark.parametrize("stance", [0, 1])
@pytest.mark.parametrize("randomised", [False, True])
def test_a_prover_argues_for_its_side_and_the_verifier_is_not_told_which(
    stance: int, randomised: bool
) -> None:
    params = make_params(
        {
            "protocol_common": {"randomize_prover_stance": randomised, "verifier_first": False},
            "agents": {"_default": {"use_supervisor_message": "all"}},
        }
    )
    point = replace(POINT, stance=stance)
    shown = reset(point, key(0))
    side = "accept" if stance or not randomised else "reject"
    system, request = build_chat(params, protocol_of(params), point, shown, PROVER)
    assert f"Yours is: {side} the code." in system.content
    assert request.content.endswith(f"verdict: {side}.")
    answered = say(params, shown, "Answer: x")
    verifier = build_chat(params, protocol_of(params), point, answered, VERIFIER)
    other = build_chat(
        params, protocol_of(params), replace(point, stance=1 - stance), answered, VERIFIER
    )
    assert verifier == other
    assert ("told to argue that the code is right" in verifier[0].content) != randomised
    assert ("you are not told which one" in verifier[0].content) == randomised


def test_the_stage_decides_how_trees_branch() -> None:
    run = play(BUSY)
    tested = next(m.state for m in run if m.state.stage.name == "test" and m.state.forest)
    sampled = next(m.state for m in run if m.state.stage.name == "sample" and m.state.forest)
    assert len(tested.forest[0].root.slots) == 1
    assert len(sampled.forest[0].root.slots) == 3
    assert rules(sampled).attempts == (2, 2)
