"""Cells as tasks of a Ray cluster, each with the resources that it needs.

The folder of the study is on a file system that all nodes share, under one path, and nip-fn is
installed on all of them.  A task whose node or worker is lost is begun again by Ray, elsewhere, and
resumes the recording; the tasks of a driver that is lost end, and the next one begins them again.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from returns.result import Result

from nip_fn.config.study import Resources
from nip_fn.errors import Problem
from nip_fn_adapters.experiments.studies.cell import Order, run_cell
from nip_fn_adapters.experiments.studies.running import Ended
from nip_fn_adapters.processes.cluster import join_cluster


class RayCrew:
    """Implements `Crew` with a Ray task for each cell."""

    def __init__(self, ray: Any, resources: Resources) -> None:
        """Tasks of a module `ray` that is connected to a cluster."""
        self._ray = ray
        # Endlessly: what a task does is recorded, so that each attempt begins where the last ended.
        needs = ray.remote(
            num_cpus=resources.cpus,
            num_gpus=resources.gpus,
            memory=resources.memory_gb * 2**30 or None,
            max_retries=-1,
        )
        self._task = needs(run_cell)
        self._names: dict[Any, str] = {}  # of the cells that are queued or run, by reference

    def start(self, name: str, order: Order) -> None:
        """Queue a cell; it begins where a node has the resources for it."""
        self._names[self._task.options(name=name).remote(order)] = name

    def ended(self, seconds: float) -> Sequence[Ended]:
        """The cells that have ended since the last call; waits so long for one."""
        references = list(self._names)
        ready, _ = self._ray.wait(references, num_returns=1, timeout=seconds)
        return [Ended(self._names.pop(reference), self._code(reference)) for reference in ready]

    def _code(self, reference: Any) -> int | None:
        # Of a task that was cancelled: it has stopped its cell, if it had begun it.
        with suppress(self._ray.exceptions.TaskCancelledError):
            code: int | None = self._ray.get(reference)
            return code
        return None

    def stop(self, name: str) -> None:
        """Stop a cell as Ctrl-C does."""
        for reference in [reference for reference, cell in self._names.items() if cell == name]:
            self._ray.cancel(reference)


def obstacle_on_ray(resources: Resources) -> str:
    """The reason why no node of the cluster that was joined can hold a cell; "" if one can."""
    import ray

    return obstacle(resources, [node["Resources"] for node in ray.nodes() if node["Alive"]])


def obstacle(resources: Resources, nodes: Sequence[Mapping[str, float]]) -> str:
    """The reason why none of these nodes can ever hold a cell; "" if one can.

    Args:
        resources: Of a cell.
        nodes: The resources of each node, by Ray's names; memory in bytes.

    >>> obstacle(Resources(cpus=8), [{"CPU": 1.0}, {"CPU": 2.0}])
    'a cell needs 8 CPUs, and the largest node of the Ray cluster has 2'
    """
    needed = {
        "CPU": ("CPUs", resources.cpus, 1),
        "GPU": ("GPUs", resources.gpus, 1),
        "memory": ("GB of memory", resources.memory_gb, 2**30),
    }

    def holds(node: Mapping[str, float], names: Collection[str]) -> bool:
        return all(node.get(name, 0.0) >= needed[name][1] * needed[name][2] for name in names)

    if any(holds(node, needed) for node in nodes):
        return ""
    for name, (unit, number, size) in needed.items():
        if not any(holds(node, [name]) for node in nodes):
            largest = max((node.get(name, 0.0) for node in nodes), default=0.0) / size
            each = f"a cell needs {number:g} {unit}"
            return f"{each}, and the largest node of the Ray cluster has {largest:.3g}"
    return "no node of the Ray cluster has at once all that a cell needs"


def ray_crew(address: str, resources: Resources) -> Result[RayCrew, Problem]:
    """The crew of the Ray cluster at that address, which this process joins."""

    def crew(joined: None) -> RayCrew:
        import ray

        return RayCrew(ray, resources)

    return join_cluster(address).map(crew)
