"""Parameters of data sets."""

from typing import Annotated, Literal

from msgspec import Meta

from nip_fn.game.datapoint import Kind
from nip_fn.params.base import Count, Natural, Record, Share


class DatasetParameters(Record, frozen=True):
    """The choice and the split of the data."""

    max_train_size: Annotated[
        Count | None, Meta(description="Largest number of training datapoints. None: no limit.")
    ] = None
    max_test_size: Annotated[
        Count | None, Meta(description="Largest number of held-out datapoints. None: no limit.")
    ] = None
    reduce_shuffle_seed: Annotated[
        int,
        Meta(
            description="Seed of the draw when a limit applies. A larger limit keeps the "
            "datapoints of a smaller one."
        ),
    ] = 42
    difficulty: Annotated[
        str | None,
        Meta(
            description="Use only problems of this difficulty. For APPS and buggy-apps set "
            "code_validation.apps_difficulty instead."
        ),
    ] = None
    kind: Annotated[
        Kind | None,
        Meta(
            description='What the solutions are, which decides the wording of the prompts: "code" '
            'for Python programs, "prose" for answers in words. None: "code" if any has tests or '
            'at least half of them are Python programs, else "prose".'
        ),
    ] = None
    balance_classes: Annotated[
        bool,
        Meta(description="In each split, alternate correct and buggy solutions in equal numbers."),
    ] = False
    validation_share: Annotated[
        Share,
        Meta(description="Share of the problems for validation, if the data set has no splits."),
    ] = 0.15
    test_share: Annotated[
        Share,
        Meta(description="Share of the problems for testing, if the data set has no splits."),
    ] = 0.15
    only_label: Annotated[
        Literal[0, 1] | None,
        Meta(
            description="Use only the datapoints with this label, 1 for right and 0 for wrong. "
            "None: all."
        ),
    ] = None
    only_split: Annotated[
        str | None,
        Meta(
            description='For tests alone: use only these rows, and all of them. "all", or the '
            'name of a split that the data come in; "auto": their test or else validation split, '
            "or all if they come in none. None: all splits."
        ),
    ] = None
    skip_bad_rows: Annotated[
        bool, Meta(description="Skip and count rows that cannot be read, instead of stopping.")
    ] = False


class CodeValidationParameters(Record, frozen=True):
    """The wording of the task, and the choice of data from APPS."""

    apps_difficulty: Annotated[
        Literal["introductory", "interview", "competition", "all"],
        Meta(description="Use only problems of this difficulty from APPS and buggy-apps."),
    ] = "interview"
    apps_solution_number: Annotated[
        Natural,
        Meta(description="Index of the solution to use for each APPS problem (not buggy-apps)."),
    ] = 0
    apps_exclude_flagged: Annotated[
        bool, Meta(description="Leave out problems that buggy-apps has flagged.")
    ] = True
    system_prompt_version: Annotated[
        Literal["v1", "views", "analysis"],
        Meta(
            description='Prompt templates: "v1" is about code, "views" shows each agent its own '
            'view of the datapoint, "analysis" is for a solo_verifier that judges transcripts '
            "(nip-fn analyse)."
        ),
    ] = "v1"
