"""Values of a user's own, referred to as `package.module:NAME` or `file.py:NAME`.

A protocol, a trainer, a pair selector, a backup, a checker, an agent's strategy and a data set may
be such references, on the command line and in a configuration.  A run records each of them with a
hash of its source, so that a replay can say when the source is missing or has changed.

To load a reference is to run code, and a reference may come from a stranger's recording.  So code
runs only if its source, by its hash, is one that the user has named before (see `trust`).
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from importlib.machinery import ModuleSpec, PathFinder
from modulefinder import ModuleFinder
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any, NamedTuple

from msgspec.structs import replace
from returns.pipeline import is_successful
from returns.result import Failure, Result, Success

from nip_fn.code.splitting import LeakKeys, Shares, splits
from nip_fn.config.trainers import BACKUPS, SELECTORS, TRAINERS
from nip_fn.errors import Problem, collect, one_line
from nip_fn.game.checkers import CHECKERS
from nip_fn.game.datapoint import Datapoint, Dataset, Split, text_hash
from nip_fn.game.protocol import Protocol
from nip_fn.params.data import DatasetParameters
from nip_fn.params.names import is_reference
from nip_fn.params.run import DEFAULT_AGENT, HyperParameters
from nip_fn.protocols.registry import PROTOCOLS
from nip_fn.protocols.strategies import STRATEGIES
from nip_fn.testing.losses import LossError, check_loss
from nip_fn.training.losses import LOSSES, Loss, OwnLoss
from nip_fn.training.trainer import Trainer
from nip_fn_adapters.trust import HOW, is_remembered, remember, texts, trusts_all

Sources = tuple[tuple[str, str], ...]  # (reference, hash of its source), by reference

RESTORE = "put it back, or run the command in the folder where the run was started"
OWN_PACKAGES = ("nip_fn", "nip_fn_adapters", "nip_fn_cli")


class Extension(NamedTuple):
    """A value of a user's own.

    reference: its name, as the user wrote it.
    value: the object.
    source: a hash of the file that defines it and of the files that this one imports from beside
        it, or from the same package (16 hexadecimal digits).
    """

    reference: str
    value: Any
    source: str


class _Location(NamedTuple):
    """The place of a source file.

    path: the file.
    root: the folder that its absolute imports begin in.
    module: its dotted name beneath the root; "" for a file that is referred to by its path.
    """

    path: Path
    root: Path
    module: str


# ----------------------------------------------------------------------------------------- loading


def load_extension(
    reference: str, *, trust: bool = False, recorded: str | None = None
) -> Result[Extension, Problem]:
    """The value that `package.module:NAME` or `file.py:NAME` refers to.

    A module is looked for in the working directory, too; a file is run anew at every call.

    Args:
        reference: The reference.
        trust: Run code that the user has not named before, too.
        recorded: The hash of the source that a run was recorded with, if it is known.
    """
    name = reference.rpartition(":")[2]

    def run(location: _Location) -> Result[Extension, Problem]:
        source = _hash(location)  # before anything is imported
        if not (trust or trusts_all() or is_remembered(_mark(reference, source))):
            return Failure(_unknown_code(reference, location, source, recorded))
        remember([_mark(reference, source)])
        return (
            _import(reference, location)
            .bind(lambda module: _member(reference, module, name))
            .map(lambda value: Extension(reference, value, source))
        )

    return _locate(reference).bind(run)


def remember_sources(table: Mapping[str, Any]) -> None:
    """Remember the sources that a table refers to, written by the user: their code may run."""
    # At any address: which of them is a reference depends on options that are not known yet.
    written = {text for _, text in texts(table) if is_reference(text)}
    sources = {reference: source_hash(reference) for reference in written}
    remember(
        _mark(name, source.unwrap()) for name, source in sources.items() if is_successful(source)
    )


def _mark(reference: str, source: str) -> str:
    # With the name: another value of the same file may be a function that does something else.
    return f"{source} {reference.rpartition(':')[2]}"


def _unknown_code(
    reference: str, location: _Location, source: str, recorded: str | None
) -> Problem:
    """The problem of code that the user has not named, of which nothing was run."""
    if recorded not in (None, source):
        return Problem(
            f"{_changed(str(recorded), source)}, and was not loaded",
            reference,
            f"restore the source, or derive the run by the present one with {HOW}",
            kind="mismatch",
        )
    return Problem(
        "the recording names code that you have not named before, and it was not run "
        f"({location.path})",
        reference,
        f"read it, then run it with {HOW}",
        kind="untrusted",
    )


def source_hash(reference: str) -> Result[str, Problem]:
    """The hash of the reference's source (see `Extension`), without running it."""
    return _locate(reference).map(_hash)


def _locate(reference: str) -> Result[_Location, Problem]:
    where = reference.rpartition(":")[0]
    if where.endswith(".py"):
        path = Path(where)
        if path.is_file():
            return Success(_Location(path, path.parent, ""))
        return Failure(Problem(f"there is no file {where}", reference, RESTORE))
    with _importable(Path.cwd()):
        spec = _spec(where)
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return Failure(
            Problem(
                f"there is no module {where}",
                reference,
                "install its package, or run the command in the folder that holds it",
            )
        )
    path = Path(spec.origin)
    depth = where.count(".") + (path.name == "__init__.py")
    return Success(_Location(path, path.parents[depth], where))


def _spec(module: str) -> ModuleSpec | None:
    """The place of a module; unlike `importlib.util.find_spec` it imports no package around it."""
    top, *packages = module.split(".")
    specs = (finder.find_spec(top, None) for finder in sys.meta_path)
    spec = next(filter(None, specs), None)
    for package in packages:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(package, list(spec.submodule_search_locations))
    return spec


def _import(reference: str, location: _Location) -> Result[ModuleType, Problem]:
    try:
        with _importable(location.root if not location.module else Path.cwd()):
            return Success(
                importlib.import_module(location.module) if location.module else _run(location.path)
            )
    except Exception as error:  # whatever a user's own code raises
        return Failure(_broken(reference, error))


def _run(path: Path) -> ModuleType:
    """The module of a file, run under a name that no other module has."""
    name = f"_nip_fn_extension_{text_hash(str(path.resolve()))}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # records and dataclasses look their own module up
    spec.loader.exec_module(module)
    return module


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Let modules of a folder be imported, as they are by a script that lies there."""
    before = list(sys.path)
    sys.path.insert(0, str(folder))
    # Otherwise a file that was written a moment ago might not be found.
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before


def _member(reference: str, module: ModuleType, name: str) -> Result[Any, Problem]:
    if hasattr(module, name):
        return Success(getattr(module, name))
    names = [
        defined
        for defined in vars(module)
        if defined.isupper() or callable(getattr(module, defined))
    ]
    public = ", ".join(defined for defined in names if not defined.startswith("_")) or "none"
    return Failure(Problem(f"it defines no {name}", reference, f"its values are: {public}"))


def _broken(reference: str, error: Exception) -> Problem:
    """The problem of a source that raises, with the place at which it does."""
    if isinstance(error, SyntaxError):  # raised by Python's own frames; it knows its place itself
        location = f"{error.filename}, line {error.lineno}"
        return Problem(f"{type(error).__name__}: {error.msg} ({location})", reference, "correct it")
    frames = [frame for frame in extract_tb(error.__traceback__) if frame.filename != __file__]
    location = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return Problem(f"{type(error).__name__}: {error}{location}", reference, "correct its source")


def _hash(location: _Location) -> str:
    """The hash of a file's content, and of the files that it imports from beneath its root."""
    digest = blake2b(digest_size=8)
    for path in sorted(_imported(location) | {location.path.absolute()}):
        digest.update(path.relative_to(location.root.absolute()).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


def _imported(location: _Location) -> set[Path]:
    """The files of the modules that the source imports, directly or not."""
    # Found by reading, not by running: what is in `sys.modules` depends on who ran before.  Other
    # packages beside this one have versions of their own, and are left out.
    top = location.module.partition(".")[0]
    beside = {path.stem for path in location.root.iterdir()} - {top} if top else set[str]()
    finder = ModuleFinder(path=[str(location.root)], excludes=[*beside, *OWN_PACKAGES])
    try:
        if location.module:
            finder.import_hook(location.module)
        else:
            finder.run_script(str(location.path))
    except Exception:  # whatever a file that is no Python leads to: loading it says so
        return set()
    files = (module.__file__ for module in finder.modules.values())  # type: ignore[attr-defined]
    return {Path(file).absolute() for file in files if file}


# ------------------------------------------------------------------------------------- registering


def references(table: Mapping[str, Any]) -> dict[str, str]:
    """The references in a written configuration, by the address that holds each."""
    written = {address: _value_at(table, address) for address in (*_SLOTS, "dataset")}
    written |= _scripts(table)
    return {
        address: name
        for address, name in written.items()
        if isinstance(name, str) and is_reference(name)
    }


def _scripts(table: Mapping[str, Any]) -> dict[str, Any]:
    """The losses of agents, and the strategies of scripted ones and of scripts that others meet."""
    agents = table.get("agents")
    named = agents if isinstance(agents, Mapping) else {}
    written = {name: agent for name, agent in named.items() if isinstance(agent, Mapping)}
    shared = written.get(DEFAULT_AGENT, {})
    whole = {name: {**shared, **agent} for name, agent in written.items()}
    followed = {
        f"agents.{name}.{_STRATEGY}": agent.get(_STRATEGY)
        for name, agent in whole.items()
        if agent.get("model_provider") == "scripted"
    }
    losses = {f"agents.{name}.loss": agent.get("loss") for name, agent in whole.items()}
    met = {
        f"agents.{name}.opponent_scripts.{index}": script
        for name, agent in whole.items()
        if isinstance(scripts := agent.get("opponent_scripts"), list | tuple)
        for index, script in enumerate(scripts)
    }
    return followed | losses | met


def _value_at(table: Mapping[str, Any], address: str) -> Any:
    value: Any = table
    for part in address.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def register(
    table: Mapping[str, Any], *, trust: bool = False, recorded: Sources = ()
) -> Result[None, Problem]:
    """Make the values that a configuration refers to known, such as its protocol and its losses.

    They take the place of what was registered under the same references before.  A data set has no
    registry: see `load_dataset`.

    Args:
        table: The configuration.
        trust: Run code that the user has not named before, too.
        recorded: The sources that a run with this configuration was recorded with.
    """
    then = dict(recorded)
    # Agents may share a loss or a strategy: it is loaded and checked once.
    addresses: dict[tuple[str, str], str] = {}
    for address, reference in references(table).items():
        if address != "dataset":
            addresses.setdefault((_slot(address).expected, reference), address)
    return collect(
        load_extension(reference, trust=trust, recorded=then.get(reference))
        .bind(partial(_register, address))
        .alt(partial(Problem.at, address=address))
        for (_, reference), address in addresses.items()
    ).map(lambda _: None)


def known(table: Mapping[str, Any]) -> Result[None, Problem]:
    """Success if the protocol, trainer, selector and backup of a recorded run are known here.

    A program may have registered them under names that only it knows.
    """
    for address, slot in _SLOTS.items():
        name = _value_at(table, address)
        if name is not None and name not in slot.registry:
            return Failure(
                Problem(
                    f"{name!r} was registered by the program that started the run",
                    address,
                    "import what registers it, then nip_fn_adapters.load_run(FOLDER); a run that "
                    "names it as package.module:NAME or file.py:NAME is read by every command",
                )
            )
    return Success(None)


class _Slot(NamedTuple):
    """A parameter that may name a value of a user's own.

    registry: the values that it may have, by name.
    expected: the sort of these values, for messages.
    record: a type of values that are no functions.
    entry: what is registered for a value.
    """

    registry: dict[str, Any]
    expected: str
    record: type | tuple[()] = ()
    entry: Callable[[Any], Any] = lambda value: value


_SLOTS = {
    "interaction_protocol": _Slot(
        PROTOCOLS,
        "a Protocol, or a function HyperParameters -> Protocol",
        Protocol,
        lambda value: (lambda params: value) if isinstance(value, Protocol) else value,
    ),
    "trainer": _Slot(
        TRAINERS,
        "a Trainer, or a function HyperParameters -> Trainer",
        Trainer,
        lambda value: (lambda params: value) if isinstance(value, Trainer) else value,
    ),
    "malt.pair_selection_method": _Slot(
        SELECTORS,
        "a selector, such as chain(rule, *filters)",
        entry=lambda value: lambda malt: value,
    ),
    "malt.value_backup": _Slot(BACKUPS, "a backup, such as discounted(0.9)"),
    "dataset_options.checker": _Slot(
        CHECKERS, "a checker, a function of a datapoint and an answer"
    ),
}
_LOSSES = _Slot(LOSSES, "a loss, a function of nip_fn.training.Scores")
_STRATEGY = "model_name"  # of a scripted agent
_STRATEGIES = _Slot(STRATEGIES, "a strategy, a function that writes a reply")


def _slot(address: str) -> _Slot:
    """The slot of a parameter; those that are none of `_SLOTS` are an agent's."""
    return _SLOTS.get(address) or (_LOSSES if address.endswith(".loss") else _STRATEGIES)


def _register(address: str, extension: Extension) -> Result[None, Problem]:
    slot, value = _slot(address), extension.value
    if not (isinstance(value, slot.record) or callable(value)):
        return _wrong_type(extension, value, slot.expected)
    entry = slot.entry(value)
    if slot.record is Protocol:
        # Called once here: a function that raises should do so before a run begins.
        plain = HyperParameters(interaction_protocol=extension.reference)
        made = _called(extension.reference, lambda: entry(plain))
        if not isinstance(made.value_or(None), Protocol):
            return made.bind(lambda value: _wrong_type(extension, value, slot.expected))
    slot.registry[extension.reference] = entry
    if slot is _LOSSES:
        # Checked here: in the training, the replies would be paid for already.
        return _checked(extension)
    return Success(None)


def _checked(extension: Extension) -> Result[None, Problem]:
    """Success if a loss obeys the laws; the first that it breaks otherwise."""
    try:
        check_loss(extension.value)
    except LossError as error:
        first = one_line(str(error).splitlines()[0])
        remedy = "correct it; nip_fn.testing.check_loss tests it"
        return Failure(Problem(first, extension.reference, remedy))
    except Exception as error:  # whatever a user's own code raises
        return Failure(_broken(extension.reference, error))
    return Success(None)


def load_loss(loss: Loss) -> Result[None, Problem]:
    """Make a loss of the user's own known to this process; a built-in one is known."""
    if not isinstance(loss, OwnLoss) or loss.function in LOSSES:
        return Success(None)
    return load_extension(loss.function).bind(partial(_register, "agents.AGENT.loss"))


def _called(reference: str, make: Callable[[], Any]) -> Result[Any, Problem]:
    """The value that a user's own function returns, or the problem that it raises."""
    try:
        return Success(make())
    except Exception as error:  # whatever a user's own code raises
        return Failure(_broken(reference, error))


def _wrong_type(extension: Extension, value: object, expected: str) -> Result[Any, Problem]:
    problem = f"it is a value of type {type(value).__name__}, not {expected}"
    return Failure(Problem(problem, extension.reference, "name another value"))


# --------------------------------------------------------------------------------------- data sets


def load_dataset(reference: str, options: DatasetParameters) -> Result[Dataset, Problem]:
    """The data set that a reference names.

    Args:
        reference: Names a `Dataset`, an iterable of `Datapoint`s, or a function of no arguments
            that returns one or the other.
        options: The shares of the splits, for datapoints that are not split yet.

    Returns:
        The data set under the name of its reference.  Datapoints of one problem, or of equally
        worded ones, are all in one split.
    """

    def made(extension: Extension) -> Result[Dataset, Problem]:
        def content() -> Any:
            value = extension.value() if callable(extension.value) else extension.value
            return value if isinstance(value, Dataset) else tuple(value)

        return _called(reference, content).bind(partial(_as_dataset, extension, options))

    return (
        load_extension(reference)
        .bind(made)
        .map(lambda dataset: replace(dataset, name=reference))
        .alt(lambda problem: problem.at("dataset"))
    )


def _as_dataset(
    extension: Extension, options: DatasetParameters, content: Any
) -> Result[Dataset, Problem]:
    if isinstance(content, Dataset):
        return Success(content)
    strange = [point for point in content if not isinstance(point, Datapoint)]
    if strange:
        return _wrong_type(extension, strange[0], "a Datapoint (see make_datapoint)")
    keys = [
        LeakKeys((point.problem_id, text_hash(f"{point.question}{point.views or ''}")))
        for point in content
    ]
    placed = splits(keys, Shares(options.validation_share, options.test_share))

    def split(name: Split) -> tuple[Datapoint, ...]:
        return tuple(
            point for point, assigned in zip(content, placed, strict=True) if assigned == name
        )

    return Success(Dataset(extension.reference, split("train"), split("validation"), split("test")))


# ----------------------------------------------------------------------------------------- sources


def sources(table: Mapping[str, Any]) -> Result[Sources, Problem]:
    """The sources of everything that a written configuration refers to."""
    names = sorted(set(references(table).values()))
    return collect(map(source_hash, names)).map(
        lambda hashes: tuple(zip(names, hashes, strict=True))
    )


def _changed(then: str, now: str) -> str:
    return f"its source has changed since the run was started (recorded {then}, now {now})"


def changed_sources(recorded: Sources) -> tuple[Problem, ...]:
    """A problem for each recorded source that has changed since.

    A source that is missing is none of them: whoever needs it fails to load it.
    """
    return tuple(
        Problem(
            _changed(then, now),
            reference,
            "restore the source, or start a new run",
        )
        for reference, then in recorded
        for now in [source_hash(reference).value_or(then)]
        if now != then
    )
