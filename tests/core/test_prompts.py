"""The content of the prompts: complete, addressed to the right agent, and true."""

import re
from itertools import pairwise, product
from typing import Any

import pytest
from msgspec.structs import replace

from nip_fn.config.codec import from_dict, merge
from nip_fn.game.answer import ANSWER_INSTRUCTIONS
from nip_fn.game.chat import Chat, Message
from nip_fn.game.datapoint import make_datapoint
from nip_fn.game.decision import SPECTRA, decision_instructions
from nip_fn.game.episode import Episode, Utterance, movers, play_round, reset
from nip_fn.game.protocol import AgentSpec, game_seed, has_answers, verifier_rounds
from nip_fn.keys import key
from nip_fn.params.run import HyperParameters
from nip_fn.prompts.chat import build_chat
from nip_fn.protocols.pvg import HELPFUL, SNEAKY
from nip_fn.protocols.registry import PROTOCOLS, MakeProtocol, agent_names, protocol_of
from nip_fn.protocols.solo_verifier import solo_verifier

POINT = make_datapoint("p", "Add two numbers & <print> them.", "def f(a, b): return a - b", 0)
SUPERVISED = {"agents": {"_default": {"use_supervisor_message": "all"}}}

# Whose prompts are written for its roles; the test protocol makes do with those of any protocol.
WITH_PROMPTS = [name for name in PROTOCOLS if name != "multi_channel_test"]


def params_of(protocol: str, *tables: dict[str, Any]) -> HyperParameters:
    table: dict[str, Any] = {"interaction_protocol": protocol}
    for other in tables:
        table = merge(table, other)
    return from_dict(table).unwrap()


def common(**fields: object) -> dict[str, Any]:
    return {"protocol_common": fields}


def is_given(protocol: str) -> bool:
    """True if the data say which solution is judged."""
    return not has_answers(protocol_of(params_of(protocol)))


GIVEN = [name for name in WITH_PROMPTS if is_given(name)]


def chats(
    params: HyperParameters, seed: int = 0, point: Any = POINT
) -> list[tuple[int, int, Chat]]:
    """(round, agent, chat) at every turn of a game in which nobody decides."""
    protocol, episode = protocol_of(params), reset(point, key(seed))
    shown = []
    while moves := movers(protocol, episode):
        turn = []
        for move in moves:
            round = len(episode.rounds)
            shown.append(
                (
                    round,
                    move.agent,
                    build_chat(params, protocol_of(params), point, episode, move.agent),
                )
            )
            words = f"words-{round}-{move.agent}"
            turn.append(Utterance(move.agent, words, tuple((c, words) for c in move.channels)))
        episode, _ = play_round(protocol, episode, tuple(turn))
    return shown


def text_of(chat: Chat) -> str:
    return "\n".join(message.content for message in chat)


# ------------------------------------------------------------------------------- all of it


@pytest.mark.parametrize("version", ["v1", "views"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_prompt_renders_whatever_the_rules(protocol: str, version: str) -> None:
    rules = product(sorted(SPECTRA), (False, True), (False, True), (0, 1))
    for spectrum, randomised, shared, first in rules:
        params = params_of(
            protocol,
            SUPERVISED,
            common(
                verifier_decision_spectrum=spectrum,
                randomize_prover_stance=randomised,
                shared_reward=shared,
                verifier_first=bool(first),
            ),
            {"code_validation": {"system_prompt_version": version}},
        )
        for _, _, chat in chats(params):
            assert chat[0].role == "system"
            assert chat[-1].role == "user"
            assert POINT.question in chat[0].content
            told = f"```python\n{POINT.solution}\n```"
            assert (told in chat[0].content) == (version == "v1" and is_given(protocol))
            text = text_of(chat)
            assert not re.search(r"\{\{|\{%|\n\n\n| \n|\bNone\b|  ", text), text


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_answer_in_prose_is_nowhere_called_a_program(protocol: str) -> None:
    point = make_datapoint("p", "What is the capital?", "It is Paris.", 0, kind="prose")
    for randomised, balanced in product((False, True), (False, True)):
        params = params_of(
            protocol,
            SUPERVISED,
            common(randomize_prover_stance=randomised),
            {"dataset_options": {"balance_classes": balanced}},
        )
        for _, _, chat in chats(params, point=point):
            text = text_of(chat)
            assert point.question in text
            assert (point.solution in text) == is_given(protocol)
            assert not re.search(r"python|code|program|bug|particular lines|```", text, re.I), text
            assert not re.search(r"\{\{|\{%|\n\n\n| \n|\bNone\b|  ", text), text


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_verifiers_are_told_how_to_decide_and_provers_are_not(protocol: str) -> None:
    for spectrum in SPECTRA:
        params = params_of(protocol, SUPERVISED, common(verifier_decision_spectrum=spectrum))
        for _, agent, chat in chats(params):
            told = decision_instructions(spectrum) in chat[0].content
            assert told == protocol_of(params).is_verifier(agent), spectrum
            assert ("Decision:" in text_of(chat)) == protocol_of(params).is_verifier(agent)


@pytest.mark.parametrize("spectrum", SPECTRA)
def test_instructions_name_decisions_of_the_spectrum_only(spectrum: Any) -> None:
    texts = {decision.text for decision in SPECTRA[spectrum]}
    named = set(re.findall(r"`Decision: ([^`]+)`", decision_instructions(spectrum)))
    assert named <= texts
    assert len(texts) > 10 or named == texts


@pytest.mark.parametrize("protocol", WITH_PROMPTS)
def test_the_word_limit_reaches_every_prover(protocol: str) -> None:
    params = params_of(protocol, {"agents": {"_default": {"max_response_words": 77}}})
    for _, agent, chat in chats(params):
        assert ("at most 77 words" in chat[0].content) != protocol_of(params).is_verifier(agent)


# ------------------------------------------------------------------------------ what is true


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("randomised", [False, True])
@pytest.mark.parametrize("protocol", GIVEN)
def test_provers_are_told_the_side_that_they_are_paid_for(
    protocol: str, randomised: bool, seed: int
) -> None:
    params = params_of(protocol, SUPERVISED, common(randomize_prover_stance=randomised))
    game = protocol_of(params)
    for stance in (0, 1):
        point = make_datapoint("p", "q", f"s{stance * 5}", 1)
        assert point.stance in (0, 1)
        for _, agent, chat in chats(params, seed, point):
            if not game.is_verifier(agent):
                side = "accept" if game.stance(agent, point.stance) else "reject"
                other = "reject" if side == "accept" else "accept"
                assert f"Yours is: {side} the code." in chat[0].content
                assert f"decides to {side} the code" in chat[0].content
                assert chat[-1].content.endswith(f"verdict: {side}.")
                assert other not in text_of(chat)


@pytest.mark.parametrize("protocol", sorted(set(WITH_PROMPTS) - set(GIVEN)))
def test_whoever_writes_the_answer_is_told_how_to_state_it_and_nobody_else(protocol: str) -> None:
    params = params_of(protocol)
    game = protocol_of(params)
    for round_id, agent, chat in chats(params):
        writes = any(m.agent == agent and m.answers for m in game.schedule(round_id, key(0)))
        assert (ANSWER_INSTRUCTIONS in chat[-1].content) == writes


def test_the_two_provers_of_a_pvg_are_told_to_answer_rightly_and_wrongly() -> None:
    params = params_of("pvg")
    firsts = {agent: chat[0].content for seed in range(8) for _, agent, chat in chats(params, seed)}
    assert "if the code is right and Verifier accepts it" in firsts[HELPFUL]
    assert "if the code is wrong and Verifier accepts it" in firsts[SNEAKY]


@pytest.mark.parametrize("protocol", ["nip", "adp", "mnip"])
def test_a_verifier_is_never_told_a_randomised_side(protocol: str) -> None:
    params = params_of(protocol, SUPERVISED, common(randomize_prover_stance=True))
    sides = []
    for stance in (0, 1):
        point = replace(POINT, stance=stance)
        sides.append(
            [c for _, agent, c in chats(params, 0, point) if protocol_of(params).is_verifier(agent)]
        )
    assert sides[0] == sides[1]
    assert "not told which one" in sides[0][0][0].content


def test_a_verifier_is_told_fixed_sides() -> None:
    def told(protocol: str) -> str:
        params = params_of(protocol)
        verifier = len(agent_names(protocol)) - 1
        return next(c[0].content for _, agent, c in chats(params) if agent == verifier)

    for protocol in ("nip", "adp"):
        assert "Expert has been told to argue that the code is right" in told(protocol)
    assert "Both have been told to argue that the code is right" in told("mnip")
    assert "Expert_1 has been told to argue that the code is wrong" in told("debate")
    assert "Expert_2 has been told to argue that the code is right" in told("debate")
    assert "one has been told to argue that the code is right" in told("merlin_arthur")


HALF = "Half of all the pieces of code you are shown are right; the other half contain a bug"
SOME = "Some of the pieces of code you are shown are right; others contain a bug"


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"dataset_options": {"balance_classes": True}}, HALF),
        ({"dataset_options": {"balance_classes": False}}, SOME),
        ({"dataset_options": {"balance_classes": True, "only_label": 0}}, SOME),
    ],
)
@pytest.mark.parametrize("protocol", GIVEN)
def test_the_share_of_right_solutions_is_true_of_what_is_shown(
    protocol: str, table: dict[str, Any], said: str
) -> None:
    params = params_of(protocol, table)
    for _, agent, chat in chats(params):
        if protocol_of(params).is_verifier(agent):
            assert said in chat[0].content


def test_the_verifier_of_merlin_arthur_cannot_tell_who_spoke() -> None:
    params = params_of("merlin_arthur", SUPERVISED)
    even, odd = (
        next(seed for seed in range(20) if game_seed(key(seed)) % 2 == parity) for parity in (0, 1)
    )
    shown = {}
    for seed in (even, odd):
        *_, (_, agent, chat) = chats(params, seed)
        assert agent == 2
        shown[seed] = [(m.role, re.sub(r"words-0-\d", "words", m.content), m.name) for m in chat]
        assert not re.search(r"Expert_\d", text_of(chat))
    assert shown[even] == shown[odd]


@pytest.mark.parametrize("protocol", GIVEN)
def test_shared_rewards_are_no_secret(protocol: str) -> None:
    for shared in (False, True):
        params = params_of(protocol, common(shared_reward=shared))
        for _, agent, chat in chats(params):
            if not protocol_of(params).is_verifier(agent):
                assert ("reaches the right verdict" in chat[0].content) == shared


# ---------------------------------------------------------------------------------- the turns

LENGTHS = [
    (protocol, rounds, sequential, first)
    for protocol in ("nip", "debate", "mnip")
    for rounds in (3, 4, 8, 9)
    for sequential in ((False,) if protocol == "nip" else (False, True))
    for first in (False, True)
]


@pytest.mark.parametrize("rule", ["none", "all"])
@pytest.mark.parametrize(("protocol", "rounds", "sequential", "first"), LENGTHS)
def test_questions_are_counted_down_to_the_last_turn_which_is_announced(
    protocol: str, rounds: int, sequential: bool, first: bool, rule: str
) -> None:
    length: dict[str, Any] = {"max_message_rounds": rounds}
    if protocol != "nip":
        length["sequential"] = sequential
    params = params_of(
        protocol,
        {f"{protocol}_protocol": length},
        {"agents": {"_default": {"use_supervisor_message": rule}}},
        common(verifier_first=first),
    )
    game = protocol_of(params)
    shown = [chat for _, agent, chat in chats(params) if game.is_verifier(agent)]
    turns = len(verifier_rounds(game, key(0)))
    assert len(shown) == turns
    assert ["Decide now" in chat[-1].content for chat in shown] == [False] * (turns - 1) + [True]
    if rule == "all":
        counted = [re.search(r"ask (\d+) more", chat[-1].content) for chat in shown[:-1]]
        assert [int(found[1]) for found in counted if found] == list(range(turns - 1, 0, -1))
    most = re.search(r"ask at most (\d+) ", shown[0][0].content)
    assert (int(most[1]) if most else 0) == turns - 1
    assert ("cannot ask anything" in shown[0][0].content) == (turns == 1)


def test_a_verifier_is_told_while_its_verdict_does_not_count() -> None:
    params = params_of(
        "nip", SUPERVISED, {"nip_protocol": {"max_message_rounds": 7, "min_message_rounds": 4}}
    )
    shown = [chat[-1].content for _, agent, chat in chats(params) if agent == 1]
    assert ["does not count yet" in text for text in shown] == [True, True, False, False]


def test_a_prover_answers_once_it_is_asked_and_opens_before() -> None:
    for first in (False, True):
        params = params_of("debate", SUPERVISED, common(verifier_first=first))
        for round, agent, chat in chats(params):
            if agent != 2:
                assert ("answer what you were asked" in chat[-1].content) == (first or round > 0)


def test_a_protocol_that_is_redefined_takes_effect_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a notebook: the parameters are the same, the function under the name is another."""

    def named(name: str) -> MakeProtocol:
        spec = AgentSpec("verifier", "verifier", name)
        return lambda params: solo_verifier(params)._replace(agents=(spec,))

    monkeypatch.setitem(PROTOCOLS, "mine", named("Judge"))
    params = params_of("mine")
    assert protocol_of(params) is protocol_of(params)
    for name in ("Judge", "Arbiter"):
        monkeypatch.setitem(PROTOCOLS, "mine", named(name))
        assert protocol_of(params).agents[0].human_name == name
        ((_, _, chat),) = chats(params)
        assert f"You are {name}." in chat[0].content


# ------------------------------------------------------------------------------ chats for models


@pytest.mark.parametrize(
    ("provider", "joined"),
    [("OpenAI", False), ("OpenRouter", True), ("SelfHosted", True), ("local", True)],
)
def test_chats_suit_the_provider_unless_told_otherwise(provider: str, joined: bool) -> None:
    """Names where the provider keeps them; alternating roles where a template may insist."""
    agents = {"_default": {"model_provider": provider, "use_supervisor_message": "all"}}
    *_, (_, _, chat) = chats(params_of("debate", {"agents": agents}))
    texts = text_of(chat)
    assert ("Expert_1: words" in texts) == joined
    assert ("Supervisor: You have no" in texts) == joined
    roles = [message.role for message in chat[1:]]
    assert all(a != b for a, b in pairwise(roles)) == joined
    assert {m.name for m in chat} >= (set() if joined else {"Expert_1", "Expert_2", "Supervisor"})
    plain = {"name_speakers_in_content": False, "merge_same_role_messages": False}
    other = params_of("debate", {"agents": agents}, {"agents": {"_default": plain}})
    *_, (_, _, unchanged) = chats(other)
    assert "Expert_1: words" not in text_of(unchanged)
    assert len(unchanged) > len(roles) or not joined


def test_history_reaches_over_rounds_in_which_an_agent_heard_nothing() -> None:
    """Sequential mnip: prover1 hears nothing while prover0 answers, and goes on hearing after."""
    params = params_of(
        "mnip",
        {"mnip_protocol": {"max_message_rounds": 9, "sequential": True}},
        {"agents": {"_default": {"merge_same_role_messages": False}}},
    )
    last = {agent: text_of(chat[1:]) for _, agent, chat in chats(params)}
    for agent, own in ((0, (1, 4)), (1, (2, 5))):
        heard = re.findall(r"words-(\d)-(\d)", last[agent])
        answers = [(str(round), str(agent)) for round in own[:1]]
        questions = [(str(round), "2") for round in (0, 3)]
        assert heard == sorted([*answers, *questions])


# ---------------------------------------------------------------------------- users' own prompts


def with_template(text: str | None, path: str | None = "prompt.jinja") -> dict[str, Any]:
    own = {"system_prompt_template": text, "system_prompt_template_path": path}
    return {"agents": {"verifier": own}}


def test_an_own_template_replaces_the_system_prompt_and_nothing_else() -> None:
    text = "Judge.\n{{ question }} / {{ solution }} / {{ max_questions }}\n{{ agent_name }}"
    params = params_of("nip", with_template(text))
    plain = params_of("nip")
    for (_, agent, chat), (_, _, usual) in zip(chats(params), chats(plain), strict=True):
        if agent == 1:
            expected = f"Judge.\n{POINT.question} / {POINT.solution} / 3\nVerifier"
            assert chat[0] == Message("system", expected)
        else:
            assert chat[0] == usual[0]
        assert chat[1:] == usual[1:]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{{ qestion }}", ["qestion", "question"]),
        ("{% if %}", ["agents.verifier.system_prompt_template"]),
        ("{{ question.__class__.__mro__ }}", ["unsafe"]),
        ("{% for i in range(10000000) %}x{% endfor %}", ["system_prompt_template", "range"]),
        ("{{ 1 / 0 }}", ["division"]),
        ("{% include 'v1/none.jinja' %}", ["v1/none.jinja"]),
        (None, ["system_prompt_template_path", "read the file"]),
    ],
)
def test_a_template_that_cannot_work_is_refused_when_the_run_starts(
    text: str | None, words: list[str]
) -> None:
    line = str(from_dict(with_template(text)).failure())
    assert "\n" not in line
    assert all(word.lower() in line.lower() for word in words), line


def test_an_empty_history_still_has_a_user() -> None:
    params = params_of("solo_verifier")
    chat = build_chat(params, protocol_of(params), POINT, Episode(key(0), 0, 0), 0)
    assert [message.role for message in chat] == ["system", "user"]
