"""Configurations that only test, and the facts of a test."""

import re
from collections.abc import Collection
from itertools import chain
from typing import Any

from nip_fn.config.codec import merge
from nip_fn.game.datapoint import SPLITS
from nip_fn.game.protocol import Role
from nip_fn.metrics.comparison import compare
from nip_fn.metrics.evaluation import accuracy, always_fails
from nip_fn.metrics.inference import Difference, Estimate
from nip_fn.metrics.oversight import balanced_accuracy, majority_class_share
from nip_fn.params.run import DEFAULT_AGENT
from nip_fn_adapters.experiments.casting import is_protocol, parts, players, recast
from nip_fn_adapters.experiments.cells import Tested
from nip_fn_cli.shown.table import waste_warnings


def evaluation_table(
    table: dict[str, Any],
    *,
    split: str | None = None,
    limit: int | None = None,
    shuffle: int | None = None,
    repeats: int | None = None,
    temperature: float | None = None,
) -> dict[str, Any]:
    """A configuration, also one that was written for a training, of a run that only tests.

    Args:
        table: The configuration.
        split: The rows to test on: "all", or a split; None for those of the configuration, or for
            all rows of data that come in no splits.
        limit: The most datapoints; None for all.
        shuffle: The seed of the draw of these; None for that of the configuration.
        repeats: The games about each datapoint, likewise.
        temperature: Of all models, likewise.
    """
    # Trees cost more replies, and an evaluation counts dialogues.
    tests: dict[str, Any] = {"test_scheme": "all", "test_trees": False}
    fixed: dict[str, Any] = {"rl": {"num_iterations": 0}, "text_rl": tests, "dataset_options": {}}
    options = fixed["dataset_options"]
    if temperature is not None:
        tests["test_temperature"] = temperature
    if repeats is not None:
        fixed["rl"]["num_test_iterations"] = repeats
    split = split or _usual_split(table)
    if split is not None:
        options["only_split"] = split
        fixed["test_dataset_split"] = split if split in SPLITS else "test"
    if limit is not None:
        options["max_test_size"] = limit
    elif not str(table.get("dataset", "builtin:")).startswith("builtin:"):
        # The embedded settings limit tests; of one's own rows every one counts.
        options["max_test_size"] = table.get("dataset_options", {}).get("max_test_size")
    if shuffle is not None:
        options["reduce_shuffle_seed"] = shuffle
    return merge(table, fixed)


def _usual_split(table: dict[str, Any]) -> str | None:
    """The rows to test on if no option says; None for the held-out ones of a training."""
    agents = table.get("agents", {}).values()
    # What a run has trained on tests nobody who comes from it.
    trained = any(agent.get("load_checkpoint_and_parameters") for agent in agents)
    written = "test_dataset_split" in table or "only_split" in table.get("dataset_options", {})
    return None if trained or written else "auto"


def of_protocol(
    table: dict[str, Any],
    protocol: str,
    *,
    verifier_model: str | None = None,
    prover_model: str | None = None,
    tested: Collection[str] = (),
) -> dict[str, Any]:
    """The configuration with another protocol, played by those of its agents that fit.

    An agent that no protocol has stays there, and is refused where it is read.

    Args:
        table: The configuration.
        protocol: The protocol.
        verifier_model: The model of verifiers; None for that of the configuration.
        prover_model: The model of provers, likewise.
        tested: All protocols that are tested.
    """
    configured = table.get("interaction_protocol")
    agents = table.get("agents", {})
    if is_protocol(protocol):
        protocols = {configured or "nip", protocol, *tested}
        names = {DEFAULT_AGENT, *chain(*map(players, filter(is_protocol, protocols)))}
        unknown = set(agents) - names if all(map(is_protocol, protocols)) else set()
        # Of the configured protocol an agent without parameters has those of all agents.
        playing = {n: agents[n] for n in agents if n in (DEFAULT_AGENT, *players(protocol))}
        cast = playing if protocol == configured else recast(agents, protocol)
        agents = {**cast, **{name: agents[name] for name in agents if name in unknown}}
        models: dict[Role, str | None] = {
            "verifier": verifier_model,
            "prover": prover_model,
        }
        for role, model in models.items():
            named = {name: {"model_name": model} for name in parts(protocol, role) if model}
            agents = merge(agents, named)
    return {**table, "interaction_protocol": protocol, "agents": agents}


def folder_of(*words: str) -> str:
    """The name of a run, made of some words without the signs that no path may have."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", "-".join(words)).strip("-.")


def facts(tested: Tested, baseline: Tested | None) -> dict[str, Any]:
    """The facts of a test, for JSON; its gain is over that of a baseline on the same datapoints."""
    metrics, judged = dict(tested.metrics), tested.judged
    verdicts = judged.verdicts
    return {
        "datapoints": len(verdicts.right),
        "games": verdicts.games,
        "accuracy": accuracy(verdicts)._asdict(),
        "balanced_accuracy": _fields(balanced_accuracy(judged)),
        "majority_class_share": majority_class_share(judged),
        "always_fails": _fields(always_fails(verdicts)),
        "gain": _fields(
            compare([baseline.judged.verdicts], [verdicts], "datapoint").difference
            if baseline
            else None
        ),
        **{name: metrics.get(name) for name in ("accuracy_0", "accuracy_1", "no_decision_rate")},
        "tokens": metrics["tokens"],
        "prompt_tokens": metrics["prompt_tokens"],
        "dollars": tested.dollars,
        "warnings": waste_warnings(tested.replayed.state),
    }


def _fields(estimate: Estimate | Difference | None) -> dict[str, float] | None:
    return None if estimate is None else estimate._asdict()
