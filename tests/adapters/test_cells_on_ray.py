"""Cells of a study on a Ray cluster: what is said of those that no node can ever hold."""

import pytest

from nip_fn.config.study import Resources
from nip_fn_adapters.experiments.studies.on_ray import obstacle

SMALL = {"CPU": 1.0, "memory": 4.0 * 2**30}
WITH_GPU = {"CPU": 2.0, "memory": 2.0 * 2**30, "GPU": 1.0}


@pytest.mark.parametrize(
    ("resources", "reason"),
    [
        (Resources(), ""),
        (Resources(cpus=2, gpus=1), ""),
        (Resources(cpus=8), "needs 8 CPUs, and the largest node of the Ray cluster has 2"),
        (Resources(gpus=2), "needs 2 GPUs, and the largest node of the Ray cluster has 1"),
        (Resources(memory_gb=900), "needs 900 GB of memory, and the largest node of the Ray"),
        (Resources(cpus=2, memory_gb=4), "no node of the Ray cluster has at once all"),
    ],
)
def test_the_resource_that_every_node_lacks_is_named(resources: Resources, reason: str) -> None:
    said = obstacle(resources, [SMALL, WITH_GPU])
    assert reason in said
    assert bool(reason) == bool(said)
