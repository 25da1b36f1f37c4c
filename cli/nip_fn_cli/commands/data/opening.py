"""The data set of a command: its argument, and the parameters that bear on it."""

from collections.abc import Sequence
from typing import Annotated

import typer

from nip_fn.config.codec import merge
from nip_fn.config.presets import with_preset
from nip_fn.params.run import HyperParameters
from nip_fn_adapters.experiments.settings import resolve
from nip_fn_cli.config import overrides

DatasetArgument = Annotated[
    str, typer.Argument(help="The data set, as for nip-fn train --dataset.", metavar="DATASET")
]


def data_params(dataset: str, sets: Sequence[str] | None, skip_bad_rows: bool) -> HyperParameters:
    """The parameters that bear on a data set, all of which is used unless `sets` say otherwise."""
    whole = {"dataset_options": {"balance_classes": False}}
    written = overrides(dataset=dataset, sets=sets, skip_bad_rows=skip_bad_rows)
    return resolve(with_preset(merge(whole, written)))
