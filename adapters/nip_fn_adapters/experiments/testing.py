"""Settings of runs that only test, and the measures of a test."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypedDict

from nip_fn.config.codec import merge
from nip_fn.config.presets import with_preset
from nip_fn.game.datapoint import SPLITS
from nip_fn.game.protocol import Role, has_answers
from nip_fn.metrics.card import BASELINES
from nip_fn.metrics.comparison import compare
from nip_fn.metrics.evaluation import accuracy, always_fails
from nip_fn.metrics.inference import Difference, Estimate
from nip_fn.metrics.oversight import balanced_accuracy, expected_accuracy, majority_class_share
from nip_fn.metrics.waste import Waste, alarming_waste
from nip_fn.params.run import DEFAULT_AGENT, HyperParameters
from nip_fn.protocols.answers import writer_of
from nip_fn.protocols.registry import PROTOCOLS
from nip_fn.run.state import RunState
from nip_fn_adapters import extensions
from nip_fn_adapters.experiments.casting import is_protocol, parts, players, recast
from nip_fn_adapters.experiments.cells import Tested
from nip_fn_adapters.experiments.settings import named
from nip_fn_adapters.recording.runs import Run


class EvaluationOptions(TypedDict, total=False):
    """The datapoints and the games of a test; what is left out or None is as in the settings.

    split: The rows to test on: "all", or a split of the data.  None: those of the settings, or all
        rows of data that come in no splits.
    limit: The most datapoints; None: all.
    shuffle: The seed of the draw of these.
    repeats: The number of games about each datapoint.
    temperature: The temperature of all models.
    """

    split: str | None
    limit: int | None
    shuffle: int | None
    repeats: int | None
    temperature: float | None


def settings_for_testing(table: dict[str, Any], options: EvaluationOptions) -> dict[str, Any]:
    """Written settings, also those of a training, as those of a run that only tests."""
    # Trees cost more replies, and an evaluation counts dialogues.
    tests: dict[str, Any] = {"test_scheme": "all", "test_trees": False}
    fixed: dict[str, Any] = {"rl": {"num_iterations": 0}, "text_rl": tests, "dataset_options": {}}
    data = fixed["dataset_options"]
    if (temperature := options.get("temperature")) is not None:
        tests["test_temperature"] = temperature
    if (repeats := options.get("repeats")) is not None:
        fixed["rl"]["num_test_iterations"] = repeats
    if (split := options.get("split") or _usual_split(table)) is not None:
        data["only_split"] = split
        fixed["test_dataset_split"] = split if split in SPLITS else "test"
    if (limit := options.get("limit")) is not None:
        data["max_test_size"] = limit
    elif not str(table.get("dataset", "builtin:")).startswith("builtin:"):
        # The embedded settings limit tests; of one's own rows every one counts.
        data["max_test_size"] = table.get("dataset_options", {}).get("max_test_size")
    if (shuffle := options.get("shuffle")) is not None:
        data["reduce_shuffle_seed"] = shuffle
    return merge(table, fixed)


def _usual_split(table: dict[str, Any]) -> str | None:
    """The rows to test on if no option says; None for the held-out ones of a training."""
    agents = table.get("agents", {}).values()
    # Rows that a run has trained on do not test agents that come from it.
    trained = any(agent.get("load_checkpoint_and_parameters") for agent in agents)
    written = "test_dataset_split" in table or "only_split" in table.get("dataset_options", {})
    return None if trained or written else "auto"


def protocols_to_test(
    protocols: Sequence[str], usual: Sequence[str], models: Sequence[str | None]
) -> tuple[str, ...]:
    """The protocols that a call names, or else the usual ones, made known if they are code.

    What the call names, its models as well, is trusted; a usual protocol may be a recorded one.
    """
    named({"interaction_protocol": tuple(protocols), "model_name": tuple(models)})
    tested = tuple(dict.fromkeys(protocols or usual))
    for protocol in tested:
        extensions.register({"interaction_protocol": protocol}).unwrap()
    return tested


def playable(table: Mapping[str, Any]) -> tuple[str, ...]:
    """The registered protocols about solutions that are given, or else about written answers."""
    made = {name: make(HyperParameters()) for name, make in PROTOCOLS.items()}
    if not _is_written(table):
        return tuple(name for name, protocol in made.items() if not has_answers(protocol))
    return tuple(
        name
        for name, protocol in made.items()
        if has_answers(protocol) or writer_of(protocol) is not None
    )


def _is_written(table: Mapping[str, Any]) -> bool:
    return bool(with_preset(table).get("protocol_common", {}).get("answers") == "written")


def verifier_alone(table: Mapping[str, Any], protocols: Iterable[str]) -> str:
    """The protocol in which the verifier hears no argument, about answers as in these protocols."""
    known = (PROTOCOLS[protocol] for protocol in protocols if protocol in PROTOCOLS)
    is_written = _is_written(table) or any(has_answers(make(HyperParameters())) for make in known)
    given, written = BASELINES
    return written if is_written else given


def with_protocol(
    table: dict[str, Any],
    protocol: str,
    *,
    verifier_model: str | None = None,
    prover_model: str | None = None,
    tested: Collection[str] = (),
) -> dict[str, Any]:
    """The settings with another protocol, played by those of its agents that fit.

    An agent that no protocol has stays there, and is refused where it is read.

    Args:
        table: The settings.
        protocol: The protocol.
        verifier_model: The model of verifiers; None for that of the settings.
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
            model_names = {name: {"model_name": model} for name in parts(protocol, role) if model}
            agents = merge(agents, model_names)
    return {**table, "interaction_protocol": protocol, "agents": agents}


def folder_name(*words: str) -> str:
    """The name of a run, made of some words without the signs that no path may have."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", "-".join(words)).strip("-.")


class Measurement(NamedTuple):
    """The measures of a test; None where one is undefined.

    datapoints: The number of datapoints.
    games: The number of games about each of them.
    accuracy: The share of games with a right verdict.
    expected_accuracy: The same in expectation over the verdicts that were drawn; None unless each
        has a recorded probability.
    balanced_accuracy: The mean of the accuracies on right and on buggy datapoints.
    majority_class_share: The share of the label that most datapoints have.
    always_fails: The share of datapoints on which no game ends with a right verdict.
    gain: The accuracy less that of a baseline on the same datapoints; None without a baseline.
    accuracy_0: The accuracy on buggy datapoints.
    accuracy_1: The accuracy on right datapoints.
    no_decision_rate: The share of games without a verdict.
    tokens: The tokens of all replies.
    prompt_tokens: The tokens of all prompts.
    dollars: The cost; None if a price is unknown.
    warnings: A line for each kind of replies and games of which more than a tenth were wasted.
    run: The run in which the test is recorded.
    """

    datapoints: int
    games: int
    accuracy: Estimate
    expected_accuracy: Estimate | None
    balanced_accuracy: Estimate | None
    majority_class_share: float
    always_fails: Estimate | None
    gain: Difference | None
    accuracy_0: float | None
    accuracy_1: float | None
    no_decision_rate: float | None
    tokens: float
    prompt_tokens: float
    dollars: float | None
    warnings: tuple[str, ...]
    run: Run


def measure(tested: Tested, baseline: Tested | None) -> Measurement:
    """The measures of a test; its gain is over a baseline on the same datapoints."""
    metrics, judged = dict(tested.metrics), tested.judged
    verdicts = judged.verdicts
    gain = baseline and compare([baseline.judged.verdicts], [verdicts], "datapoint").difference
    return Measurement(
        datapoints=len(verdicts.right),
        games=verdicts.games,
        accuracy=accuracy(verdicts),
        expected_accuracy=expected_accuracy(judged),
        balanced_accuracy=balanced_accuracy(judged),
        majority_class_share=majority_class_share(judged),
        always_fails=always_fails(verdicts),
        gain=gain,
        accuracy_0=metrics.get("accuracy_0"),
        accuracy_1=metrics.get("accuracy_1"),
        no_decision_rate=metrics.get("no_decision_rate"),
        tokens=metrics["tokens"],
        prompt_tokens=metrics["prompt_tokens"],
        dollars=tested.dollars,
        warnings=waste_warnings(tested.run.state),
        run=tested.run,
    )


def waste_warnings(state: RunState) -> tuple[str, ...]:
    """A line for each kind of replies and games of which more than a tenth were wasted.

    Each tells of the iteration in which the share was greatest.
    """
    worst: dict[tuple[str, str, str], tuple[int, Waste]] = {}
    for row in state.rows:
        for waste in alarming_waste(dict(row.metrics), state.params.agents):
            source = (row.stage, waste.kind, waste.agent.name if waste.agent else "")
            if source not in worst or waste.share > worst[source][1].share:
                worst[source] = row.iteration, waste
    return tuple(
        f"iteration {iteration}, {stage}: {waste}"
        for (stage, *_), (iteration, waste) in worst.items()
    )
