"""Files of experiments of the *nip* library, `kind` and `parameters`, read as studies.

The parameters are those of its script for code validation.  They become the configuration that the
library makes of them, which `nip.py` reads.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

from returns.result import Failure, Result, Success

from nip_fn.config.codec import by_address, default_table, merge, nest, together
from nip_fn.config.compat.nip import from_nip_config
from nip_fn.config.schema import did_you_mean
from nip_fn.config.study import SEED, Axis, Level, Study, checked, distinct, label_of, seeds_axis
from nip_fn.errors import Problem, collect

KINDS = ("single_experiment", "grid")
PROVERS: dict[str, tuple[str, ...]] = {
    "nip": ("prover",),
    "adp": ("prover",),
    "debate": ("prover0", "prover1"),
    "mnip": ("prover0", "prover1"),
    "merlin_arthur": ("prover0", "prover1"),
    "solo_verifier": (),
}


class _Parameter(NamedTuple):
    """A parameter of the script: its default, and the addresses that the library has for it."""

    default: object
    to: tuple[str, ...]  # those below `prover` once for each prover


def _parameters(section: str, rows: Mapping[str, tuple[object, str]]) -> dict[str, _Parameter]:
    below = f"{section}." if section else ""
    return {name: _Parameter(default, (below + to,)) for name, (default, to) in rows.items()}


_RUN: dict[str, tuple[object, str]] = {
    "trainer": ("pure_text_ei", "trainer"),
    "interaction_protocol": ("nip", "interaction_protocol"),
    "dataset_name": ("lrhammond/buggy-apps", "dataset"),
    "test_dataset_split": ("validation", "test_dataset_split"),
    "seed": (6198, "seed"),
    "num_iterations": (1, "rl.num_iterations"),
    "rollouts_per_iteration": (20, "rl.rollouts_per_iteration"),
    "learning_rate": (1e-6, "rl.lr"),
    "num_test_iterations": (1, "rl.num_test_iterations"),
    "test_scheme": ("none", "text_rl.test_scheme"),
    "fine_tune_on_all_previous_rollouts": (False, "text_rl.fine_tune_on_all_previous_rollouts"),
    "rollout_selection_method": ("threshold", "pure_text_ei.rollout_selection_method"),
    "weighting_use_replacement": (True, "pure_text_ei.weighting_use_replacement"),
    "malt_num_initial_ei_iterations": (0, "pure_text_malt.num_initial_ei_iterations"),
    "malt_pair_selection_method": ("interval", "pure_text_malt.pair_selection_method"),
    "apps_difficulty": ("interview", "code_validation.apps_difficulty"),
    "max_train_size": (None, "dataset_options.max_train_size"),
    "max_test_size": (None, "dataset_options.max_test_size"),
    "shared_reward": (False, "protocol_common.shared_reward"),
    "randomize_prover_stance": (False, "protocol_common.randomize_prover_stance"),
    "verifier_first": (True, "protocol_common.verifier_first"),
    "debate_sequential": (False, "debate_protocol.sequential"),
    "debate_prover0_first": (True, "debate_protocol.prover0_first"),
}
_AGENT: dict[str, tuple[object, str]] = {
    "system_prompt_template": (None, "system_prompt_template_path"),
    "lm_server_scheme_host": ("http://localhost", "language_model_server_scheme_host"),
    "lm_server_port": (5000, "language_model_server_port"),
    "vllm_server_port": (8000, "vllm_server_port"),
    "temperature": (None, "temperature"),
    "top_p": (None, "top_p"),
    "repetition_penalty": (None, "repetition_penalty"),
    "num_epochs": (3, "num_epochs"),
    "dpo_beta": (0.1, "dpo_beta"),
    "lora_rank": (32, "lora_rank"),
    "lora_alpha_scale": (1.0, "lora_alpha_scale"),
    "lora_dropout": (0.05, "lora_dropout"),
    "supervisor_message": ("all", "use_supervisor_message"),
    "freeze": (False, "freeze_agent"),
    "quantization": ("none", "quantization"),
}
_ROUNDS = ("nip_protocol", "debate_protocol", "mnip_protocol")
_GUESS = "text_rl.verifier_guess_replacement_"
_PENALTY = "protocol_common.prover_invalid_response_penalty"
_MODEL = _Parameter("OpenAI/gpt-4o-mini-2024-07-18", ())  # its two addresses: `_model`

PARAMETERS: dict[str, _Parameter] = {
    **_parameters("", _RUN),
    "min_message_rounds": _Parameter(1, tuple(f"{one}.min_message_rounds" for one in _ROUNDS)),
    "max_message_rounds": _Parameter(9, tuple(f"{one}.max_message_rounds" for one in _ROUNDS)),
    "fine_tune_from_scratch": _Parameter(
        False, ("verifier.fine_tune_from_scratch", "prover.fine_tune_from_scratch")
    ),
    "provers_share_model": _Parameter(True, ("prover.shared_model_group",)),
    "rerun_tests": _Parameter(None, ("base_run.run_id",)),
    "force_more_iterations": _Parameter(False, ()),  # of the session, and of no result
    **{
        f"{role}.{name}": _Parameter(default, (f"{role}.{to}",))
        for role in ("verifier", "prover")
        for name, (default, to) in _AGENT.items()
    },
    "verifier.model": _MODEL,
    "prover.model": _MODEL,
    "verifier.guess_replacement_proportion": _Parameter(0.0, (f"{_GUESS}proportion",)),
    "verifier.guess_replacement_annealing": _Parameter("linear", (f"{_GUESS}annealing",)),
    "verifier.guess_replacement_annealing_rate": _Parameter(0.1, (f"{_GUESS}annealing_rate",)),
    "verifier.decision_spectrum": _Parameter(
        "accept_reject", ("protocol_common.verifier_decision_spectrum",)
    ),
    "prover.max_words": _Parameter(150, ("prover.max_response_words",)),
    "prover.invalid_response_penalty": _Parameter(None, (_PENALTY,)),
}

# Names that its script has had before, and the parameters that they set.  With either name a value
# in a list is one value of an axis.
_NESTED = [name for name in PARAMETERS if "." in name]
ALIASES: dict[str, tuple[str, ...]] = {
    **{name.replace(".", "_", 1): (name,) for name in _NESTED},
    "freeze_verifier": ("verifier.freeze",),
    "freeze_prover": ("prover.freeze",),
    "verifier_decision_scale": ("verifier.decision_spectrum",),
    "dpo_beta": ("verifier.dpo_beta", "prover.dpo_beta"),
}


def is_nip_experiment(table: Mapping[str, Any]) -> bool:
    """True if the table is a file of an experiment of the *nip* library."""
    return set(table) == {"kind", "parameters"}


def experiment_config(table: Mapping[str, Any]) -> Result[dict[str, Any], Problem]:
    """The configuration that the library makes of a file in which nothing varies."""

    def config(values: dict[str, Any]) -> Result[dict[str, Any], Problem]:
        for address in _varying(values):
            problem = Problem("it has several values", f"parameters.{address}", "use nip-fn sweep")
            return Failure(problem)
        return _config(_first(values), _provers(values))

    return _values(table).bind(config)


def experiment_study(name: str, table: Mapping[str, Any]) -> Result[Study, Problem]:
    """The study of all combinations of the values in a file, in the file's order.

    A seed is a replicate; each other parameter with several values is an axis.
    """

    def study(values: Mapping[str, Any]) -> Result[Study, Problem]:
        first = _first(values)
        # Seeds last, as in every study: what varies most slowly begins the names of the cells.
        varying = sorted(_varying(values), key=SEED.__eq__)
        provers = _provers(values)
        axes = collect(_axis(address, values[address], first, provers) for address in varying)
        base = _config(first, provers).bind(from_nip_config)
        return base.bind(
            lambda ours: axes.bind(
                lambda varied: checked(Study(name, merge(default_table(), ours), varied))
            )
        )

    return _values(table).bind(study)


def base_config(table: Mapping[str, Any]) -> Result[dict[str, Any], Problem]:
    """The library's configuration of the first combination, for what is told of all of them."""
    return _values(table).map(_first).bind(lambda first: _config(first, _provers(first)))


def experiment_differences(table: Mapping[str, Any]) -> Iterator[Problem]:
    """A line for each thing that nip-fn does otherwise with such a file."""
    values: dict[str, Any] = _values(table).value_or({})
    if values.get("max_train_size") not in (None, [None]):
        yield Problem("is honoured; there it has no effect", "parameters.max_train_size")
    if "mnip" in _protocols(values):
        difference = "hold in mnip, too; there it has its own defaults"
        yield Problem(difference, "parameters.min_message_rounds, parameters.max_message_rounds")


def _values(table: Mapping[str, Any]) -> Result[dict[str, Any], Problem]:
    """The values in a file by the script's addresses: lists, in a grid, of those that vary."""
    file_kind, parameters = table["kind"], table["parameters"]
    if file_kind not in KINDS:
        problem = f"expected {' or '.join(map(repr, KINDS))}, got {file_kind!r}"
        return Failure(Problem(problem, "kind"))
    if not isinstance(parameters, Mapping):
        return Failure(Problem(f"expected a table, got {parameters!r}", "parameters"))
    values = by_address(parameters)
    for address, value in values.items():
        where = f"parameters.{address}"
        if address not in PARAMETERS and address not in ALIASES:
            guess = did_you_mean(address, [*PARAMETERS, *ALIASES])
            return Failure(Problem("the nip library's script has no such parameter", where, guess))
        if doubles := [name for name in ALIASES.get(address, ()) if name in values]:
            problem = f"{doubles[0]} is its other name, and is set too"
            return Failure(Problem(problem, where, "keep one"))
        if isinstance(value, list) and (file_kind != "grid" or not value):
            remedy = 'write kind: "grid"' if value else "name at least one"
            return Failure(Problem(f"expected a value, got {value!r}", where, remedy))
    return Success(values)


def _varying(values: Mapping[str, Any]) -> list[str]:
    return [address for address, value in values.items() if isinstance(value, list) and value[1:]]


def _first(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        address: value[0] if isinstance(value, list) else value for address, value in values.items()
    }


def _protocols(values: Mapping[str, Any]) -> list[Any]:
    named = values.get("interaction_protocol", PARAMETERS["interaction_protocol"].default)
    return named if isinstance(named, list) else [named]


def _provers(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The provers of all protocols in a file: a cell leaves out those that its own has not."""
    names = (PROVERS.get(protocol, ()) for protocol in _protocols(values))
    return tuple(dict.fromkeys(chain.from_iterable(names)))


def _axis(
    address: str, values: list[Any], first: Mapping[str, Any], provers: tuple[str, ...]
) -> Result[Axis, Problem]:
    """The axis of one parameter: what its values change in our configuration."""
    if address == SEED:
        return Success(seeds_axis(values))
    ours = collect(
        _config({**first, address: value}, provers).bind(from_nip_config).map(by_address)
        for value in values
    )

    def axis(tables: tuple[dict[str, Any], ...]) -> Axis:
        moved = [
            name for name in tables[0] if any(table[name] != tables[0][name] for table in tables)
        ]
        written = (
            Level(label_of(address, value), together(nest(name, table[name]) for name in moved))
            for value, table in zip(values, tables, strict=True)
        )
        return Axis(address, distinct(list(written)))

    return ours.map(axis)


def _config(chosen: Mapping[str, Any], provers: tuple[str, ...]) -> Result[dict[str, Any], Problem]:
    """The library's configuration for one combination of values."""
    named = {
        name: value for alias, value in chosen.items() for name in ALIASES.get(alias, (alias,))
    }
    values = {name: named.get(name, parameter.default) for name, parameter in PARAMETERS.items()}
    protocol = values["interaction_protocol"]
    if protocol not in PROVERS:
        remedy = f"use {', '.join(PROVERS)}"
        return Failure(
            Problem(f"{protocol!r} is refused", "parameters.interaction_protocol", remedy)
        )
    agents = {"verifier": ("verifier",), "prover": provers}
    values["provers_share_model"] = "provers_group" if values["provers_share_model"] else None
    leaves: Iterable[tuple[str, Any]] = chain.from_iterable(
        ((address, value) for address in PARAMETERS[name].to) for name, value in values.items()
    )
    tables = [
        nest(target, value) for address, value in leaves for target in _places(address, agents)
    ]
    fixed = [{"scenario": "code_validation"}, nest("rl.frames_per_batch", None)]
    if values["rerun_tests"] is not None:
        fixed.append(nest("base_run.base_run_type", "rerun_tests"))
    models = collect(
        _model(f"{role}.model", values[f"{role}.model"], names) for role, names in agents.items()
    )
    return models.map(lambda named: together([*fixed, *tables, *named]))


def _places(address: str, agents: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """The library's addresses for one that may be below `verifier` or `prover`."""
    role, _, rest = address.partition(".")
    if role in agents:
        yield from (f"agents.{name}.{rest}" for name in agents[role])
    else:
        yield address


def _model(address: str, named: Any, agents: tuple[str, ...]) -> Result[dict[str, Any], Problem]:
    """The provider and the model of agents, which the script has in one word."""
    provider, slash, model = str(named).partition("/")
    if not slash:
        remedy = 'write "OpenAI/gpt-4o-mini-2024-07-18"'
        problem = f"expected a provider and a model, got {named!r}"
        return Failure(Problem(problem, f"parameters.{address}", remedy))
    fields = {"model_provider": provider, "model_name": model}
    return Success({"agents": dict.fromkeys(agents, fields)})
