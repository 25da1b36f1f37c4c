"""The jobs of model groups."""

import pytest
from msgspec.structs import replace

from nip_fn.config.groups import make_groups
from nip_fn.keys import key
from nip_fn.run.jobs import make_job
from nip_fn.training.groups import Adapter
from nip_fn.training.losses import DPO

from .games import make_params


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
    job = make_job(params, replace(group, lineage=lineage), 1, (), DPO(), key(0))
    assert (job.start, job.reference) == (start, reference)
