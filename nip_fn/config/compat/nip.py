"""Configurations that the *nip* library saved, read as configurations of this program.

`nip_rules.py` has a rule for each of the library's parameters.
"""

from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any

from returns.result import Failure, Result, Success

from nip_fn.config.codec import from_dict, load_agent, merge, nest
from nip_fn.config.compat.nip_rules import RULES, SECTIONS, Rule
from nip_fn.config.compat.tags import Path
from nip_fn.config.schema import did_you_mean
from nip_fn.errors import Problem
from nip_fn.protocols.registry import protocol_of

_MARKS = ("scenario", "_package_version", "_package_name")  # keys of no configuration of ours
_REQUIRED = ("scenario", "trainer", "dataset")
_DEFAULT_FRAMES = 1000  # the library's rl.frames_per_batch


def is_nip_config(table: Mapping[str, Any]) -> bool:
    """True if the table is a configuration of the *nip* library, not of this program."""
    return any(mark in table for mark in _MARKS)


def from_nip_config(
    table: Mapping[str, Any], *, ignore_extra_keys: bool = False
) -> Result[dict[str, Any], Problem]:
    """The table for `from_dict` that means the same as a configuration of the *nip* library.

    A parameter that cannot be honoured is a problem.  So is a key that is no parameter of the
    library, unless `ignore_extra_keys` leaves it out.
    """
    leaves = tuple(_leaves(table))
    problem = next(_problems(table, leaves, ignore_extra_keys), None)
    if problem:
        return Failure(problem)
    ours: dict[str, Any] = reduce(merge, map(_written, leaves), {})
    return _rollouts(table.get("rl") or {}, ours).map(
        lambda rollouts: merge(ours, {"rl": {"rollouts_per_iteration": rollouts}})
    )


def load_from_wandb_config(
    own: Mapping[str, Any], saved: Mapping[str, Any]
) -> Result[dict[str, Any], Problem]:
    """The table of an agent that is loaded from a run of the library.

    Args:
        own: The agent's own table; its fields in `config.codec.LOAD_PRESERVED` are kept.
        saved: The agent's table in the run, `config["agents"][name]`; all else comes from it.
    """
    any_run = {"scenario": "code_validation", "trainer": "pure_text_malt"}
    whole = {**any_run, "dataset": "codeparrot/apps", "agents": {"agent": saved}}
    return from_nip_config(whole).map(lambda ours: load_agent(own, ours["agents"]["agent"]))


_Leaf = tuple[Path, Any]


def _leaves(table: Mapping[str, Any], path: Path = ()) -> Iterator[_Leaf]:
    """Every field of the library with its path; a section that is None holds no fields."""
    for name, value in table.items():
        here = (*path, name)
        if _pattern(here) not in SECTIONS:
            yield here, value
        elif isinstance(value, Mapping):
            yield from _leaves(value, here)
        elif value is not None:
            yield here, value


def _pattern(path: Path) -> str:
    """The address of the rule for a path: all agents have the same rules."""
    address = ".".join(map(str, path))
    if len(path) > 1 and path[0] == "agents" and address not in RULES:
        return ".".join(map(str, ("agents", "*", *path[2:])))
    return address


def _problems(
    table: Mapping[str, Any], leaves: tuple[_Leaf, ...], ignore: bool
) -> Iterator[Problem]:
    """A problem for each parameter that is missing, unknown or cannot be honoured."""
    for name in _REQUIRED:
        if name not in table:
            yield Problem("missing", name, "add it: every configuration of the nip library has it")
    addresses: dict[str, str] = {}  # of theirs, by ours
    for path, value in leaves:
        address, rule = ".".join(map(str, path)), RULES.get(_pattern(path))
        if _pattern(path) in SECTIONS:
            yield Problem(f"expected a table, got {value!r}", address)
        elif rule is None:
            if not ignore:
                yield Problem("the nip library has no such parameter", address, _near(path))
        elif rule.only is not None and value not in rule.only:
            known = " or ".join(map(repr, rule.only))
            yield Problem(f"{value!r} is refused: {rule.why}", address, f"use {known}")
        elif rule.to and address != addresses.setdefault(_target(rule.to, path), address):
            other = addresses[_target(rule.to, path)]
            yield Problem(f"{other} is its other name, and is set too", address, "keep one")


def _near(path: Path) -> str:
    """A question for the field of the same section whose spelling is nearest; "" if none is."""
    section, _, name = _pattern(path).rpartition(".")
    known = [other.rpartition(".")[2] for other in RULES if other.rpartition(".")[0] == section]
    return did_you_mean(name, known)


def _target(to: str, path: Path) -> str:
    return to.replace("*", str(path[1])) if "*" in to else to


def _written(leaf: _Leaf) -> dict[str, Any]:
    """The table of ours that means the same as one field of theirs."""
    path, value = leaf
    rule = RULES.get(_pattern(path), Rule())
    if rule.to is None:
        return {}
    ours = next((new for old, new in rule.becomes if old == value), value)
    # Copied, so that no later merge changes the table that was given.
    return nest(_target(rule.to, path), merge(ours, {}) if isinstance(ours, Mapping) else ours)


def _rollouts(rl: Mapping[str, Any], ours: dict[str, Any]) -> Result[int | None, Problem]:
    """The datapoints of an iteration: as given, or the number of dialogues in a batch of rounds."""
    # The library counts an iteration in rounds, and every dialogue as one of the longest.
    frames = rl.get("frames_per_batch", _DEFAULT_FRAMES)
    if frames is None:
        return Success(rl.get("rollouts_per_iteration"))
    given = rl.get("steps_per_env_per_iteration")
    rounds = _max_rounds(ours) if given is None else Success(given)
    return rounds.bind(lambda steps: _divided(frames, steps))


def _max_rounds(ours: dict[str, Any]) -> Result[int, Problem]:
    """The rounds of the longest dialogue of the protocol."""
    relevant = {
        name: value
        for name, value in ours.items()
        if name.endswith("_protocol") or name in ("protocol_common", "seed")
    }
    return from_dict(relevant).map(lambda params: protocol_of(params).max_message_rounds)


def _divided(frames: Any, steps: Any) -> Result[int | None, Problem]:
    for name, value in (("frames_per_batch", frames), ("steps_per_env_per_iteration", steps)):
        if type(value) is not int or value < 1:
            expected = f"expected a whole number of at least 1, got {value!r}"
            return Failure(Problem(expected, f"rl.{name}"))
    if frames % steps:
        return Failure(
            Problem(
                f"{frames} rounds are not a whole number of dialogues of {steps} rounds",
                "rl.frames_per_batch",
                f"write {frames - frames % steps or steps}, or set it to null and set "
                "rl.rollouts_per_iteration",
            )
        )
    return Success(frames // steps)
