"""Updates whose rows no training can take are refused where they are made, and by the checks."""

import msgspec
import pytest

import nip_fn as nip
from nip_fn.config.trainers import TRAINERS, trainer_of
from nip_fn.run.events import Effect, Event, JobCreated, Refuse, RunStarted
from nip_fn.run.replay import replay
from nip_fn.run.state import RunState
from nip_fn.run.step import pending
from nip_fn.testing.trainers import TrainerError, check_trainer
from nip_fn.training.trainer import Trainer

from .games import DATASET, MANY_PAIRS, Setup, make_params, perform, singles

COMPARES = trainer_of(make_params(MANY_PAIRS))


def _mixed(batch: nip.SampleBatch, state: object, key: nip.Key) -> nip.Update[object]:
    """MALT's rows, the first three of each group to be imitated instead."""
    update = COMPARES.update(batch, state, key)
    rows = {
        group: (*(nip.training.imitated(row.prompt, row.replies[0]) for row in own[:3]), *own[3:])
        for group, own in update.rows.items()
    }
    return update._replace(rows=rows)


MIXED: Trainer[object] = COMPARES._replace(update=_mixed)


@pytest.fixture
def mixed(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(TRAINERS, "mixed.py:T", lambda params: MIXED)
    return "mixed.py:T"


def test_a_run_ends_before_a_training_on_mixed_rows_is_asked_for(mixed: str) -> None:
    """They were trained on as if all were to be imitated, rejected replies among them."""
    setup = Setup(make_params(MANY_PAIRS, {"trainer": mixed}), decision_rate=0.5)
    start = RunStarted(setup.params, DATASET, nip.__version__)
    events: list[Event] = [start]

    def answer(state: RunState, effect: Effect) -> list[Event]:
        events.extend(answers := [perform(setup, state, one) for one in singles([effect])])
        return answers

    with pytest.raises(ValueError, match="row 0 of its update") as raised:
        list(nip.simulate(start, answer))
    problem = raised.value.__cause__
    assert isinstance(problem, nip.Problem)
    assert problem.address == "trainer mixed.py:T"
    assert "for the group 'prover' weighs its replies +1, and dpo compares" in problem.problem
    assert not any(isinstance(event, JobCreated) for event in events)
    assert pending(replay(events).unwrap().state) == (Refuse(problem),)


class WeightedRow(msgspec.Struct, frozen=True):
    prompt: nip.game.Chat
    reply: str
    weight: float


def test_a_run_ends_with_an_update_of_rows_that_no_training_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They were recorded as preferences, and failed in the training."""

    def update(batch: nip.SampleBatch, state: object, key: nip.Key) -> nip.Update[object]:
        rows = COMPARES.update(batch, state, key).rows
        weighted = {
            group: tuple(WeightedRow(row.prompt, "", 0.5) for row in rows[group]) for group in rows
        }
        return nip.Update(weighted, state, nip.training.SFT())  # type: ignore[arg-type]

    weighs = COMPARES._replace(update=update)
    monkeypatch.setitem(TRAINERS, "grpo", lambda params: weighs)
    setup = Setup(make_params(MANY_PAIRS, {"trainer": "grpo"}), decision_rate=0.5)
    states: list[RunState] = []

    def answer(state: RunState, effect: Effect) -> list[Event]:
        states.append(state)
        return [perform(setup, state, one) for one in singles([effect])]

    start = RunStarted(setup.params, DATASET, nip.__version__)
    refusal = "trainer grpo: row 0 of its update for the group 'prover' is a WeightedRow"
    with pytest.raises(ValueError, match=refusal):
        list(nip.simulate(start, answer))
    assert states[-1].stage.name == "sample"
    with pytest.raises(TrainerError, match="WeightedRow"):
        check_trainer(weighs, setup.params, iterations=1, num_trees=4)


def test_the_checks_of_trainers_find_mixed_rows_and_groups_that_are_not_there() -> None:
    with pytest.raises(TrainerError, match=r"rows fit their loss: .* its replies \+1"):
        check_trainer(MIXED)

    def elsewhere(batch: nip.SampleBatch, state: object, key: nip.Key) -> nip.Update[object]:
        update = COMPARES.update(batch, state, key)
        return update._replace(rows={"nobody": update.rows["prover"]}, loss=nip.training.DPO())

    with pytest.raises(TrainerError, match="group 'nobody': there is no such group; it is one of"):
        check_trainer(COMPARES._replace(update=elsewhere))


def test_the_checks_of_trainers_find_rows_of_an_opponent_s_replies() -> None:
    def regardless(batch: nip.SampleBatch, state: object, key: nip.Key) -> nip.Update[object]:
        return COMPARES.update(msgspec.structs.replace(batch, off_policy=frozenset()), state, key)

    with pytest.raises(TrainerError, match=r"no reply of an opponent: group 'verifier': .* rows"):
        check_trainer(COMPARES._replace(update=regardless))
    check_trainer(COMPARES._replace(update=regardless), make_params(MANY_PAIRS))


@pytest.mark.parametrize("name", ["malt", "ei", "reinforce"])
@pytest.mark.parametrize("warm_up", [0, 2])
def test_the_trainers_that_are_built_in_pass_their_checks(name: str, warm_up: int) -> None:
    table = {"trainer": name, "malt": {"num_initial_ei_iterations": warm_up}}
    agents = {"_default": {"model_provider": "local", "opponent_pool": 1}}
    params = make_params({**table, "agents": agents})
    check_trainer(trainer_of(params), params, num_trees=8)
