"""Configurations that the *nip* library saved, read as configurations of this program.

`reference_rules.py` says what becomes of each of its parameters.
"""

import difflib
from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any

from returns.result import Failure, Result, Success

from nip_fn.config.codec import from_dict, load_agent, merge, nest
from nip_fn.config.compat.nip_rules import RULES, SECTIONS, Rule
from nip_fn.config.tags import Path
from nip_fn.protocols.registry import protocol_of

MARKS = ("scenario", "_package_version", "_package_name")  # that only its configurations have
REQUIRED = ("scenario", "trainer", "dataset")
DEFAULT_FRAMES = 1000  # the library's rl.frames_per_batch


def is_reference(table: Mapping[str, Any]) -> bool:
    """Whether a table is a configuration of the *nip* library, not of this program."""
    return any(mark in table for mark in MARKS)


def from_reference(
    table: Mapping[str, Any], *, ignore_extra_keys: bool = False
) -> Result[dict[str, Any], str]:
    """The table that `from_dict` reads, of a configuration that the *nip* library saved.

    A failure is one line: the address of what cannot be honoured, and why.  Keys that are no
    parameters of the library are a failure, or are left out with `ignore_extra_keys`.
    """
    missing = next((name for name in REQUIRED if name not in table), None)
    if missing:
        return Failure(f"{missing}: missing; every configuration of the nip library has it")
    leaves = tuple(_leaves(table))
    problem = next(_problems(leaves, ignore_extra_keys), None)
    if problem:
        return Failure(problem)
    ours: dict[str, Any] = reduce(merge, map(_written, leaves), {})
    return _rollouts(table.get("rl") or {}, ours).map(
        lambda rollouts: merge(ours, {"rl": {"rollouts_per_iteration": rollouts}})
    )


def load_from_wandb_config(
    own: Mapping[str, Any], saved: Mapping[str, Any]
) -> Result[dict[str, Any], str]:
    """The table of an agent, loaded from what the library saved of one.

    `saved` is `config["agents"][name]` of one of its runs.  All fields are as saved, except those
    that say where the agent comes from and whether it learns (`config.LOAD_PRESERVED`).
    """
    any_run = {"scenario": "code_validation", "trainer": "pure_text_malt"}
    whole = {**any_run, "dataset": "codeparrot/apps", "agents": {"agent": saved}}
    return from_reference(whole).map(lambda ours: load_agent(own, ours["agents"]["agent"]))


Leaf = tuple[Path, Any]


def _leaves(table: Mapping[str, Any], path: Path = ()) -> Iterator[Leaf]:
    """Every field of the library with its path; a section that is `None` has its defaults."""
    for name, value in table.items():
        here = (*path, name)
        if _pattern(here) not in SECTIONS:
            yield here, value
        elif isinstance(value, Mapping):
            yield from _leaves(value, here)
        elif value is not None:
            yield here, value


def _pattern(path: Path) -> str:
    """The address under which a rule is found: agents are all alike."""
    address = ".".join(map(str, path))
    if len(path) > 1 and path[0] == "agents" and address not in RULES:
        return ".".join(map(str, ("agents", "*", *path[2:])))
    return address


def _problems(leaves: tuple[Leaf, ...], ignore: bool) -> Iterator[str]:
    """What keeps a configuration from being read."""
    targets: dict[str, str] = {}
    for path, value in leaves:
        address, rule = ".".join(map(str, path)), RULES.get(_pattern(path))
        if _pattern(path) in SECTIONS:
            yield f"{address}: expected a table, got {value!r}"
        elif rule is None:
            if not ignore:
                yield f"{address}: the nip library has no such parameter{_near(path)}"
        elif rule.only is not None and value not in rule.only:
            known = " or ".join(map(repr, rule.only))
            yield f"{address}: {value!r} is refused: {rule.why}; only {known} can be read"
        elif rule.to and address != targets.setdefault(_target(rule.to, path), address):
            other = targets[_target(rule.to, path)]
            yield f"{address}: {other} is its other name, and is set too; keep one"


def _near(path: Path) -> str:
    """A hint at the field of the same section that is spelt most alike."""
    section, _, name = _pattern(path).rpartition(".")
    known = [other.rpartition(".")[2] for other in RULES if other.rpartition(".")[0] == section]
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _target(to: str, path: Path) -> str:
    return to.replace("*", str(path[1])) if "*" in to else to


def _written(leaf: Leaf) -> dict[str, Any]:
    """The table that says here what one field says there."""
    path, value = leaf
    rule = RULES.get(_pattern(path), Rule())
    if rule.to is None:
        return {}
    said = next((ours for theirs, ours in rule.becomes if theirs == value), value)
    return nest(_target(rule.to, path), merge(said, {}) if isinstance(said, Mapping) else said)


def _rollouts(rl: Mapping[str, Any], ours: dict[str, Any]) -> Result[int | None, str]:
    """The datapoints of an iteration: given, or as many as a batch of rounds has dialogues."""
    frames = rl.get("frames_per_batch", DEFAULT_FRAMES)
    if frames is None:
        return Success(rl.get("rollouts_per_iteration"))
    given = rl.get("steps_per_env_per_iteration")
    rounds = _max_rounds(ours) if given is None else Success(given)
    return rounds.bind(lambda steps: _divided(frames, steps))


def _max_rounds(ours: dict[str, Any]) -> Result[int, str]:
    """The rounds of the longest dialogue of the protocol."""
    relevant = {
        name: value
        for name, value in ours.items()
        if name.endswith("_protocol") or name in ("protocol_common", "seed")
    }
    return from_dict(relevant).map(lambda params: protocol_of(params).max_message_rounds)


def _divided(frames: Any, steps: Any) -> Result[int | None, str]:
    for name, value in (("frames_per_batch", frames), ("steps_per_env_per_iteration", steps)):
        if type(value) is not int or value < 1:
            return Failure(f"rl.{name}: expected a whole number of at least 1, got {value!r}")
    if frames % steps:
        return Failure(
            f"rl.frames_per_batch: {frames} rounds are no whole number of dialogues of {steps} "
            f"rounds; write {frames - frames % steps or steps}, or leave it null and write "
            "rl.rollouts_per_iteration"
        )
    return Success(frames // steps)
