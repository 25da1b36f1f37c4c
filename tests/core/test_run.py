import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice, pairwise
from random import Random
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from nip_fn import __version__
from nip_fn.config.resolve import resolve
from nip_fn.config.trainers import trainer_of
from nip_fn.game.protocol import Protocol
from nip_fn.game.reply import Completion
from nip_fn.game.tokens import SampledTokens
from nip_fn.keys import fold_in
from nip_fn.params.run import HyperParameters
from nip_fn.params.update_schedule import ConstantUpdateSchedule
from nip_fn.protocols.nip import nip
from nip_fn.protocols.registry import PROTOCOLS
from nip_fn.run import checkpoint
from nip_fn.run.digest import _changed, digest
from nip_fn.run.events import (
    BatchFetched,
    Checked,
    Effect,
    Event,
    FetchBatch,
    JobFinished,
    Published,
    Replied,
    RunStarted,
    SampleReplies,
    StageEnded,
)
from nip_fn.run.replay import replay
from nip_fn.run.request import request
from nip_fn.run.stages import Growing, Publishing, Training
from nip_fn.run.state import EMPTY, RunState, sample_batch
from nip_fn.run.step import pending, scan, step
from nip_fn.training.canary import Score
from nip_fn.training.losses import DPO
from nip_fn.training.rows import MIN_EXAMPLES
from nip_fn.trees.tree import flatten

from .games import (
    ANSWERING,
    BUSY,
    DATA,
    DATASET,
    MANY_PAIRS,
    RETRIES,
    WRITTEN,
    Moment,
    Order,
    Play,
    Setup,
    ends,
    events_of,
    fifo,
    lifo,
    make_params,
    perform,
    play,
    reply,
    resume,
    setups,
    shuffled,
    singles,
)

# On one worker, so that the plays are shared.
pytestmark = pytest.mark.xdist_group("runs")

Item = TypeVar("Item")
Value = TypeVar("Value")

ORDERS: st.SearchStrategy[Order] = st.sampled_from([fifo, lifo]) | st.integers(0, 2**32).map(
    shuffled
)


def replies_of(run: Play) -> Iterator[tuple[int, str, Replied]]:
    """Each reply with the iteration and the stage that it came in."""
    for before, moment in pairwise(run):
        if isinstance(moment.event, Replied):
            yield before.state.iteration, before.state.stage.name, moment.event


# ----------------------------------------------------------------------------------- order


@settings(max_examples=25)
@given(setups(), ORDERS)
def test_any_causal_order_of_the_same_replies_ends_in_the_same_digest(
    setup: Setup, order: Order
) -> None:
    one, other = play(setup), play(setup, order)
    assert one[-1].state.stage.name == other[-1].state.stage.name == "done"
    assert digest(one[-1].state) == digest(other[-1].state)
    assert one[-1].state == other[-1].state
    assert [digest(state) for state in ends(one, "test", "sample", "train", "publish")] == [
        digest(state) for state in ends(other, "test", "sample", "train", "publish")
    ]
    assert Counter(events_of(one)) == Counter(events_of(other))


@pytest.mark.parametrize(("refusal_rate", "refused"), [(0.0, 0), (0.5, 1), (1.0, 2)])
def test_any_interleaving_of_jobs_and_publications_ends_in_the_same_digest(
    refusal_rate: float, refused: int
) -> None:
    """Two groups: create-and-train twice interleave in 6 ways, publications in 2."""
    setup = BUSY._replace(refusal_rate=refusal_rate)
    start = next(m for m in play(setup) if m.state.stage.name == "train" and len(m.emitted) == 2)
    assert len(start.waiting) == 2
    finals = list(_all_orders(setup, start, until=start.state.iteration + 1))
    assert len(finals) == 6 * 2
    assert len({digest(state) for state in finals}) == 1
    assert [len(group.lineage) for group in finals[0].groups].count(0) == refused


def _all_orders(setup: Setup, moment: Moment, until: int) -> Iterator[RunState]:
    if moment.state.iteration == until:
        yield moment.state
        return
    for at, effect in enumerate(moment.waiting):
        event = perform(setup, moment.state, effect)
        state, effects = step(moment.state, event)
        rest = (*moment.waiting[:at], *moment.waiting[at + 1 :], *singles(effects))
        yield from _all_orders(setup, Moment(event, state, singles(effects), rest), until)


def test_the_digest_covers_every_fact_and_no_metric() -> None:
    """So that a later version may measure more without deriving other digests."""
    run = play(BUSY)
    sampled, trained = ends(run, "sample")[-1], ends(run, "train")[-1]
    served = ends(run, "publish")[-1]
    grown, training, publishing = sampled.stage, trained.stage, served.stage
    assert isinstance(grown, Growing)
    assert isinstance(training, Training)
    assert isinstance(publishing, Publishing)
    game, group, job = grown.forest[0], trained.groups[0], training.jobs[0]
    said, point = game.root.children[0].utterances[0], grown.datapoints[0]

    def with_child(**changes: object) -> RunState:
        child = replace(game.root.children[0], **changes)
        root = replace(game.root, children=(child, *game.root.children[1:]))
        return with_stage(forest=grown.forest.replaced({0: replace(game, root=root)}))

    def with_stage(**changes: object) -> RunState:
        return replace(sampled, stage=replace(grown, **changes))

    def with_job(**changes: object) -> RunState:
        jobs = (replace(job, **changes), *training.jobs[1:])
        return replace(trained, stage=replace(training, jobs=jobs))

    def with_settings(**changes: object) -> RunState:
        return with_job(job=replace(job.job, **changes))

    pairs = grown.selection.pairs
    other_params = replace(BUSY.params, rl=replace(BUSY.params.rl, lr=0.5))
    others = [
        with_child(utterances=(replace(said, raw="other"),)),
        with_child(utterances=(replace(said, messages=((0, "other"),)),)),
        with_child(utterances=(replace(said, error="no_content"),)),
        with_child(utterances=(replace(said, model="other"),)),
        with_child(utterances=(replace(said, token_limit=not said.token_limit),)),
        with_child(utterances=(replace(said, prompt_tokens=10**6),)),
        with_child(utterances=(replace(said, completion_tokens=10**6),)),
        with_child(utterances=(replace(said, cached_tokens=10**6),)),
        with_child(utterances=(replace(said, tokens=SampledTokens.of([1])),)),
        with_child(utterances=(replace(said, tokens=SampledTokens.of([1, 2])),)),
        with_child(utterances=(replace(said, answer="1"),)),
        with_child(utterances=(replace(said, answer="1", label=1),)),
        with_child(utterances=(replace(said, answer="1", label=0),)),
        with_child(reward=(9.0, 9.0)),
        with_child(status="aborted"),
        with_child(children=(game.root,)),
        with_stage(selection=grown.selection._replace(pairs=pairs[1:])),
        with_stage(datapoints=grown.datapoints[::-1]),
        with_stage(datapoints=(replace(point, question="other"), *grown.datapoints[1:])),
        with_stage(datapoints=(replace(point, reference="other"), *grown.datapoints[1:])),
        with_stage(forest=grown.forest.replaced({0: replace(game, datapoint_index=3)})),
        replace(sampled, past="other"),
        replace(sampled, iteration=9),
        replace(sampled, dataset=replace(sampled.dataset, hash="other")),
        replace(sampled, params=other_params),
    ]
    assert len({digest(sampled), *map(digest, others)}) == 1 + len(others)
    scored = (SampledTokens.of([1], [value]) for value in (-1.0, -1.00001))
    states = (with_child(utterances=(replace(said, tokens=tokens),)) for tokens in scored)
    assert len(set(map(digest, states))) == 1
    others = [
        replace(trained, groups=(replace(group, serving="other"), *trained.groups[1:])),
        replace(trained, groups=(replace(group, lineage=()), *trained.groups[1:])),
        with_job(adapter="other"),
        with_job(report=(("loss", 9.0),)),
        with_job(scores=(Score(-9.0, -8.0),)),
        with_job(canary=(-9.0,)),
        with_settings(seed=0),
        with_settings(learning_rate=0.5),
        with_settings(num_epochs=9),
        with_settings(loss=DPO(beta=0.9)),
        with_settings(lora_rank=3),
        with_settings(stack=True),
    ]
    assert len({digest(trained), *map(digest, others)}) == 1 + len(others)
    assert digest(replace(sampled, rows=())) == digest(sampled)


def test_the_digest_holds_parameters_by_name_and_leaves_defaults_out() -> None:
    """So that a parameter that a later version adds changes no older digest."""
    assert _changed(HyperParameters()) == ()
    changed = dict(_changed(BUSY.params))
    assert changed[".rl.rollouts_per_iteration"] == "12"
    assert {".seed", ".rl.lr", ".agents.0.lora_rank"}.isdisjoint(changed)


def test_times_are_no_part_of_the_digest() -> None:
    run = play(BUSY)
    slower = [
        replace(event, seconds=event.seconds + i) if isinstance(event, StageEnded) else event
        for i, event in enumerate(events_of(run))
    ]
    *_, last = scan(slower)
    assert last.seconds != run[-1].state.seconds
    assert last.faults == ()
    assert digest(last) == digest(run[-1].state)


@settings(max_examples=20)
@given(setups())
def test_a_step_changes_no_earlier_state(setup: Setup) -> None:
    state, then, now = EMPTY, [], []
    for event in events_of(play(setup)):
        then.append(digest(state))
        now.append(state)
        state, _ = step(state, event)
    assert [digest(state) for state in now] == then


# ----------------------------------------------------------------------------------- resuming


@settings(max_examples=25)
@given(setups(), ORDERS)
def test_pending_is_all_that_was_emitted_and_not_yet_answered(setup: Setup, order: Order) -> None:
    for moment in play(setup, order):
        assert Counter(singles(pending(moment.state))) == Counter(moment.waiting)


@settings(max_examples=25)
@given(setups(), ORDERS, ORDERS, st.floats(0, 1))
def test_a_run_stopped_anywhere_goes_on_to_the_same_end_and_asks_for_nothing_twice(
    setup: Setup, order: Order, other: Order, where: float
) -> None:
    run = play(setup, order)
    kept = run[: 1 + round(where * (len(run) - 1))]
    *_, state = scan(events_of(kept))
    rest = resume(setup, state, other)
    last = (*kept, *rest)[-1].state
    assert digest(last) == digest(run[-1].state)
    assert Counter((*events_of(kept), *events_of(rest))) == Counter(events_of(run))
    places = [
        (iteration, stage, e.tree, e.path, e.agent, e.index, e.attempt)
        for iteration, stage, e in replies_of((*kept, *rest))
    ]
    assert len(places) == len(set(places))


def billed(setup: Setup, state: RunState, effect: Effect) -> Event:
    """The answer to an effect from a provider that bills the prompt of a request once."""
    if not isinstance(effect, SampleReplies):
        return perform(setup, state, effect)
    asked = request(state, effect)
    first, *others = (reply(asked, key, setup) for key in asked.keys)
    index, *indices = effect.ask.indices
    unbilled = tuple((i, replace(r, prompt_tokens=0)) for i, r in zip(indices, others, strict=True))
    path, agent, attempt = effect.ask.path, effect.ask.agent, effect.ask.attempt
    return Replied(effect.tree, path, agent, index, attempt, first, unbilled)


def billed_run(
    setup: Setup, state: RunState, effects: Iterable[Effect], order: Order
) -> tuple[tuple[Event, ...], RunState]:
    """The events from a state to the end of the run, and its last state."""
    events, in_flight = [], list(effects)
    while in_flight:
        events.append(billed(setup, state, in_flight.pop(order(len(in_flight)))))
        state, asked = step(state, events[-1])
        in_flight.extend(asked)
    return tuple(events), state


@pytest.mark.parametrize("setup", [BUSY, ANSWERING], ids=["given", "written"])
def test_a_run_cut_at_any_byte_ends_as_if_it_had_not_been_down_to_the_tokens_that_it_paid(
    setup: Setup,
) -> None:
    """Siblings share requests as they would have, and a request is recorded whole or not at all."""
    table = {
        "rl": {"num_iterations": 1, "rollouts_per_iteration": 2},
        "malt": {"num_responses_per_timestep": 5},
        "text_rl": {"test_scheme": "none"},
    }
    rules = WRITTEN if setup is ANSWERING else {}
    params = make_params(MANY_PAIRS, RETRIES, rules, table)
    setup = setup._replace(params=params, invalid_rate=0.1)
    start = RunStarted(setup.params, DATASET, __version__)
    state, effects = step(EMPTY, start)
    events, whole = billed_run(setup, state, effects, shuffled(1))
    retried = [e for e in events if isinstance(e, Replied) and e.attempt and e.others]
    assert retried, "no two siblings failed"
    data, random = checkpoint.write((start, *events)), Random(2)
    first = len(checkpoint.write((start,)))
    for cut in (random.randrange(first, len(data)) for _ in range(100)):
        *_, state = scan(checkpoint.read(data[:cut]).unwrap().events)
        _, last = billed_run(setup, state, pending(state), shuffled(cut))
        assert digest(last) == digest(whole)
        assert last.rows == whole.rows


def test_a_done_run_waits_for_nothing() -> None:
    assert pending(play(BUSY)[-1].state) == ()
    assert pending(EMPTY) == ()


# ----------------------------------------------------------------------------------- replaying


def test_states_are_equal_although_their_trainers_were_made_one_by_one() -> None:
    first, second = (resolve(BUSY.params).unwrap() for _ in range(2))
    trainer = second.trainer._replace(init=lambda groups: ())
    protocol = second.protocol._replace(name="another")
    assert first == replace(second, trainer=trainer)
    assert first != replace(second, protocol=protocol)


@settings(max_examples=20)
@given(setups(), ORDERS)
def test_what_is_read_from_a_recording_derives_the_same_run_without_faults(
    setup: Setup, order: Order
) -> None:
    run = play(setup, order)
    events = checkpoint.read(checkpoint.write(events_of(run))).unwrap().events
    states = list(scan(events))
    assert states == [moment.state for moment in run]
    assert states[-1].faults == ()
    replayed = replay(events).unwrap()
    assert digest(replayed.state) == digest(run[-1].state)
    assert replayed.num_events == len(run)
    assert [[tree.utterances_N for tree in stage.batch.trees] for stage in replayed.stages] == [
        [flatten(game).utterances_N for game in state.forest]
        for state in ends(run, "test", "sample")
    ]


def backwards(function: Callable[[Item], Value], items: Sequence[Item]) -> list[Value]:
    """A `map` in which no item can rely on those before it, whose values come from elsewhere."""
    return [pickle.loads(pickle.dumps(function(item), 5)) for item in reversed(items)][::-1]


@settings(max_examples=20)
@given(setups(), ORDERS, st.data())
def test_a_recording_that_is_cut_anywhere_leads_tree_by_tree_to_the_state_of_the_scan(
    setup: Setup, order: Order, data: st.DataObject
) -> None:
    run = play(setup, order)
    events = events_of(run)
    begun, end = sorted(data.draw(st.tuples(*[st.integers(1, len(events))] * 2)))
    first = replay(events[:begun], map=backwards).unwrap()
    whole = replay(events[begun:end], first, map=backwards).unwrap()
    for replayed, count in ((first, begun), (whole, end)):
        assert replayed.num_events == count
        assert replayed.state == run[count - 1].state
        assert digest(replayed.state) == digest(run[count - 1].state)
    for tree in whole.state.forest.finished():
        assert not any(array.flags.writeable for array in tree.arrays if hasattr(array, "flags"))


@settings(max_examples=30)
@given(setups(), ORDERS, st.data())
def test_an_event_that_does_not_fit_is_named_as_by_the_scan(
    setup: Setup, order: Order, data: st.DataObject
) -> None:
    events = list(events_of(play(setup, order)))
    for _ in range(data.draw(st.integers(1, 2))):
        index, target = (data.draw(st.integers(0, len(events) - 1)) for _ in range(2))
        events.insert(target, events[index] if data.draw(st.booleans()) else events.pop(index))
    state, misfit = EMPTY, None
    for count, event in enumerate(events):
        try:
            state, _ = step(state, event)
        except (ValueError, LookupError) as error:
            misfit = f"event {count} ({type(event).__name__}) does not fit: {error}"
            break
    replayed = replay(events, map=backwards)
    if misfit is None:
        assert replayed.unwrap().state == state
    else:
        assert " ".join(misfit.split())[:300] == str(replayed.failure())[:300]


@pytest.mark.parametrize("stage", ["test", "sample"])
def test_one_changed_reply_is_a_fault_of_its_stage(stage: str) -> None:
    events = list(events_of(play(BUSY)))
    tampered = Completion("Decision: accept", "stop", "another model")
    at = next(
        i
        for i, state in enumerate(scan(events))
        if state.stage.name == stage
        and isinstance(events[i], Replied)
        and events[i].completion.finish_reason == "stop"  # type: ignore[union-attr]
        and events[i].agent == 0  # type: ignore[union-attr]
        and events[i].completion.text  # type: ignore[union-attr]
    )
    events[at] = replace(events[at], completion=tampered)
    faults: tuple[str, ...] = ()
    for state in scan(events):
        faults = state.faults
        if faults:
            break
    assert len(faults) == 1
    assert f"stage {stage}" in faults[0]


# ----------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "kind", [RunStarted, BatchFetched, Replied, Checked, StageEnded, JobFinished, Published]
)
def test_an_event_told_twice_is_refused(kind: type) -> None:
    moments = play(ANSWERING if kind is Checked else BUSY)
    assert any(isinstance(moment.event, kind) for moment in moments)
    for moment in moments:
        if isinstance(moment.event, kind):
            with pytest.raises(ValueError, match=r".+"):
                step(moment.state, moment.event)


def test_an_intent_to_train_told_twice_is_refused() -> None:
    """Otherwise the training would be asked for twice, and paid for twice."""
    created = [moment for moment in play(BUSY) if type(moment.event).__name__ == "JobCreated"]
    assert created
    for moment in created:
        with pytest.raises(ValueError, match=r".+"):
            step(moment.state, moment.event)


def test_a_training_that_nobody_asked_for_is_refused() -> None:
    start = next(m for m in play(BUSY) if m.state.stage.name == "train" and len(m.emitted) == 2)
    name = start.state.jobs[0].job.name
    with pytest.raises(ValueError, match=r".+"):
        step(start.state, JobFinished(name, "an adapter"))


def test_a_reply_to_another_attempt_is_refused() -> None:
    for moment in islice(play(BUSY), 50):
        for effect in moment.waiting:
            if isinstance(effect, SampleReplies):
                event = perform(BUSY, moment.state, effect)
                assert isinstance(event, Replied)
                with pytest.raises(ValueError, match=r".+"):
                    step(moment.state, replace(event, attempt=event.attempt + 1))


@pytest.mark.parametrize(
    "change", [{"tree": 99}, {"tree": -1}, {"path": (0,)}, {"path": (-1,)}, {"index": 9}]
)
def test_a_reply_that_nothing_waits_for_is_refused(change: dict[str, object]) -> None:
    moment = play(BUSY)[1]
    assert moment.state.stage.name == "test"
    event = perform(BUSY, moment.state, moment.waiting[0])
    with pytest.raises(ValueError, match=r".+"):
        step(moment.state, replace(event, **change))


def test_a_stage_is_not_sealed_before_it_is_over() -> None:
    for moment in play(BUSY):
        over = any(type(effect).__name__ == "EndStage" for effect in moment.waiting)
        if not over:
            state = moment.state
            event = StageEnded(state.iteration, state.stage.name, digest(state), 0.0)
            with pytest.raises(ValueError, match=r".+"):
                step(state, event)


def test_a_split_without_data_is_not_drawn_from_for_ever() -> None:
    """It is refused, or passed over."""
    params = make_params({"text_rl": {"test_scheme": "all"}})
    with suppress(ValueError):
        state, effects = step(EMPTY, RunStarted(params, replace(DATASET, test_size=0), __version__))
        while effects == (FetchBatch("test", ()),):
            before = state
            state, effects = step(state, BatchFetched(()))
            assert digest(state) != digest(before)


# ----------------------------------------------------------------------------------- iterations


@settings(max_examples=20)
@given(st.integers(1, 10), st.integers(1, 4), st.integers(0, 2**32))
def test_training_draws_each_datapoint_once_an_epoch(
    count: int, iterations: int, seed: int
) -> None:
    table = {"num_iterations": iterations, "rollouts_per_iteration": count}
    quiet = {"nip_protocol": {"max_message_rounds": 1}, "text_rl": {"test_scheme": "none"}}
    run = play(Setup(make_params({"rl": table, "seed": seed}, quiet)))
    drawn = [
        point for m in run if isinstance(m.event, BatchFetched) for point in m.event.datapoints
    ]
    assert len(drawn) == count * iterations
    size = len(DATA["train"])
    for start in range(0, len(drawn), size):
        epoch = drawn[start : start + size]
        assert len(set(epoch)) == len(epoch)


def test_each_epoch_has_an_order_of_its_own() -> None:
    table = {"num_iterations": 4, "rollouts_per_iteration": None}
    quiet = {"nip_protocol": {"max_message_rounds": 1}, "text_rl": {"test_scheme": "none"}}
    run = play(Setup(make_params({"rl": table}, quiet)))
    drawn = [moment.event.datapoints for moment in run if isinstance(moment.event, BatchFetched)]
    assert len(drawn) == len(set(drawn)) == 4


def test_a_protocol_of_ones_own_trains_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def reversed_nip(params: HyperParameters) -> Protocol:
        turns = nip(params).schedule
        return nip(params)._replace(name="reversed_nip", schedule=lambda r, key: turns(r + 1, key))

    monkeypatch.setitem(PROTOCOLS, "reversed_nip", reversed_nip)
    rules = {"interaction_protocol": "reversed_nip", "protocol_common": {"verifier_first": False}}
    params = make_params(MANY_PAIRS, rules)
    last = play(BUSY._replace(params=params))[-1].state
    assert last.stage.name == "done"
    assert [len(group.lineage) for group in last.groups] == [2, 2]


def test_without_switching_adapters_are_trained_but_never_speak() -> None:
    params = make_params(MANY_PAIRS, {"text_rl": {"switch_adapters": False}})
    run = play(BUSY._replace(params=params))
    assert not any(isinstance(moment.event, Published) for moment in run)
    assert {reply.completion.model for _, _, reply in replies_of(run)} == {
        params.agents[0].model_name
    }
    assert [len(group.lineage) for group in run[-1].state.groups] == [2, 2]


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [("none", []), ("all", [0, 1, 2]), ("last", [2]), ("first_and_last", [0, 2])],
)
def test_models_are_tested_as_the_scheme_says(scheme: str, expected: list[int]) -> None:
    setup = BUSY._replace(params=make_params(MANY_PAIRS, {"text_rl": {"test_scheme": scheme}}))
    rows = play(setup)[-1].state.rows
    assert [row.iteration for row in rows if row.stage == "test"] == expected
    assert [row.iteration for row in rows if row.stage == "sample"] == [0, 1]


@settings(max_examples=20)
@given(setups())
def test_replies_come_from_the_adapter_that_was_published_last_or_from_an_opponents_pool(
    setup: Setup,
) -> None:
    agents = setup.params.agents
    models = [[agent.model_name] for agent in agents]
    switching = setup.params.text_rl.switch_adapters
    run = play(setup)
    for before, moment in pairwise(run):
        match moment.event:
            case Replied(agent=agent, completion=completion):
                pools = [other.opponent_pool for at, other in enumerate(agents) if at != agent]
                pool = max(pools, default=0) if before.state.stage.name == "sample" else 0
                scripts = {
                    script
                    for at, other in enumerate(agents)
                    if at != agent and before.state.stage.name == "sample"
                    for script in other.opponent_scripts
                }
                assert completion.model in scripts.union(models[agent][-1 - pool :])
            case Published(group=name, adapter=adapter, problem=""):
                assert switching
                group = next(g for g in before.state.groups if g.name == name)
                for agent in group.agents:
                    models[agent].append(adapter)


def test_a_group_whose_adapters_are_refused_stays_what_it_was() -> None:
    table = {"agents": {"_default": {"fine_tune_from_scratch": False}}}
    setup = Setup(make_params(MANY_PAIRS, table), decision_rate=0.5, refusal_rate=1.0)
    run = play(setup)
    assert {reply.completion.model for _, _, reply in replies_of(run)} == {
        setup.params.agents[0].model_name
    }
    assert {(group.lineage, group.serving) for group in run[-1].state.groups} == {((), None)}
    jobs = [under_way.job for state in ends(run, "train") for under_way in state.jobs]
    assert [(job.start, job.reference) for job in jobs] == [(None, None)] * 4
    rows = [dict(row.metrics) for row in run[-1].state.rows if row.stage == "publish"]
    assert rows == [{"adapters_refused": 2.0}] * 2


def test_after_a_refusal_the_adapter_before_it_is_trained_further() -> None:
    table = {"agents": {"_default": {"fine_tune_from_scratch": False}}}
    params = make_params(MANY_PAIRS, table, {"rl": {"num_iterations": 3}})
    first, *_ = events_of(play(Setup(params, decision_rate=0.5)))
    state, waiting = step(EMPTY, first)
    in_flight = list(singles(waiting))
    while in_flight:
        event = perform(Setup(params, decision_rate=0.5), state, in_flight.pop())
        if isinstance(event, Published) and state.iteration == 1:
            event = replace(event, problem="another model answers")
        state, effects = step(state, event)
        in_flight.extend(singles(effects))
    for group in state.groups:
        oldest, newest = group.lineage
        assert (oldest.iteration, newest.iteration) == (0, 2)
        assert newest.parent == newest.reference == oldest.name
        assert group.serving == newest.name


@settings(max_examples=20)
@given(setups())
def test_a_lineage_starts_from_and_refers_to_what_the_parameters_name(setup: Setup) -> None:
    run = play(setup)
    for group in run[-1].state.groups:
        agent = setup.params.agents[group.agents[0]]
        previous = None
        for adapter in group.lineage:
            assert adapter.parent == (None if agent.fine_tune_from_scratch else previous)
            named = previous if agent.dpo_reference == "previous" else None
            at_openai = agent.model_provider == "OpenAI"  # whose API takes no reference
            assert adapter.reference == (adapter.parent if at_openai else named)
            previous = adapter.name
        assert group.trainable or not group.lineage
        names = [adapter.name for adapter in group.lineage]
        assert len(names) == len(set(names))


@settings(max_examples=20)
@given(setups())
def test_a_group_trains_when_it_has_enough_rows_and_is_not_frozen(setup: Setup) -> None:
    run = play(setup)
    trainer = trainer_of(setup.params)
    trainer_state = trainer.init(run[0].state.groups)
    for state in ends(run, "sample"):
        grown = state.stage
        assert isinstance(grown, Growing)
        after = next(m.state for m in run if m.state.past == digest(state))
        jobs = {under_way.job.group: under_way.job for under_way in after.jobs}
        place = fold_in(grown.key, "select")
        update = trainer.update(sample_batch(state, grown), trainer_state, place)
        trainer_state = update.state
        assert update.selection == grown.selection
        for group in state.groups:
            rows = update.rows[group.name]
            schedule = setup.params.agents[group.agents[0]].update_schedule
            always = isinstance(schedule, ConstantUpdateSchedule)
            due = group.trainable and (always or state.iteration % 2 == 1)  # as `SCHEDULES` draws
            assert (group.name in jobs) == (due and len(rows) >= MIN_EXAMPLES)
            if group.name in jobs:
                assert jobs[group.name].rows == rows
                imitated = rows[0].is_imitation
                assert jobs[group.name].loss.name == ("sft" if imitated else "dpo")


def test_the_busy_setup_trains_both_agents_in_both_iterations() -> None:
    counts = Counter(type(event).__name__ for event in events_of(play(BUSY)))
    assert counts["JobCreated"] == counts["JobFinished"] == counts["Published"] == 4
