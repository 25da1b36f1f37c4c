"""Parameters of data sets."""

from typing import Annotated, Literal

from nip_fn.game.datapoint import Kind
from nip_fn.params.base import Count, Natural, Record, Share, parameter


class DatasetParameters(Record, frozen=True):
    """The choice and the split of the data."""

    max_train_size: Annotated[
        Count | None,
        parameter("Maximum number of training datapoints. None: no limit.", needs="iterations"),
    ] = None
    max_test_size: Annotated[
        Count | None,
        parameter("Maximum number of held-out datapoints. None: no limit.", needs="tests"),
    ] = None
    reduce_shuffle_seed: Annotated[
        int,
        parameter(
            "Seed that decides which datapoints a limit keeps. A larger limit keeps those of a "
            "smaller one.",
            needs="chosen rows",
        ),
    ] = 42
    difficulty: Annotated[
        str | None,
        parameter(
            "Use only problems of this difficulty. For APPS and buggy-apps set "
            "code_validation.apps_difficulty instead.",
            needs="chosen rows",
        ),
    ] = None
    kind: Annotated[
        Kind | None,
        parameter(
            'Kind of solutions, which decides the wording of the prompts: "code" for Python '
            'programs, "prose" for answers in words, "choice" for options, "number" for '
            'calculations. None: that of the benchmark, otherwise "code" if any has tests or at '
            'least half of them are Python programs, otherwise "prose".',
            needs="given rows",
        ),
    ] = None
    checker: Annotated[
        str | None,
        parameter(
            "What says if an answer that a prover wrote is right: exact, number, choice or set "
            "compare it with the reference of its row, tests runs it as a program against the "
            "row's tests, and file.py:NAME is a function of your own. None: tests for code, choice "
            "for choices, number for calculations, exact for prose.",
            needs="answers",
        ),
    ] = None
    balance_classes: Annotated[
        bool,
        parameter(
            "In each split, alternate between correct and buggy solutions in equal numbers.",
            needs="chosen rows",
        ),
    ] = False
    validation_share: Annotated[
        Share,
        parameter(
            "Share of the problems for validation, if the data set has no splits.",
            needs="given rows",
        ),
    ] = 0.15
    test_share: Annotated[
        Share,
        parameter(
            "Share of the problems for testing, if the data set has no splits.", needs="given rows"
        ),
    ] = 0.15
    only_label: Annotated[
        Literal[0, 1] | None,
        parameter("Use only the datapoints with this label: 1 for right, 0 for wrong. None: all."),
    ] = None
    only_split: Annotated[
        str | None,
        parameter(
            'For tests only: use all rows of one split and no others. Its name in the data; "all" '
            'for every row; or "auto" for the test split, else the validation split, else every '
            "row. None: split as usual."
        ),
    ] = None
    skip_bad_rows: Annotated[
        bool,
        parameter("Skip and count rows that cannot be read instead of stopping.", needs="bad rows"),
    ] = False


class CodeValidationParameters(Record, frozen=True):
    """The wording of the task, and the choice of data from APPS."""

    apps_difficulty: Annotated[
        Literal["introductory", "interview", "competition", "all"],
        parameter("Use only problems of this difficulty from APPS and buggy-apps.", needs="apps"),
    ] = "interview"
    apps_solution_number: Annotated[
        Natural,
        parameter(
            "Index of the solution to use for each APPS problem (not buggy-apps).", needs="apps"
        ),
    ] = 0
    apps_exclude_flagged: Annotated[
        bool, parameter("Leave out problems that buggy-apps has flagged.", needs="apps")
    ] = True
    system_prompt_version: Annotated[
        Literal["v1", "views"],
        parameter(
            'Prompt templates: "v1" is about solutions, "views" shows each agent its own view of '
            "the datapoint and no solution."
        ),
    ] = "v1"
