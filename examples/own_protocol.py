"""A protocol of one's own: define it, check it, let MALT select pairs from a tree of it.

python examples/own_protocol.py
nip-fn train --protocol examples/own_protocol.py:cross_examination --provider dummy
"""

from functools import partial

import nip_fn as nip

PROSECUTOR, DEFENDER, VERIFIER = 0, 1, 2
FLOOR, ROOM_P, ROOM_D = 0, 1, 2
HEADERS = ((ROOM_P, "Question for Prosecutor:"), (ROOM_D, "Question for Defender:"))


def cross_examination(params: nip.HyperParameters) -> nip.Protocol:
    """The verifier questions two provers in private; then each pleads where all can hear."""
    questions = (nip.Move(VERIFIER, (ROOM_P, ROOM_D)),)
    answers = (nip.Move(PROSECUTOR, (ROOM_P,)), nip.Move(DEFENDER, (ROOM_D,)))
    pleas = (nip.Move(PROSECUTOR, (FLOOR,)),), (nip.Move(DEFENDER, (FLOOR,)),)
    return nip.make_protocol(
        common=params.protocol_common,
        name="cross_examination",
        agents=(
            nip.AgentSpec("prosecutor", "prover", "Prosecutor", default_stance=nip.REJECT),
            nip.AgentSpec("defender", "prover", "Defender", default_stance=nip.ACCEPT),
            nip.AgentSpec("verifier", "verifier", "Verifier", headers=HEADERS),
        ),
        channels=("floor", "prosecutor_room", "defender_room"),
        visibility=((True, True, False), (True, False, True), (True, True, True)),
        schedule=nip.in_turn(questions, answers, *pleas),
        max_message_rounds=5,
        fixed_sides=True,
    )


def policy(point: nip.Datapoint, episode: nip.Episode, agent: int, key: nip.Key) -> nip.Completion:
    """A model that knows nothing: its reply depends on the key alone."""
    asked = "\n".join(f"{header} what of an empty list?" for _, header in HEADERS)
    pleas, verdicts = ("It fails.", "It holds."), ("Decision: reject", "Decision: accept")
    texts = (asked, *verdicts) if agent == VERIFIER else pleas
    return nip.Completion(texts[nip.randint(key, len(texts))], "stop", model="toy")


def main() -> None:
    """Check the protocol, grow a tree of it, print a training row of each agent."""
    nip.check_protocol(cross_examination)
    nip.protocols.PROTOCOLS["cross_examination"] = cross_examination
    table = {"interaction_protocol": "cross_examination", "malt": {"deduplicate_pairs": True}}
    params = nip.from_dict(table).unwrap()
    game_key, update_key = nip.split(nip.key(2026))
    point = nip.make_datapoint("max", "Return the largest element.", "max(xs)", label=0)
    protocol = nip.protocol_of(params)
    tree = nip.grow(nip.Rules(protocol, 3), point, policy, key=game_key)

    trainer, groups = nip.config.trainer_of(params), nip.make_groups(params)
    chat = partial(nip.build_chat, params, protocol)
    batch = nip.SampleBatch(protocol, chat, groups, (point,), (tree,))
    for name, rows in trainer.update(batch, trainer.init(groups), update_key).rows.items():
        row, *more = rows
        print(
            f"{name}: {row.replies[0]!r} rather than {row.replies[1]!r}, and {len(more)} more pairs"
        )


if __name__ == "__main__":
    main()
