"""Parameters of data sets."""

from typing import Annotated, Literal

from msgspec import Meta

from nip_fn.params.base import Count, Natural, Record, Share


class DatasetParameters(Record, frozen=True):
    """Which of the data are used, and how they are split."""

    max_train_size: Annotated[Count | None, Meta(description="train datapoints at most")] = None
    max_test_size: Annotated[Count | None, Meta(description="held-out datapoints at most")] = None
    reduce_shuffle_seed: Annotated[
        int, Meta(description="draws those; the same ones, and more, for a larger size")
    ] = 42
    difficulty: Annotated[
        str | None, Meta(description="only problems of this difficulty (not for APPS: see below)")
    ] = None
    balance_classes: Annotated[
        bool, Meta(description="right and buggy solutions in equal number, in turn, in each split")
    ] = False
    validation_share: Annotated[
        Share, Meta(description="of the problems, where the data are not split already")
    ] = 0.15
    test_share: Annotated[Share, Meta(description="likewise")] = 0.15
    skip_bad_rows: Annotated[
        bool, Meta(description="leave out rows that cannot be read, and count them")
    ] = False


class CodeValidationParameters(Record, frozen=True):
    """The wording of the task, and the choice of data from APPS."""

    apps_difficulty: Annotated[
        Literal["introductory", "interview", "competition", "all"],
        Meta(description="only problems of this difficulty, from APPS and buggy-apps"),
    ] = "interview"
    apps_solution_number: Annotated[
        Natural, Meta(description="which of a problem's solutions, from APPS (not buggy-apps)")
    ] = 0
    apps_exclude_flagged: Annotated[
        bool, Meta(description="no problems that buggy-apps gives flags to")
    ] = True
    system_prompt_version: Annotated[
        Literal["v1", "tiny"], Meta(description='prompts for any model, or for "builtin:tiny"')
    ] = "v1"
