"""Settings as they are written, in files or as tables, and the parameters that they stand for."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec.structs import replace
from returns.functions import tap
from returns.result import Failure, Result, Success

from nip_fn.config.codec import (
    check_types,
    default_table,
    from_dict,
    merge,
    shape_problems,
    to_dict,
)
from nip_fn.config.compat.nip import from_nip_config, is_nip_config, nip_differences
from nip_fn.config.compat.nip_experiment import (
    experiment_config,
    experiment_differences,
    is_nip_experiment,
)
from nip_fn.config.spelling import DUMMY, as_recorded, provider_of
from nip_fn.errors import Problem
from nip_fn.params.agent import AgentParameters, provider
from nip_fn.params.run import DEFAULT_AGENT, HyperParameters
from nip_fn_adapters import extensions
from nip_fn_adapters.experiments.outcomes import refuse
from nip_fn_adapters.experiments.watching import NOBODY, Watch
from nip_fn_adapters.trust import remember, servers_in

Settings = HyperParameters | Mapping[str, Any] | Path | str


def as_written(settings: Settings | None, watch: Watch = NOBODY) -> dict[str, Any]:
    """The table that settings stand for, as it may be written in a file; refuses a malformed one.

    A table and a file are the user's own: the code and the servers that they name are trusted from
    now on.  Not those of a record, which may be that of somebody else's run.
    """
    match settings:
        case None:
            return {}
        case HyperParameters():
            return to_dict(settings)
        case str() | Path():
            table = read_table(Path(settings), watch).unwrap()
        case _:
            table = dict(settings)
            named(table)
    for problem in shape_problems(table.get("agents", {})):
        refuse(problem)
    return as_recorded(table)


def named(table: Mapping[str, Any]) -> None:
    """Remember the code and the servers that the user has written into a table (see `trust`)."""
    extensions.remember_sources(table)
    remember(servers_in(table))


def read_table(path: Path, watch: Watch = NOBODY) -> Result[dict[str, Any], Problem]:
    """The table in a file, which may be a configuration or an experiment of the nip library.

    A parameter that such a configuration leaves out has its default in that library, and not its
    value in the embedded settings; whatever else is otherwise here is told.
    """
    return (
        parsed(path)
        .bind(lambda table: _translated(table, path, watch))
        .bind(lambda table: check_types(table).map(lambda _: table))
        .alt(lambda problem: problem.at(str(path)))
    )


def parsed(path: Path) -> Result[dict[str, Any], Problem]:
    """The table in a TOML, JSON, JSON5 or YAML file."""
    if path.suffix in _READERS:
        return _text(path).bind(_READERS[path.suffix]).map(tap(named))
    remedy = "use one in .toml, .json, .json5 or .yaml"
    return Failure(Problem("the kind of file is unknown", remedy=remedy))


def _text(path: Path) -> Result[str, Problem]:
    try:
        return Success(path.read_text("utf-8"))
    except UnicodeDecodeError as error:
        return Failure(Problem(f"not UTF-8 text: {error}", remedy="save it as UTF-8"))
    except OSError as error:
        return Failure(Problem(error.strerror or str(error)))


# RecursionError: both parsers give up on a few thousand open brackets.
def _toml(text: str) -> Result[dict[str, Any], Problem]:
    try:
        return Success(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        return Failure(Problem(f"not valid TOML: {error}"))


def _json(text: str) -> Result[dict[str, Any], Problem]:
    try:
        return _object(msgspec.json.decode(text))
    except (msgspec.DecodeError, RecursionError) as error:
        return Failure(Problem(f"not valid JSON: {error}"))


def _json5(text: str) -> Result[dict[str, Any], Problem]:
    import json5  # takes 50 ms, and few files are in it

    try:
        return _object(json5.loads(text))
    except (ValueError, RecursionError) as error:
        return Failure(Problem(f"not valid JSON5: {error}"))


def _object(table: Any) -> Result[dict[str, Any], Problem]:
    if not isinstance(table, dict):
        return Failure(Problem("expected an object of parameters", remedy='as in {"seed": 1}'))
    return Success(table)


class _Yaml(yaml.SafeLoader):  # type: ignore[misc]
    """YAML 1.2 as far as numbers go: in 1.1, which the parser reads, 1e-6 is a word."""


_Yaml.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def _yaml(text: str) -> Result[dict[str, Any], Problem]:
    try:
        table = yaml.load(text, _Yaml)
    except (yaml.YAMLError, RecursionError) as error:
        return Failure(Problem(f"not valid YAML: {' '.join(str(error).split())}"))
    if not isinstance(table, dict) or not all(isinstance(name, str) for name in table):
        return Failure(Problem("expected a table of parameters", remedy="as in seed: 1"))
    return Success(table)


_READERS = {".toml": _toml, ".json": _json, ".json5": _json5, ".yaml": _yaml, ".yml": _yaml}


def _translated(table: dict[str, Any], path: Path, watch: Watch) -> Result[dict[str, Any], Problem]:
    """The table, or its translation if it is one of the nip library's."""
    if is_nip_experiment(table):
        tell_differences(path, experiment_differences(table), watch)
        return experiment_config(table).bind(lambda config: _translated(config, path, watch))
    if not is_nip_config(table):
        return Success(table)

    def complete(ours: dict[str, Any]) -> dict[str, Any]:
        tell_differences(path, nip_differences(table), watch)
        return merge(default_table(), ours)

    return from_nip_config(table).map(complete)


def tell_differences(path: Path, lines: Iterable[Problem], watch: Watch) -> None:
    """Tell how nip-fn treats a file differently from the nip library."""
    for line in lines:
        watch.tell(f"{path}: {line}")


def with_provider(table: dict[str, Any], provider: str | None) -> dict[str, Any]:
    """The table with every agent at that provider, whatever it says of single agents.

    "dummy" is no provider but `use_dummy_api`: random replies instead of any model.  An agent
    that the table gives a script keeps it: there is no model that the provider could serve.
    """
    if provider is None:
        return table
    dummy = provider == DUMMY
    fields: dict[str, Any] = {"use_dummy_api": dummy}
    if not dummy:
        fields["model_provider"] = provider_of(provider, "`provider`").unwrap()
    # Each agent by its name: what a table says of a single agent overrides `_default`.
    agents = {DEFAULT_AGENT: {}, **table.get("agents", {})}
    names = (name for name, agent in agents.items() if agent.get("model_provider") != "scripted")
    return merge(table, {"agents": dict.fromkeys(sorted(names), fields)})


def with_base_url(params: HyperParameters, watch: Watch = NOBODY) -> HyperParameters:
    """The parameters with the server that OPENAI_BASE_URL names, as OpenAI's own client has it.

    It is recorded with a run, like any other, so that the run is resumed at the same server.
    """
    from nip_fn_adapters.providers.api.endpoints import environment, usual_base_url

    usual = usual_base_url(environment())
    if usual is None:
        return params
    variable, url = usual
    named({"api_base_url": url})
    agents = tuple(
        replace(agent, api_base_url=url) if _is_at_openai(agent) else agent
        for agent in params.agents
    )
    if agents != params.agents:
        watch.tell(f"agents of provider openai are at {url}, as {variable} says")
    return replace(params, agents=agents)


def _is_at_openai(agent: AgentParameters) -> bool:
    return provider(agent) == "openai" and agent.api_base_url is None


def resolve(table: dict[str, Any]) -> HyperParameters:
    """The parameters of a whole table; refuses one that has a problem."""
    return from_dict(table).unwrap()
