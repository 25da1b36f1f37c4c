"""Configurations that the *nip* library saved, read as configurations of this program.

`nip_rules.py` has a rule for each of the library's parameters.
"""

from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any

from returns.result import Failure, Result, Success

from nip_fn.config.codec import from_dict, merge, nest
from nip_fn.config.compat.nip_rules import (
    DEFAULTS,
    FRAMES,
    RANDOM_AGENT,
    RULES,
    SECTIONS,
    TEST_DATA,
    UNREAD,
    FieldRule,
)
from nip_fn.config.schema import did_you_mean
from nip_fn.errors import Problem
from nip_fn.protocols.registry import protocol_of

_MARKS = ("scenario", "_package_version", "_package_name")  # keys of no configuration of ours
_REQUIRED = ("scenario", "trainer", "dataset")
_RANDOM = {"model_provider": "scripted", "model_name": "random"}
_LIMITS = ("max_train_size", "max_test_size")
TEST_ROWS = 10


def is_nip_config(table: Mapping[str, Any]) -> bool:
    """True if the table is a configuration of the *nip* library, not of this program."""
    return any(mark in table for mark in _MARKS)


def from_nip_config(table: Mapping[str, Any]) -> Result[dict[str, Any], Problem]:
    """The table for `from_dict` that means the same as a configuration of the *nip* library.

    What it leaves out has that library's default.  A parameter that cannot be honoured is a
    problem, and so is a key that is no parameter of the library.  `nip_differences` tells what
    nip-fn will do otherwise.
    """
    leaves = tuple(_leaves(table))
    problem = next(_problems(table, leaves), None)
    if problem:
        return Failure(problem)
    ours: dict[str, Any] = reduce(merge, map(_written, leaves), DEFAULTS)
    ours = merge(ours, {"agents": dict.fromkeys(_random_agents(table), _RANDOM)})
    if table["dataset"] == TEST_DATA:
        limits = ours.get("dataset_options", {})
        few = {name: TEST_ROWS for name in _LIMITS if limits.get(name) is None}
        ours = merge(ours, {"dataset_options": few})
    if _base_run(table) == "rerun_tests":
        ours = merge(ours, {"rl": {"num_iterations": 0}, "text_rl": {"test_scheme": "all"}})
    return _rollouts(table.get("rl") or {}, ours).map(
        lambda rollouts: merge(ours, {"rl": {"rollouts_per_iteration": rollouts}})
    )


def nip_differences(table: Mapping[str, Any]) -> Iterator[Problem]:
    """A line for each thing that nip-fn does otherwise with a configuration that it can convert."""
    rl, text_rl = table.get("rl") or {}, table.get("text_rl") or {}
    sections = {"rl": rl, "text_rl": text_rl}
    omitted = [
        f"{section}.{name} = {value}"
        for section, fields in DEFAULTS.items()
        for name, value in fields.items()
        if name not in sections[section]
    ]
    if omitted:
        yield Problem(f"left out, and so as that library has it: {', '.join(omitted)}")
    num = rl.get("num_iterations", DEFAULTS["rl"]["num_iterations"])
    if _base_run(table) == "rerun_tests":
        yield Problem(
            "the models of each iteration are at Weights & Biases; the agents are tested as they "
            "are configured, and nothing is trained",
            "base_run.base_run_type",
            "test the iterations of a run of nip-fn with nip-fn retest RUN",
        )
    else:
        yield Problem(
            f"{num} iterations train {num} times; there the last one trains nothing",
            "rl.num_iterations",
        )
    if _base_run(table) == "parameters":
        difference = "the parameters are those of this file; none are fetched from Weights & Biases"
        yield Problem(difference, "base_run.base_run_type")
    if table["dataset"] == TEST_DATA:
        difference = (
            "its ten rows are placeholders; ten datapoints of builtin:python take their place"
        )
        yield Problem(difference, "dataset")
    yield from _frames_differences(rl, table)
    yield from _agent_differences(table)
    if table["trainer"] == "pure_text_malt":
        yield Problem(
            "an expected reward is the mean over children; there it is over leaves",
            "malt.value_backup",
            "write --set malt.value_backup=leaves for that",
        )
    if table.get("interaction_protocol") in ("debate", "merlin_arthur"):
        difference = "provers are paid for the verdict that they argue for; there for the other one"
        yield Problem(difference, "interaction_protocol")
    yield Problem("the wording is nip-fn's own", "code_validation.system_prompt_version")


def _agent_differences(table: Mapping[str, Any]) -> Iterator[Problem]:
    agents = _agents(table)
    for name in _random_agents(table):
        yield Problem("a script gives random replies", f"agents.{name}.is_random")
    for name, fields in agents.items():
        if unread := [*_unread(fields)]:
            difference = "left out, since language models have nothing of the kind: "
            yield Problem(difference + ", ".join(unread), f"agents.{name}")
        schedule = fields.get("update_schedule") or {}
        if schedule.get("_type", "ConstantUpdateSchedule") != "ConstantUpdateSchedule":
            difference = "is followed; that library's text trainers train in every iteration"
            yield Problem(difference, f"agents.{name}.update_schedule")
    trained = [fields for fields in agents.values() if not fields.get("freeze_agent")]
    if any(fields.get("model_provider", "OpenAI") == "OpenAI" for fields in trained):
        yield Problem(
            "epochs and batch size are sent to OpenAI; there they are left to it",
            "agents.*.num_epochs, agents.*.per_device_train_batch_size",
        )


def _unread(fields: Mapping[str, Any]) -> Iterator[str]:
    """The fields of an agent that say something which applies to other networks only."""
    for field, neutral in UNREAD.items():
        if fields.get(field, neutral) != neutral:
            yield field
    if _actor(fields.get("body_lr_factor")) != 1.0:
        yield "body_lr_factor"
    if any(_other_factors(fields.get(name)) for name in ("agent_lr_factor", "body_lr_factor")):
        yield "agent_lr_factor.critic"


def _frames_differences(rl: Mapping[str, Any], table: Mapping[str, Any]) -> Iterator[Problem]:
    frames = rl.get("frames_per_batch", FRAMES)
    converted: dict[str, Any] = from_nip_config(table).value_or({})
    dialogues = converted.get("rl", {}).get("rollouts_per_iteration")
    if frames and dialogues and frames % dialogues:
        yield Problem(
            f"{frames} rounds are no whole number of dialogues, which that library refuses; an "
            f"iteration has {dialogues}",
            "rl.frames_per_batch",
        )


def _agents(table: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The tables of agents, without what else is saved among them."""
    agents = table.get("agents") or {}
    return {name: fields for name, fields in agents.items() if isinstance(fields, Mapping)}


def _random_agents(table: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(
        name
        for name, fields in _agents(table).items()
        if fields.get("is_random") or fields.get("_type") == RANDOM_AGENT
    )


def _base_run(table: Mapping[str, Any]) -> str:
    return str((table.get("base_run") or {}).get("base_run_type", "none"))


def _actor(factors: Any) -> Any:
    """The factor for the language model, in a table that the library writes for each agent."""
    return factors.get("actor", 1.0) if isinstance(factors, Mapping) else 1.0


def _other_factors(factors: Any) -> bool:
    named = factors.items() if isinstance(factors, Mapping) else ()
    return any(value != 1.0 for name, value in named if name not in ("_type", "actor"))


KeyPath = tuple[Any, ...]  # keys that lead to a value
_Leaf = tuple[KeyPath, Any]


def _leaves(table: Mapping[str, Any], path: KeyPath = ()) -> Iterator[_Leaf]:
    """Every field of the library with its path; a section that is None holds no fields."""
    for name, value in table.items():
        inner = (*path, name)
        if _pattern(inner) not in SECTIONS:
            yield inner, value
        elif isinstance(value, Mapping):
            yield from _leaves(value, inner)
        elif value is not None:
            yield inner, value


def _pattern(path: KeyPath) -> str:
    """The address of the rule for a path: all agents have the same rules."""
    address = ".".join(map(str, path))
    if len(path) > 1 and path[0] == "agents" and address not in RULES:
        return ".".join(map(str, ("agents", "*", *path[2:])))
    return address


def _problems(table: Mapping[str, Any], leaves: tuple[_Leaf, ...]) -> Iterator[Problem]:
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
            yield Problem("the nip library has no such parameter", address, _near(path))
        elif rule.only is not None and value not in rule.only:
            accepted = " or ".join(map(repr, rule.only))
            yield Problem(f"{value!r} is refused: {rule.why}", address, f"use {accepted}")
        elif rule.to and address != addresses.setdefault(_target(rule.to, path), address):
            alias = addresses[_target(rule.to, path)]
            yield Problem(f"{alias} is its other name, and is set too", address, "keep one")


def _near(path: KeyPath) -> str:
    """A question for the field of the same section whose spelling is nearest; "" if none is."""
    section, _, name = _pattern(path).rpartition(".")
    names = [rule.rpartition(".")[2] for rule in RULES if rule.rpartition(".")[0] == section]
    return did_you_mean(name, names)


def _target(to: str, path: KeyPath) -> str:
    return to.replace("*", str(path[1])) if "*" in to else to


def _written(leaf: _Leaf) -> dict[str, Any]:
    """The table of ours that means the same as one field of theirs."""
    path, value = leaf
    rule = RULES.get(_pattern(path), FieldRule())
    if rule.to is None:
        return {}
    ours = rule.becomes.get(value, value) if isinstance(value, str) else value
    if path[-1] == "agent_lr_factor" and isinstance(value, Mapping):
        # Written for every agent.  A factor of 1 is none: OpenAI is then left its own rate.
        ours = None if _actor(value) == 1.0 else _actor(value)
    # Copied, so that no later merge changes the table that was given.
    return nest(_target(rule.to, path), merge(ours, {}) if isinstance(ours, Mapping) else ours)


def _rollouts(rl: Mapping[str, Any], ours: dict[str, Any]) -> Result[int | None, Problem]:
    """The datapoints of an iteration: as given, or the number of dialogues in a batch of rounds."""
    # The library counts an iteration in rounds, and every dialogue as one of the longest.
    frames = rl.get("frames_per_batch", FRAMES)
    if frames is None:
        return Success(rl.get("rollouts_per_iteration"))
    steps = rl.get("steps_per_env_per_iteration")
    rounds = _max_rounds(ours) if steps is None else Success(steps)
    return rounds.bind(lambda rounds_of_dialogue: _divided(frames, rounds_of_dialogue))


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
    return Success(max(1, frames // steps))
