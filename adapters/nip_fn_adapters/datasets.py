"""Data sets by name."""

from collections.abc import Sequence

from returns.result import Failure, Result, Success

from nip_fn.data import SPLITS, Datapoint, Dataset, Split, content_hash
from nip_fn.datasets import arithmetic
from nip_fn.events import DatasetInfo
from nip_fn.keys import key
from nip_fn.ports import Source

# The built-in data sets never change with a run's seed: the same name is the same data.
BUILTIN_SEED = 0


def load(name: str) -> Result[Dataset, str]:
    """The data set of that name."""
    if name == "builtin:arithmetic":
        return Success(
            arithmetic.make_dataset(
                key(BUILTIN_SEED), num_train=2000, num_validation=500, num_test=1000
            )
        )
    return Failure(f"dataset: there is no {name!r}; choose builtin:arithmetic")


def describe(dataset: Dataset) -> DatasetInfo:
    """What a run records about its data: name, hash and sizes."""
    return DatasetInfo(
        name=dataset.name,
        hash=content_hash(point for split in SPLITS for point in dataset.split(split)),
        train_size=len(dataset.train),
        validation_size=len(dataset.validation),
        test_size=len(dataset.test),
    )


def source(dataset: Dataset) -> Source:
    """A source that draws from a data set in memory."""

    def draw(split: Split, indices: Sequence[int]) -> tuple[Datapoint, ...]:
        points = dataset.split(split)
        return tuple(points[index] for index in indices)

    return draw
