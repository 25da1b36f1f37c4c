"""Which adapters a run gets."""

from pathlib import Path
from typing import NamedTuple

from nip_fn.params import HyperParameters
from nip_fn.ports import Publisher, Sampler, Tuner
from nip_fn_adapters import dummy
from nip_fn_cli.exits import Exit, die


class Models(NamedTuple):
    """The adapters that stand for the models."""

    sampler: Sampler
    tuner: Tuner
    publisher: Publisher


def wire(params: HyperParameters, run: Path) -> Models:
    """The adapters that the parameters ask for; the run's adapters live in its folder."""
    providers = sorted({agent.model_provider for agent in params.agents})
    if len(providers) > 1:
        die(Exit.USAGE, f"agents: one run uses one provider, not {' and '.join(providers)}")
    return {"dummy": _dummy, "local": _local}[providers[0]](run)


def _dummy(run: Path) -> Models:
    return Models(dummy.dummy_sampler(), dummy.dummy_tuner(), dummy.serve_at_once)


def _local(run: Path) -> Models:
    from nip_fn_adapters.local.sampler import local_sampler
    from nip_fn_adapters.local.tuner import local_tuner

    return Models(local_sampler(run / "adapters"), local_tuner(run), dummy.serve_at_once)
