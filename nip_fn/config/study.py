"""Studies: a base configuration, the axes along which it varies, and the cells that this makes.

    seeds = 5                                  # 1 to 5; or a list

    [base]                                     # a configuration, as for nip-fn train
    dataset = "builtin:tea"

    [arms.ei]                                  # ways of training by name, each a configuration
    trainer = "ei"                             # that is laid over the base

    [grid]                                     # each value with each other
    rl.lr = [1e-4, 5e-4]

`[zip]` varies its parameters together, the first value of each, then the second; `[random]` draws
`num` combinations of values; `[tests.NAME]` plays the models of each cell once more, as they were
before and as they are after the training.  A cell is one combination of all of these: the written
configuration of an ordinary run.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from itertools import chain, product
from math import exp, log
from re import sub
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct, field
from returns.result import Failure, Result, Success

from nip_fn.config.codec import by_address, merge, nest
from nip_fn.config.schema import did_you_mean
from nip_fn.config.spelling import as_recorded
from nip_fn.errors import Problem, collect
from nip_fn.keys import Key, fold_in, key, randint, uniform
from nip_fn.params.base import NotNegative
from nip_fn.params.run import DEFAULT_AGENT
from nip_fn.protocols.registry import PROTOCOLS, agent_names

SEED, ARM, ZIP, DRAW = "seed", "arm", "zip", "draw"

# Parameters whose values need no other name beside them.
_TELLING = ("trainer", "dataset", "interaction_protocol", "model_name")

Version = Literal["base", "latest"]
VERSIONS: tuple[Version, ...] = ("base", "latest")


class Level(Struct, frozen=True):
    """One value of an axis."""

    label: str  # a part of the names of its cells
    table: dict[str, Any]  # laid over the base


class Axis(Struct, frozen=True):
    """One thing that varies: an address, or `SEED`, `ARM`, `ZIP` or `DRAW`."""

    name: str
    levels: tuple[Level, ...]


class Comparing(Struct, frozen=True, forbid_unknown_fields=True):
    """The table of a study, and the differences that are tested."""

    # The row that all others are compared with, or each row's own.
    baseline: str | dict[str, str] | None = None
    pool: tuple[str, ...] = ()  # axes that make no rows, as seeds make none
    metrics: tuple[str, ...] = ()  # of the last test, as further columns
    difference: Annotated[float, Meta(gt=0, le=1)] = 0.03  # of accuracies, for the note on power


class Resources(Struct, frozen=True, forbid_unknown_fields=True):
    """The resources of a cell, where many machines share the work."""

    cpus: NotNegative = 1
    gpus: NotNegative = 0
    memory_gb: NotNegative = 0


class Study(Struct, frozen=True):
    """A base configuration and all that is done with it.

    name: of its folder.
    base: the written configuration.
    axes: the things that vary, those that vary most slowly first.
    tests: (name, configuration laid over a cell's) of its further tests.
    budget: dollars for all cells together; None for no limit.
    forest: the run whose recorded replies all cells train on; None: each samples its own.
    iteration: of that run; None: the last that it has sampled.
    """

    name: str
    base: dict[str, Any]
    axes: tuple[Axis, ...] = ()
    tests: tuple[tuple[str, dict[str, Any]], ...] = ()
    budget: float | None = None
    compare: Comparing = Comparing()
    resources: Resources = Resources()
    forest: str | None = None
    iteration: int | None = None


class Tested(NamedTuple):
    """The cell whose models a test plays: its name, and before or after its training."""

    test: str
    cell: str
    version: Version


class Cell(NamedTuple):
    """A run of a study.

    name: its folder in that of the study.
    levels: axis -> label.
    table: its configuration; that of a test has the agents of the cell that it tests.
    tested: the cell that must be done before, if this is a test of its models.
    """

    name: str
    levels: Mapping[str, str]
    table: dict[str, Any]
    tested: Tested | None = None

    @property
    def written(self) -> dict[str, Any]:
        """The configuration as it is run: a test loads its agents from the cell that it tests."""
        if self.tested is None:
            return self.table
        # All of them, scripts among them, with everything that was recorded of them.
        loaded = {
            "load_checkpoint_and_parameters": True,
            "checkpoint_run_id": self.tested.cell,
            "checkpoint_version": self.tested.version,
        }
        return {**self.table, "agents": {DEFAULT_AGENT: loaded}}


# ------------------------------------------------------------------------------------ from a file


class _Written(Struct, forbid_unknown_fields=True):
    """A study as it is written."""

    base: dict[str, Any] = field(default_factory=dict)
    seeds: Annotated[int, Meta(ge=1)] | tuple[int, ...] = ()
    arms: dict[str, dict[str, Any]] = field(default_factory=dict)
    grid: dict[str, Any] = field(default_factory=dict)
    zip: dict[str, Any] = field(default_factory=dict)
    random: dict[str, Any] = field(default_factory=dict)
    tests: dict[str, dict[str, Any]] = field(default_factory=dict)
    budget: NotNegative | None = None
    compare: Comparing = Comparing()
    resources: Resources = Resources()
    forest: str | None = None
    iteration: Annotated[int, Meta(ge=0)] | None = None


def study_of(name: str, table: Mapping[str, Any]) -> Result[Study, Problem]:
    """The study that a table describes, or the first problem with it."""
    try:
        written = msgspec.convert(table, _Written)
    except msgspec.ValidationError as error:
        return Failure(_as_problem(error))
    return _axes(written).bind(
        lambda axes: checked(
            Study(
                name,
                written.base,
                axes,
                tuple(written.tests.items()),
                written.budget,
                written.compare,
                written.resources,
                written.forest,
                written.iteration,
            )
        )
    )


def seeds_axis(seeds: int | Iterable[int]) -> Axis:
    """The axis of so many seeds, from 1, or of these.

    >>> [level.table for level in seeds_axis(2).levels]
    [{'seed': 1}, {'seed': 2}]
    """
    numbers = range(1, seeds + 1) if isinstance(seeds, int) else dict.fromkeys(seeds)
    return Axis(SEED, tuple(Level(f"seed-{seed}", {"seed": seed}) for seed in numbers))


def with_seeds(study: Study, seeds: int | Iterable[int]) -> Study:
    """The study with other seeds than its own."""
    axes = tuple(axis for axis in study.axes if axis.name != SEED)
    return msgspec.structs.replace(study, axes=(*axes, seeds_axis(seeds)))


def _as_problem(error: msgspec.ValidationError) -> Problem:
    message, _, where = str(error).partition(" - at `$")
    address = where.rstrip("`").lstrip(".").replace("[...]", "")
    if "unknown field" in message:
        unknown = message.split("`")[1]
        sections: dict[str, Any] = {"compare": Comparing, "resources": Resources}
        names = list(sections.get(address, _Written).__struct_fields__)
        remedy = did_you_mean(unknown, names) or f"known are {', '.join(names)}"
        if not address:
            remedy += "; parameters of the runs stand in [base]"
        return Problem("a study has no such field", f"{address}.{unknown}".lstrip("."), remedy)
    return Problem(f"{message[0].lower()}{message[1:]}", address)


def _axes(written: _Written) -> Result[tuple[Axis, ...], Problem]:
    """The axes, in their order: arms, grid, zip, draws, seeds."""
    arms = Axis(ARM, tuple(Level(name, table) for name, table in written.arms.items()))
    kinds = [
        Success((arms,) if written.arms else ()),
        collect(
            _grid_axis(address, values) for address, values in by_address(written.grid).items()
        ),
        _zip_axis(by_address(written.zip)) if written.zip else Success(()),
        _drawn_axis(dict(written.random)) if written.random else Success(()),
        Success((seeds_axis(written.seeds),) if written.seeds else ()),
    ]
    return collect(kinds).map(lambda axes: tuple(chain.from_iterable(axes)))


def _grid_axis(address: str, values: Any) -> Result[Axis, Problem]:
    return _values(f"grid.{address}", values).map(
        lambda levels: Axis(
            address, distinct([Level(label_of(address, v), nest(address, v)) for v in levels])
        )
    )


def _zip_axis(columns: Mapping[str, Any]) -> Result[tuple[Axis, ...], Problem]:
    listed = collect(_values(f"zip.{address}", values) for address, values in columns.items())

    def zipped(values: tuple[tuple[Any, ...], ...]) -> Result[tuple[Axis, ...], Problem]:
        if len(set(map(len, values))) > 1:
            sizes = ", ".join(
                f"{address} has {len(column)}"
                for address, column in zip(columns, values, strict=True)
            )
            problem = f"values that go together are not as many: {sizes}"
            return Failure(Problem(problem, "zip", "give each as many, or use [grid]"))
        levels = [_level(dict(zip(columns, row, strict=True))) for row in zip(*values, strict=True)]
        return Success((Axis(ZIP, distinct(levels)),))

    return listed.bind(zipped)


def _values(address: str, values: Any) -> Result[tuple[Any, ...], Problem]:
    if isinstance(values, list) and values:
        return Success(tuple(values))
    remedy = f"write {address} = [1, 2]" if not isinstance(values, list) else "name at least one"
    return Failure(Problem(f"expected a list of values, got {values!r}", address, remedy))


def _level(values: Mapping[str, Any]) -> Level:
    label = "-".join(label_of(address, value) for address, value in values.items())
    return Level(label, _nested(values))


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """The table that has these values at these addresses."""
    tables: Iterable[dict[str, Any]] = (nest(address, value) for address, value in values.items())
    empty: dict[str, Any] = {}
    return reduce(merge, tables, empty)


def label_of(address: str, value: Any) -> str:
    """A word for a value: `lr-0.0001`, and of a model or a file the last part of its name."""
    name = address.rpartition(".")[2]
    words = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    last = as_name(sub(r".*[/:]", "", words))
    return last if name in _TELLING else f"{name}-{last}"


def as_name(words: str) -> str:
    """The words as a part of the name of a folder.

    >>> as_name("a b/c")
    'a-b-c'
    """
    return sub(r"[^A-Za-z0-9_.+-]+", "-", words).strip("-.")


def distinct(levels: list[Level]) -> tuple[Level, ...]:
    """The levels, with numbers where two have one label."""
    labels = [level.label for level in levels]
    if len(set(labels)) == len(labels):
        return tuple(levels)
    return tuple(
        Level(f"{level.label}-{number}", level.table) for number, level in enumerate(levels, 1)
    )


# ------------------------------------------------------------------------------------------ draws

_SHAPES = ("uniform", "log", "integer")


def _drawn_axis(table: dict[str, Any]) -> Result[tuple[Axis, ...], Problem]:
    """The axis of `num` draws; each parameter of a draw depends on its own key alone."""
    num, seed = table.pop("num", None), table.pop("seed", 0)
    if type(num) is not int or num < 1:
        actual = "" if num is None else f", got {num!r}"
        problem = f"expected the number of draws{actual}"
        return Failure(Problem(problem, "random.num", "write num = 10"))
    if type(seed) is not int:
        problem = f"expected the seed of the draws, got {seed!r}"
        return Failure(Problem(problem, "random.seed", "write seed = 1"))
    spaces = dict(_spaces(table))
    refused = next(chain.from_iterable(_space_problems(*space) for space in spaces.items()), None)
    if refused is not None:
        return Failure(refused)

    def level(number: int) -> Level:
        draw_key = fold_in(key(seed), "study", number)
        values = {
            address: _draw(fold_in(draw_key, address), space) for address, space in spaces.items()
        }
        return Level(f"draw-{number}", _nested(values))

    return Success((Axis(DRAW, tuple(map(level, range(1, num + 1)))),))


def _spaces(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(address, what is drawn from): a list of values, or a table with a shape and its bounds."""
    for name, value in table.items():
        if isinstance(value, Mapping) and not set(value) & set(_SHAPES):
            yield from _spaces(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _space_problems(address: str, space: Any) -> Iterator[Problem]:
    where = f"random.{address}"
    remedy = "write a list of values, or { log = [1e-6, 1e-4] }, { uniform = .. }, { integer = .. }"
    if isinstance(space, Mapping) and len(space) == 1:
        ((shape, bounds),) = space.items()
        numbers = isinstance(bounds, list) and all(type(bound) in (int, float) for bound in bounds)
        if not numbers or len(bounds) != 2 or bounds[0] > bounds[1]:
            yield Problem(f"expected a lower and an upper bound, got {bounds!r}", where, remedy)
        elif shape == "log" and bounds[0] <= 0:
            yield Problem("a logarithmic scale has no zero", where, "give it a positive bound")
        elif shape == "integer" and any(type(bound) is not int for bound in bounds):
            yield Problem(f"expected whole numbers, got {bounds!r}", where, remedy)
    elif not isinstance(space, list) or not space:
        yield Problem(f"nothing can be drawn from {space!r}", where, remedy)


def _draw(key: Key, space: Any) -> Any:
    if isinstance(space, list):
        return space[randint(key, len(space))]
    ((shape, (low, high)),) = space.items()
    match shape:
        case "integer":
            return low + randint(key, high - low + 1)
        case "log":
            return exp(log(low) + uniform(key) * (log(high) - log(low)))
    return low + uniform(key) * (high - low)


# ------------------------------------------------------------------------------------------ cells


def cells(study: Study) -> tuple[Cell, ...]:
    """All cells, the tests of each behind it; the last axis varies fastest."""
    return tuple(chain.from_iterable(_with_tests(study, cell) for cell in _trained(study)))


def _trained(study: Study) -> Iterator[Cell]:
    levels = [level for axis in study.axes for level in axis.levels]
    players = _players([study.base, *(level.table for level in levels)])
    for chosen in product(*(axis.levels for axis in study.axes)):
        labels = {axis.name: level.label for axis, level in zip(study.axes, chosen, strict=True)}
        name = "-".join(labels.values()) or study.name
        table = reduce(merge, (level.table for level in chosen), study.base)
        yield Cell(name, labels, as_recorded(_without_others(table, players)))


def _players(tables: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """The agents of each protocol that the tables name; none of protocols of one's own."""
    named = {str(table.get("interaction_protocol")) for table in tables}
    return {name: agent_names(name) for name in sorted(named & set(PROTOCOLS))}


def _without_others(
    table: dict[str, Any], players: Mapping[str, tuple[str, ...]]
) -> dict[str, Any]:
    """A cell's table without the agents that only protocols of other cells have."""
    names = players.get(table.get("interaction_protocol", ""))
    if names is None or "agents" not in table:
        return table
    absent = set(chain(*players.values())) - set(names)
    kept = {name: fields for name, fields in table["agents"].items() if name not in absent}
    return {**table, "agents": kept}


def _with_tests(study: Study, cell: Cell) -> Iterator[Cell]:
    yield cell
    for (name, table), version in product(study.tests, VERSIONS):
        fixed = {"rl": {"num_iterations": 0}, "text_rl": {"test_scheme": "all"}}
        whole = merge(merge(cell.table, fixed), table)
        tested = Tested(name, cell.name, version)
        yield Cell(f"{cell.name}-{name}-{version}", cell.levels, whole, tested)


def row_of(study: Study, cell: Cell) -> str:
    """The row of the study's table that a cell belongs to: what varies, but for what is pooled."""
    labels = (
        label for axis, label in cell.levels.items() if axis not in (SEED, *study.compare.pool)
    )
    return ", ".join(labels) or study.name


def baseline_of(study: Study, row: str) -> str | None:
    """The row that a row is compared with; None if it is compared with none."""
    baseline = study.compare.baseline
    named = baseline.get(row) if isinstance(baseline, dict) else baseline
    return None if named == row else named


def replicate_of(study: Study, cell: Cell) -> tuple[str, ...]:
    """The place of a cell in its row: its seed, and what else is pooled."""
    pooled = (SEED, *study.compare.pool)
    return tuple(label for axis, label in cell.levels.items() if axis in pooled)


def checked(study: Study) -> Result[Study, Problem]:
    """The study, or the first problem with it."""
    problem = next(_problems(study), None)
    return Failure(problem) if problem else Success(study)


def _problems(study: Study) -> Iterator[Problem]:
    names = [axis.name for axis in study.axes]
    written = [(axis.name, by_address(level.table)) for axis in study.axes for level in axis.levels]
    by_axis: dict[str, set[str]] = {}
    for name, table in written:
        by_axis.setdefault(name, set()).update(table)
    seen: dict[str, str] = {}
    for name, addresses in by_axis.items():
        for address in sorted(addresses):
            if address in seen:
                problem = f"{seen[address]} and {name} both set it"
                yield Problem(problem, address, "leave it to one of them")
            seen[address] = name
    for name, table in study.tests:
        if "agents" in table:
            problem = "a test plays the agents as they were trained"
            yield Problem(problem, f"tests.{name}.agents", "leave it out, or vary it in [arms]")
    for axis in study.compare.pool:
        if axis not in names:
            axes = ", ".join(name for name in names if name != SEED) or "none"
            yield Problem("no axis has this name", f"compare.pool: {axis}", f"known are {axes}")
    all_cells = cells(study)
    rows = list(dict.fromkeys(row_of(study, cell) for cell in all_cells))
    baseline = study.compare.baseline
    for named in chain(*baseline.items()) if isinstance(baseline, dict) else (baseline,):
        if named is not None and named not in rows:
            remedy = did_you_mean(named, rows) or f"known are {'; '.join(rows)}"
            yield Problem("no row has this name", f"compare.baseline: {named}", remedy)
    for label in (level.label for axis in study.axes for level in axis.levels):
        if label != as_name(label):
            remedy = f"write {as_name(label) or 'a word'}"
            yield Problem("it cannot be the name of a folder", label, remedy)
    for name, count in Counter(cell.name for cell in all_cells).items():
        if count > 1:
            yield Problem("two cells have this name", name, "give the arms or tests other names")
