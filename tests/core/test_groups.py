"""Model groups: what they have learnt can be taken out, kept, and put back."""

import msgspec
import pytest

from nip_fn.keys import key
from nip_fn.run.state import RunState
from nip_fn.training.groups import Adapter, GroupState, get_state, make_groups, set_state
from nip_fn.training.jobs import make_job

from .games import BUSY, make_params, play


def test_the_state_of_a_group_survives_a_file_and_another_run() -> None:
    last: RunState = play(BUSY)[-1].state
    for trained, blank in zip(last.groups, make_groups(BUSY.params), strict=True):
        assert len(trained.lineage) == 2
        kept = msgspec.msgpack.encode(get_state(trained))
        state = msgspec.msgpack.decode(kept, type=GroupState)
        assert set_state(blank, state) == trained
        assert get_state(set_state(blank, state)) == state
        assert set_state(trained, GroupState()) == blank


def test_only_what_was_trained_can_be_served() -> None:
    group, *_ = make_groups(make_params())
    lineage = (Adapter("prover-0-00", 0, None, None, ""),)
    with pytest.raises(ValueError, match="prover-9"):
        set_state(group, GroupState(lineage, "prover-9-99"))


@pytest.mark.parametrize(
    ("agent", "start", "reference"),
    [
        ({"model_provider": "local"}, None, "prover-0-00"),
        ({"model_provider": "local", "dpo_reference": "base"}, None, None),
        ({"model_provider": "OpenAI"}, None, None),
        ({"model_provider": "OpenAI", "fine_tune_from_scratch": False}, *2 * ("prover-0-00",)),
        ({"model_provider": "OpenAI", "use_dummy_api": True}, None, "prover-0-00"),
    ],
)
def test_a_job_names_the_reference_that_its_provider_will_use(
    agent: dict[str, object], start: str | None, reference: str | None
) -> None:
    """OpenAI's API always takes the model that the training starts from."""
    params = make_params({"agents": {"_default": agent}})
    group, *_ = make_groups(params)
    lineage = (Adapter("prover-0-00", 0, None, None, ""),)
    job = make_job(params, set_state(group, GroupState(lineage)), 1, (), key(0))
    assert (job.start, job.reference) == (start, reference)
