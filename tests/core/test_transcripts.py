"""Transcripts say what was said, shown and heard."""

import nip_fn as nip
from nip_fn.export.transcripts import chat_before, words
from nip_fn.game.chat import Chat

DATA = nip.game.Dataset(
    "d", tuple(nip.make_datapoint("p", f"q{i}", "s", i % 2) for i in range(6)), (), ()
)
TEXTS = ("Decision: reject", "Decision: accept", "Why?", "Because.")


def test_the_chats_of_a_dialogue_are_those_that_models_were_asked_with() -> None:
    asked: set[Chat] = set()

    def sampler(request: nip.run.Request) -> tuple[nip.Completion, ...]:
        asked.add(request.chat)
        return tuple(
            nip.Completion(TEXTS[nip.randint(key, len(TEXTS))], "stop", "m") for key in request.keys
        )

    table = {"rl": {"num_iterations": 1}, "nip_protocol": {"max_message_rounds": 4}}
    start = nip.run.started(nip.from_dict(table).unwrap(), DATA)
    events = [event for event, _ in nip.simulate(start, nip.run.pure_world(DATA, sampler))]
    stages = nip.replay(events).unwrap().stages
    shown = {
        chat_before(stage.params, game, place, said.agent)
        for stage in stages
        for game in stage.games()
        for place, turn in enumerate(game.rounds)
        for said in turn
    }
    assert shown == asked
    assert len({len(chat) for chat in shown}) > 1  # of several rounds


def test_what_was_cut_or_could_not_be_used_is_marked() -> None:
    table = {"agents": {"prover": {"max_tokens_per_message": 1500}}}
    params = nip.from_dict(table).unwrap()
    prover = [agent.name for agent in params.agents].index("prover")
    cut = nip.game.Utterance(prover, "So", token_limit=True, completion_tokens=4000, attempts=3)
    assert words(params, (cut,)) == {"prover": "So [cut at 1,500 tokens]"}
    lost = nip.game.Utterance(prover, "", error="no_content")
    assert words(params, (lost,)) == {"prover": " [no_content]"}
