"""Studies as they are written in files, and the plans of their cells."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace
from returns.result import Result, Success

from nip_fn.config.codec import changes
from nip_fn.config.compat.nip import nip_differences
from nip_fn.config.compat.nip_experiment import (
    base_config,
    experiment_differences,
    experiment_study,
    is_nip_experiment,
)
from nip_fn.config.spelling import as_recorded
from nip_fn.config.study import Cell, Study, as_name, cells, study_of
from nip_fn.errors import Problem
from nip_fn.params.run import HyperParameters
from nip_fn.run.reuse import may_resume
from nip_fn_adapters.experiments.outcomes import refuse
from nip_fn_adapters.experiments.plans import New, plan, plan_fork, warn_of_unused
from nip_fn_adapters.experiments.settings import named, parsed, read_table, tell_differences
from nip_fn_adapters.experiments.watching import NOBODY, Watch
from nip_fn_adapters.recording.overview import overview
from nip_fn_adapters.recording.store import CHECKPOINT

StudySettings = Study | Mapping[str, Any] | Path | str


class Planned(NamedTuple):
    """A cell of a study with the plan of its run.

    cell: the cell.
    folder: of its run.
    new: the plan, in which a test has yet to load its agents.
    """

    cell: Cell
    folder: Path
    new: New


def study_as_written(written: StudySettings, name: str | None, watch: Watch = NOBODY) -> Study:
    """The study that a table or a file describes; refuses one that has a problem.

    A file may be an experiment of the nip library; differences from it are told.

    Args:
        written: A table as in a file, or the path of one; a record is returned as it is.
        name: The study's name; None for that of its file, or "study".
        watch: Told of the differences.
    """
    match written:
        case Study():
            return written if name is None else replace(written, name=name)
        case str() | Path():
            path = Path(written)
            return _read(path, name or as_name(path.stem) or "study", watch).unwrap()
    named(written)
    table = _with_base(dict(written), Path(), watch)
    return table.bind(partial(study_of, name or "study")).unwrap()


def _read(path: Path, name: str, watch: Watch) -> Result[Study, Problem]:
    def read(table: dict[str, Any]) -> Result[Study, Problem]:
        if is_nip_experiment(table):
            return experiment_study(name, table).map(partial(_told, path, table, watch))
        return _with_base(table, path.parent, watch).bind(partial(study_of, name))

    return parsed(path).bind(read).alt(lambda problem: problem.at(str(path)))


def _told(path: Path, table: dict[str, Any], watch: Watch, study: Study) -> Study:
    """The study; tells how it differs from the nip library's."""
    tell_differences(path, experiment_differences(table), watch)
    tell_differences(path, base_config(table).map(nip_differences).value_or(iter(())), watch)
    return study


def _with_base(
    table: dict[str, Any], folder: Path, watch: Watch
) -> Result[dict[str, Any], Problem]:
    """The table, with the configuration that `base` may name as a file."""
    named = table.get("base")
    if not isinstance(named, str):
        return Success(table)
    return read_table(folder / named, watch).map(lambda base: {**table, "base": base})


def planned(
    study: Study, folder: Path, provider: str | None, watch: Watch = NOBODY
) -> list[Planned]:
    """The plans of all cells, in their order.

    Refuses if there is a problem with one, or if its run was begun with other parameters.
    """
    study_cells = cells(study)
    plans = [
        Planned(
            cell,
            folder / cell.name,
            # A test plays the models of a cell, and takes over nothing else.
            plan(cell.table, provider, folder, watch)
            if study.forest is None or cell.tested
            else plan_fork(study.forest, study.iteration, cell.table, provider, Path("runs")),
        )
        for cell in study_cells
    ]
    for table, new_runs in _written(study, plans):
        warn_of_unused(table, provider, new_runs, watch)
    for cell_plan in plans:
        if (problem := _changed(cell_plan)) is not None:
            refuse(problem)
    return plans


def _written(study: Study, plans: list[Planned]) -> Iterator[tuple[dict[str, Any], list[New]]]:
    """The base, and each value of each axis, with the plans that they are a part of."""
    trained = [cell_plan for cell_plan in plans if cell_plan.cell.tested is None]
    yield as_recorded(study.base), [cell_plan.new for cell_plan in trained]
    for axis in study.axes:
        for level in axis.levels:
            new_runs = [
                cell_plan.new
                for cell_plan in trained
                if cell_plan.cell.levels[axis.name] == level.label
            ]
            yield as_recorded(level.table), new_runs


def _changed(cell_plan: Planned) -> Problem | None:
    """A problem if the run of a cell was begun with parameters that it may not change."""
    if not (cell_plan.folder / CHECKPOINT).exists():
        return None
    recorded = overview(cell_plan.folder, cell_plan.cell.name).params
    if recorded is None:
        return None  # it died before its start was recorded
    address = next(iter(_differing(recorded, cell_plan)), None)
    if address is None:
        return None
    before, now = changes(recorded, cell_plan.new.params)[address]
    return Problem(
        f"{address} is {now}, and {before} in the run that was begun",
        str(cell_plan.folder),
        "give the study another name (`name`), or delete that run",
        kind="run",
    )


def _differing(recorded: HyperParameters, cell_plan: Planned) -> Iterator[str]:
    requested = cell_plan.new.params
    # What a test's agents are, it has from the cell that it tests.
    if cell_plan.cell.tested is not None:
        requested = replace(requested, agents=recorded.agents)
    for address in changes(recorded, requested):
        if not may_resume(recorded, requested, address):
            yield address
