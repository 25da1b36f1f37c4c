"""The edition of a run: what older recordings replay under, and what new runs are recorded as."""

from msgspec.structs import replace

import nip_fn as nip
from nip_fn.game.verdict import find_decision, find_last_decision
from nip_fn.protocols.registry import PROTOCOLS
from nip_fn.run.events import FORMAT

DATA = nip.Dataset(
    "d", tuple(nip.make_datapoint("p", f"q{i}", "s", i % 2) for i in range(6)), (), ()
)
TABLE = {
    "nip_protocol": {"max_message_rounds": 3},
    "rl": {"num_iterations": 1, "rollouts_per_iteration": 6},
}
TEXTS = ("> Decision: accept", "Decision: reject, I think", "Decision: accept", "Why?")


def params(edition: int) -> nip.HyperParameters:
    return nip.from_dict({**TABLE, "edition": edition}).unwrap()


def sampler(request: nip.Request) -> tuple[nip.Completion, ...]:
    return tuple(
        nip.Completion(TEXTS[nip.randint(key, len(TEXTS))], "stop", "m") for key in request.keys
    )


def run(start: nip.RunStarted) -> list[nip.Event]:
    return [event for event, _ in nip.simulate(start, nip.pure_world(DATA, sampler))]


def test_new_runs_are_of_the_newest_edition_and_the_parameter_is_no_news() -> None:
    start = nip.started(nip.from_dict(TABLE).unwrap(), DATA)
    assert (start.format, start.params.edition) == (FORMAT, 3)
    assert start.params == params(3)
    assert run(start) == run(nip.started(params(3), DATA))


def test_a_recording_of_an_older_format_replays_under_the_second_edition() -> None:
    """Whatever its parameters say: they were read from a recording that knew of no editions."""
    new = nip.started(params(3), DATA)
    for number in (1, 2):
        events = run(replace(new, format=number))
        state = nip.replay(events).unwrap().state
        assert state.faults == ()
        assert state.params.edition == 2
        assert nip.protocol_of(state.params).find_decision is find_last_decision
    assert nip.protocol_of(new.params).find_decision is find_decision


def test_a_new_run_under_the_old_edition_plays_the_old_game_and_says_so() -> None:
    """The same trees, verdicts and metrics as a run of format 2, and a digest of its own."""
    old = nip.replay(run(replace(nip.started(params(3), DATA), format=2))).unwrap()
    again = nip.replay(run(nip.started(params(2), DATA))).unwrap()
    newest = nip.replay(run(nip.started(params(3), DATA))).unwrap()
    statuses = [
        [tree.status_N for tree in found.stages[0].batch.trees] for found in (old, again, newest)
    ]
    assert statuses[0] == statuses[1] != statuses[2]
    assert old.state.rows[0] == again.state.rows[0]
    assert len({nip.digest(found.state) for found in (old, again, newest)}) == 3


def test_a_protocol_that_is_written_out_by_hand_is_read_by_the_edition_too() -> None:
    PROTOCOLS["mine"] = lambda params: nip.protocol_of(
        replace(params, interaction_protocol="nip")
    )._replace(name="nip", find_decision=find_decision)
    try:
        mine = {
            edition: nip.protocol_of(replace(params(edition), interaction_protocol="mine"))
            for edition in (2, 3)
        }
        assert mine[2].find_decision is find_last_decision
        assert mine[3].find_decision is find_decision
    finally:
        del PROTOCOLS["mine"]


# ------------------------------------------------------------------------- Expert Iteration


def test_no_draw_is_spent_on_a_dialogue_in_which_the_agent_did_not_speak() -> None:
    """In merlin_arthur one of two provers speaks; edition 2 selected the silent one as well."""
    points = tuple(nip.make_datapoint("p", f"q{i}", "s", 1) for i in range(40))
    data = nip.Dataset("d", points, (), ())

    def convinced(request: nip.Request) -> tuple[nip.Completion, ...]:
        text = "Decision: accept" if request.is_verifier else "It holds."
        return tuple(nip.Completion(text, "stop", "m") for _ in request.keys)

    silent = {}
    for edition in (2, 3):
        for method in ("threshold", "weighted_sampling"):
            table = {
                "trainer": "ei",
                "edition": edition,
                "interaction_protocol": "merlin_arthur",
                "rl": {"num_iterations": 1, "rollouts_per_iteration": 40},
                "ei": {
                    "rollout_selection_method": method,
                    "reward_threshold": 0.0,
                    "weighting_sample_size_factor": 1.0,
                },
                "text_rl": {"verifier_guess_replacement_proportion": 0.25},
            }
            start = nip.started(nip.from_dict(table).unwrap(), data)
            world = nip.pure_world(data, convinced)
            replayed = nip.replay([event for event, _ in nip.simulate(start, world)]).unwrap()
            (stage,) = replayed.stages
            chosen = stage.selection.rollouts
            assert chosen
            acted = [stage.batch.trees[one.tree].acted_NA[:, one.agent].any() for one in chosen]
            silent[edition, method] = acted.count(False)
            if edition == 3:
                spoke = [
                    sum(tree.acted_NA[:, agent].any() for tree in stage.batch.trees)
                    for agent in range(3)
                ]
                drawn = [sum(one.agent == agent for one in chosen) for agent in range(3)]
                # As many as there are dialogues to draw from: a verifier's are replaced in part.
                assert drawn == spoke
                assert sum(one.replaced for one in chosen) == 10
    assert silent[3, "threshold"] == silent[3, "weighted_sampling"] == 0
    assert min(silent[2, "threshold"], silent[2, "weighted_sampling"]) > 0
