"""A training whose process is killed stops the run, is tried again, or is skipped."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from nip_fn.params.run import HyperParameters
from nip_fn.params.training import FailedTrainings
from nip_fn.run.ports import FailedTraining
from nip_fn_adapters.interpreter import TRAINING_TRIES
from nip_fn_adapters.providers import dummy
from nip_fn_adapters.providers.local.tuner import local_tuner

from .conftest import small_params
from .forked import forked_trainings
from .killing import killing_trainings
from .test_switch import run

pytest.importorskip("psutil")
pytestmark = pytest.mark.xdist_group("trainings")
EVERY = 1000  # trainings


def with_policy(policy: FailedTrainings) -> HyperParameters:
    params = small_params()
    agents = tuple(replace(agent, model_name="builtin:tea") for agent in params.agents)
    text_rl = replace(params.text_rl, failed_trainings=policy)
    return replace(params, agents=agents, text_rl=text_rl)


@pytest.mark.parametrize(("policy", "tries"), [("stop", 1), ("retry", TRAINING_TRIES)])
def test_a_killed_training_stops_the_run_which_trains_it_when_it_is_resumed(
    tmp_path: Path, policy: FailedTrainings, tries: int
) -> None:
    folder, params = tmp_path / "a", with_policy(policy)
    for _ in range(2):
        with forked_trainings(), killing_trainings(EVERY) as killed:
            failed = run(folder, local_tuner(folder, parallel=1), dummy.serve_at_once, params)
        assert isinstance(failed.failure(), FailedTraining)
        assert "failed (killed by SIGKILL" in str(failed.failure())
        assert len(killed) >= tries
    resumed = run(folder, dummy.dummy_tuner(), dummy.serve_at_once, params).unwrap()
    straight = run(tmp_path / "b", dummy.dummy_tuner(), dummy.serve_at_once, params).unwrap()
    assert replace(resumed, seconds=()) == replace(straight, seconds=())


def test_a_killed_training_is_skipped_if_it_is_to_be(tmp_path: Path) -> None:
    folder, params = tmp_path / "a", with_policy("skip")
    with forked_trainings(), killing_trainings(EVERY) as killed:
        state = run(folder, local_tuner(folder), dummy.serve_at_once, params).unwrap()
    assert state.stage.name == "done"
    trained = [dict(row.metrics) for row in state.rows if row.stage == "train"]
    assert sum(row["jobs_failed"] for row in trained) == len(killed) > 0
    assert all(row["jobs_failed"] == row["jobs"] for row in trained)
    assert [group.lineage for group in state.groups] == [()] * len(state.groups)
