"""A protocol of your own: define it, check it, register it, let MALT select pairs from it."""

import nip_fn as nip
from nip_fn.game.decision import ACCEPT, REJECT
from nip_fn.game.protocol import AgentSpec, Move
from nip_fn.protocols.build import in_turn, make_protocol
from nip_fn.protocols.registry import PROTOCOLS
from nip_fn.training.groups import make_groups

PROSECUTOR, DEFENDER, VERIFIER = 0, 1, 2
FLOOR, ROOM_P, ROOM_D = 0, 1, 2
HEADERS = ((ROOM_P, "Question for Prosecutor:"), (ROOM_D, "Question for Defender:"))


def cross_examination(params: nip.HyperParameters) -> nip.Protocol:
    """The verifier questions two provers in private; then each pleads where all can hear."""
    answers = (Move(PROSECUTOR, (ROOM_P,)), Move(DEFENDER, (ROOM_D,)))
    pleas = (Move(PROSECUTOR, (FLOOR,)),), (Move(DEFENDER, (FLOOR,)),)
    return make_protocol(
        params,
        name="cross_examination",
        agents=(
            AgentSpec("prosecutor", "prover", "Prosecutor", default_stance=REJECT),
            AgentSpec("defender", "prover", "Defender", default_stance=ACCEPT),
            AgentSpec("verifier", "verifier", "Verifier", headers=HEADERS),
        ),
        channels=("floor", "prosecutor_room", "defender_room"),
        visibility=((True, True, False), (True, False, True), (True, True, True)),
        schedule=in_turn((Move(VERIFIER, (ROOM_P, ROOM_D)),), answers, *pleas),
        max_message_rounds=5,
        fixed_sides=True,
    )


def sample(agent: int, key: nip.Key) -> nip.Completion:
    """A model that knows nothing; what it says depends on the key alone."""
    asked = "\n".join(f"{header} what of an empty list?" for _, header in HEADERS)
    pleas, verdicts = ("It fails.", "It holds."), ("Decision: reject", "Decision: accept")
    said = (asked, *verdicts) if agent == VERIFIER else pleas
    return nip.Completion(said[nip.randint(key, len(said))], "stop", model="fake")


nip.check_protocol(cross_examination)
PROTOCOLS["cross_examination"] = cross_examination
params = nip.from_dict({"interaction_protocol": "cross_examination"}).unwrap()
malt, point = nip.trainer_of(params, 0), nip.make_datapoint("max", "Largest?", "max(xs)", label=0)
rules = nip.Rules(cross_examination(params), lambda moves: 3, attempts=(1, 1, 1))
game_key, reply_key, pair_key = nip.split(nip.key(2026), 3)
root = nip.new_tree(rules, start := nip.reset(point, game_key))
while slots := [(ask, index) for ask in nip.pending_requests(root) for index in ask.indices]:
    for ask, index in slots:
        completion = sample(ask.agent, nip.fold_in(reply_key, *ask.path, ask.agent, index))
        given = nip.ReplyArrival(ask.path, ask.agent, index, ask.attempt, completion)
        root, _ = nip.insert(rules, root, start, given)
harvest = nip.SampleBatch(params, 0, (point,), (root,), (game_key,))
pairs = malt.select(harvest, pair_key)
for group in make_groups(params):
    row, *more = malt.rows(harvest, pairs, group)
    print(f"{group.name}: {row.chosen!r} rather than {row.rejected!r}, and {len(more)} more pairs")
