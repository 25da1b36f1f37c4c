"""Parameters that have no effect, whatever their value, beside the others of a configuration."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from nip_fn.config.codec import default_table, flatten
from nip_fn.config.hosting import is_trained, kind_of
from nip_fn.config.presets import WORLDS, with_preset
from nip_fn.config.spelling import DUMMY
from nip_fn.game.decision import NEITHER, SPECTRA
from nip_fn.game.protocol import Protocol, Role, verifier_rounds
from nip_fn.keys import key
from nip_fn.params.agent import (
    AgentParameters,
    ConstantUpdateSchedule,
    is_frozen,
    meets_others,
    provider,
)
from nip_fn.params.names import BUILT_IN_TRAINERS, is_reference
from nip_fn.params.run import DEFAULT_AGENT, HyperParameters
from nip_fn.protocols.registry import protocol_of
from nip_fn.protocols.sides import speakers

Found = Iterator[tuple[str, tuple[str, ...]]]  # (reason, names of parameters)


class Unused(NamedTuple):
    """Parameters without effect.

    reason: the reason why they have none.
    addresses: the parameters.
    """

    reason: str
    addresses: tuple[str, ...]

    def __str__(self) -> str:
        """The line that tells of them."""
        return f"without effect, since {self.reason}: {', '.join(self.addresses)}"


def told(given: Mapping[str, Any], runs: Iterable[HyperParameters]) -> tuple[Unused, ...]:
    """Parameters that were written, other than as they are anyway, and have no effect in any run.

    Args:
        given: The written configuration of all of them; `agents._default` stands for its agents.
        runs: The parameters of each run that was made of it.
    """
    # As they are anyway: by default, or by the settings of whoever plays, which a file that a run
    # left behind repeats.
    players = _players(given)
    defaults, settings = flatten(default_table()), _added(with_preset(players), players)
    unused = [_reasons(params) for params in runs]
    lines: dict[str, list[str]] = {}
    for address, value in flatten(given).items():
        shared = _shared(address)
        usual = (defaults.get(shared, ...), settings.get(address, settings.get(shared, ...)))
        if value in usual or (usual[0] is None and value == "none"):
            continue
        if shared.endswith(".model_provider") and value == DUMMY:  # by it there is no model
            continue
        reasons = [_reason(own, address) for own in unused]
        if reasons and all(reasons):
            lines.setdefault(str(reasons[0]), []).append(address)
    return tuple(Unused(reason, tuple(addresses)) for reason, addresses in lines.items())


def without_effect(params: HyperParameters, addresses: Iterable[str]) -> set[str]:
    """Those of the addresses whose parameters have no effect in a run, whatever their value."""
    reasons = _reasons(params)
    return {address for address in addresses if _reason(reasons, address)}


def _players(given: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a written configuration that says who plays what."""
    agents = {
        name: {field: value for field, value in own.items() if field in _WHO}
        for name, own in given.get("agents", {}).items()
    }
    what = {name: given[name] for name in ("dataset", "interaction_protocol") if name in given}
    return {**what, "agents": agents}


def _added(whole: Mapping[str, Any], written: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a table that were not written themselves, by address."""
    return {name: value for name, value in flatten(whole).items() if name not in flatten(written)}


_WHO = ("model_provider", "model_name", "max_response_words", "use_lora")


def _shared(address: str) -> str:
    """The address in `agents._default` of an agent's field; any other as it is."""
    section, _, rest = address.partition(".")
    field = rest.partition(".")[2]
    return f"agents.{DEFAULT_AGENT}.{field}" if section == "agents" else address


def _reason(unused: Mapping[str, Mapping[str, str]], address: str) -> str | None:
    """The reason why a parameter has no effect in a run; None if it has one."""
    section, _, rest = address.partition(".")
    name, _, field = rest.partition(".")
    if section != "agents":
        return unused[""].get(address)
    # A field of a table, such as agent_lr_factor.actor, has the effect of the table.
    name_of_field = field.partition(".")[0]
    agents = [own for who, own in unused.items() if who and name in (who, DEFAULT_AGENT)]
    reasons = [own.get(name_of_field) for own in agents]
    return reasons[0] if reasons and all(reasons) else None


def _reasons(params: HyperParameters) -> dict[str, dict[str, str]]:
    """The reasons by agent and field, and under "" those of all other parameters by address."""
    roles = [spec.role for spec in protocol_of(params).agents]
    found = {
        agent.name: _by_name(_of_agent(params, agent, role))
        for agent, role in zip(params.agents, roles, strict=True)
    }
    return {"": _by_name(_of_run(params)), **found}


def _by_name(found: Found) -> dict[str, str]:
    return {name: reason for reason, names in found for name in names}


# ------------------------------------------------------------------------------------ agents

_HOSTED = (
    "language_model_server_scheme_host",
    "language_model_server_port",
    "vllm_server_port",
)
_AT_SERVERS = (
    *("api_base_url", "api_key_variable", "replies_per_request", "use_batch_api"),
    "extra_request_fields",
)
_SAMPLING = ("temperature", "top_p", "repetition_penalty", "max_tokens_per_message")
_PROMPTS = (
    "system_prompt_template_path",
    "system_prompt_template",
    "use_supervisor_message",
    "supervisor_name",
    "max_response_words",
    "name_speakers_in_content",
    "merge_same_role_messages",
)
_LORA = ("lora_rank", "lora_alpha", "lora_alpha_scale", "lora_dropout")
_DPO = ("dpo_beta", "dpo_reference", "dpo_sft_weight")
_DEVICE = ("gradient_checkpointing", "base_precision")  # what a trainer of ours may do
_RATES = (
    *("agent_lr_factor", "num_epochs", "per_device_train_batch_size", "use_lora"),
    *(*_LORA, *_DEVICE),
)
_TRAINING = (*_RATES, *_DPO, "fine_tune_from_scratch", "stack_lora_adapters", "update_schedule")
_OPPONENTS = ("opponent_pool", "opponent_scripts", "opponent_pool_share")
_TREES = ("num_responses", "num_idle_responses", "pair_selection_method", "min_pair_margin")


def _of_agent(params: HyperParameters, agent: AgentParameters, role: Role) -> Found:
    """The fields of one agent."""
    kind, trained = kind_of(agent), is_trained(params, agent)
    names: tuple[str, ...]
    if kind == "scripted":
        yield "a script speaks", (*_SAMPLING, *_PROMPTS, *_HOSTED, *_AT_SERVERS, "quantization")
    elif kind == "dummy":
        names = (*_SAMPLING, *_HOSTED, *_AT_SERVERS, "quantization", "model_provider")
        yield "there is no model (dummy)", names
        yield "nothing is really trained (dummy)", ("dpo_beta", "dpo_sft_weight", *_RATES)
    elif kind == "local":
        yield "the model is in this process (local)", (*_HOSTED, *_AT_SERVERS)
    elif agent.api_base_url is not None:
        yield "api_base_url names the server", _HOSTED
    elif kind == "api":
        yield f"the model is at {provider(agent)}", _HOSTED
    if not trained:
        why = "nothing is trained" if not params.rl.num_iterations else "it is frozen"
        yield why, _TRAINING
    elif kind == "api":
        names = (*_LORA, *_DEVICE, "use_lora", "stack_lora_adapters", "dpo_reference")
        yield "OpenAI's API does not take it", names
    elif not agent.use_lora:
        names = (*_LORA, "base_precision", "stack_lora_adapters")
        yield "all weights are trained (use_lora)", names
    if agent.fine_tune_from_scratch:
        yield "each training starts afresh", ("stack_lora_adapters",)
    if not params.rl.num_iterations:
        yield "nothing is trained", ("freeze_agent", *_OPPONENTS)
    if not meets_others(agent):
        yield "opponent_pool is 0", ("opponent_pool_share",)
    yield from _of_trees(params, agent)
    if not agent.load_checkpoint_and_parameters:
        yield "nothing is loaded", ("checkpoint_version",)
    version = params.code_validation.system_prompt_version
    if agent.max_tokens_per_message is not None and agent.system_prompt_template is None:
        if version != "v1":
            yield f"prompts of version {version} tell no limit of words", ("max_response_words",)
        elif role == "verifier":
            yield "a verifier is told no limit of words", ("max_response_words",)


def _of_trees(params: HyperParameters, agent: AgentParameters) -> Found:
    """The fields of one agent that make trees and select from them."""
    if params.trainer == "ei":
        yield "Expert Iteration grows no trees", (*_TREES, *_DPO)
    elif params.trainer == "malt":
        if not params.rl.num_iterations:
            names = _TREES[2:] if params.text_rl.test_trees else _TREES
            yield "nothing is trained", names
        learning = any(is_trained(params, other) for other in params.agents)
        if params.rl.num_iterations and not learning and _plays_alone(params):
            names = ("pair_selection_method", "min_pair_margin")
            yield "no agent is trained, and each gives one reply", names
        idle = is_frozen(agent) or agent.update_schedule != ConstantUpdateSchedule()
        if not idle and not any(map(meets_others, params.agents)):
            yield "it is trained in every iteration", ("num_idle_responses",)


# ------------------------------------------------------------------------------------ the run


def _of_run(params: HyperParameters) -> Found:
    """The parameters outside `agents`, by address."""
    yield from _of_loop(params)
    yield from _of_trainers(params)
    yield from _of_servers(params)
    yield from _of_protocol(params, protocol_of(params))
    yield from _of_data(params)


def _section(name: str, *but: str) -> tuple[str, ...]:
    """The addresses of a section's parameters."""
    fields = getattr(HyperParameters(), name).__struct_fields__
    return tuple(f"{name}.{field}" for field in fields if field not in but)


def _of_loop(params: HyperParameters) -> Found:
    own, rl = params.text_rl, params.rl
    if not rl.num_iterations:
        sizes = ("rl.rollouts_per_iteration", "rl.frames_per_batch")
        yield "nothing is trained, so that there is one test", ("text_rl.test_scheme",)
        yield (
            "nothing is trained",
            (
                *(sizes if own.test_on_whole_dataset else ()),
                *(() if own.test_trees else _section("malt")),
                *_section("ei"),
                *("trainer", "rl.lr", "rl.num_epochs", "dataset_options.max_train_size"),
                "text_rl.fine_tune_on_all_previous_rollouts",
                *("text_rl.switch_adapters", "text_rl.refused_adapters"),
            ),
        )
    if own.test_scheme == "none":
        yield (
            "nothing is tested (text_rl.test_scheme)",
            (
                *("rl.num_test_iterations", "text_rl.test_on_whole_dataset", "text_rl.test_trees"),
                *(
                    "text_rl.test_temperature",
                    "dataset_options.max_test_size",
                    "test_dataset_split",
                ),
            ),
        )
    if not own.save_transcripts:
        yield "no transcripts are saved", ("text_rl.transcript_format",)
    if all(agent.num_epochs for agent in params.agents):
        yield "each agent has its own", ("rl.num_epochs",)


def _of_trainers(params: HyperParameters) -> Found:
    own, malt, ei = params.text_rl, params.malt, params.ei
    if params.trainer not in BUILT_IN_TRAINERS:
        return
    with_ei = params.trainer == "ei" or malt.num_initial_ei_iterations > 0
    guesses = "text_rl.verifier_guess_replacement_"
    names: tuple[str, ...]
    if not with_ei:
        names = ("proportion", "annealing", "annealing_rate")
        yield "there is no Expert Iteration", (*_section("ei"), *(f"{guesses}{n}" for n in names))
    if not own.verifier_guess_replacement_proportion:
        yield "no verdict is replaced", (f"{guesses}annealing", f"{guesses}annealing_rate")
    elif own.verifier_guess_replacement_annealing == "none":
        yield "the share stays as it is", (f"{guesses}annealing_rate",)
    weighted = "weighting_sample_size_factor", "weighting_minimum", "weighting_use_replacement"
    if ei.rollout_selection_method == "threshold":
        names = (*weighted, "weighting_epsilon")
        yield "dialogues are selected by a threshold", tuple(f"ei.{name}" for name in names)
    else:
        yield "dialogues are drawn by their reward", ("ei.reward_threshold",)
    if params.trainer == "ei":
        yield "Expert Iteration grows no trees", (*_section("malt"), "text_rl.test_trees")
        if ei.lr is not None:
            yield "ei.lr goes before it", ("rl.lr",)
        if ei.rollouts_per_iteration is not None:
            names = ("rollouts_per_iteration", "frames_per_batch")
            yield "ei.rollouts_per_iteration goes before it", tuple(f"rl.{n}" for n in names)
        return
    agents = params.agents
    rules = {agent.pair_selection_method or malt.pair_selection_method for agent in agents}
    if "interval" not in rules:
        yield "no pair rule asks for it", ("malt.interval_threshold_proportion",)
    if all(agent.pair_selection_method for agent in agents):
        yield "each agent has its own", ("malt.pair_selection_method",)
    if all(agent.min_pair_margin is not None for agent in agents):
        yield "each agent has its own", ("malt.min_pair_margin",)
    if all(agent.num_responses is not None for agent in agents):
        yield "each agent has its own", ("malt.num_responses_per_timestep",)
    if not any(is_frozen(agent) and agent.num_responses is None for agent in agents):
        yield "no agent is frozen", ("malt.frozen_agents_generate_one_response",)
    if all(len(movers) < 2 for movers in speakers(protocol_of(params))):
        yield "no two agents speak at once", ("malt.simultaneous_branching",)


def _of_servers(params: HyperParameters) -> Found:
    kinds = {kind_of(agent) for agent in params.agents}
    trained = [agent for agent in params.agents if is_trained(params, agent)]
    training = {kind_of(agent) for agent in trained}
    servers = {"api", "self-hosted"}
    if not kinds & servers:
        yield (
            "no model is at a server",
            (
                "text_rl.max_requests_in_flight",
                "text_rl.request_timeout_seconds",
                "text_rl.outage_limit_seconds",
                "text_rl.unreached_limit_seconds",
            ),
        )
    if not training & servers:
        yield "no model is trained at a server", ("text_rl.fine_tune_limit_hours",)
        if not any(agent.use_batch_api and kind_of(agent) == "api" for agent in params.agents):
            yield "no model is trained at a server", ("text_rl.fine_tune_poll_seconds",)
    if "dummy" not in kinds:
        yield "every agent has a model or a script", _section("dummy")
    if not kinds - {"dummy", "scripted"}:
        yield "there is no model", ("text_rl.test_temperature",)
    if not trained:
        yield (
            "no agent is trained",
            (
                *("rl.lr", "rl.num_epochs", "ei.lr", "malt.num_initial_ei_iterations"),
                *("text_rl.switch_adapters", "text_rl.fine_tune_on_all_previous_rollouts"),
                *("text_rl.refused_adapters", "text_rl.failed_trainings"),
            ),
        )
        if _plays_alone(params):
            but = ("frozen_agents_generate_one_response",)
            names = (*_section("malt", *but), "trainer", "text_rl.test_trees")
            yield "no agent is trained, and each gives one reply", names
    elif training <= {"api", "dummy"}:
        why = "OpenAI sets the learning rate, which agent_lr_factor multiplies"
        why = why if "api" in training else "nothing is really trained (dummy)"
        yield why, ("rl.lr", "ei.lr")
    if training <= {"dummy"}:
        yield (
            "nothing is really trained (dummy)",
            (*("rl.num_epochs", "text_rl.refused_adapters", "text_rl.failed_trainings"),),
        )


def _plays_alone(params: HyperParameters) -> bool:
    """True if every agent gives one reply at each of its turns, since it is frozen."""
    own = [(agent.num_responses, agent.num_idle_responses) for agent in params.agents]
    return params.malt.frozen_agents_generate_one_response and own == [(None, None)] * len(own)


_LENGTHS: dict[str, tuple[str, ...]] = {
    "nip_protocol": ("nip", "consultancy"),
    "debate_protocol": ("debate",),
    "mnip_protocol": ("mnip",),
}


def _of_protocol(params: HyperParameters, protocol: Protocol) -> Found:
    name, common = params.interaction_protocol, params.protocol_common
    if is_reference(name):
        return
    for section, users in _LENGTHS.items():
        if name not in users:
            yield f"the protocol is {name}", _section(section)
        elif section != "nip_protocol" and not getattr(params, section).sequential:
            yield "both provers speak at once", (f"{section}.prover0_first",)

    def rules(*names: str) -> tuple[str, ...]:
        return tuple(f"protocol_common.{one}" for one in names)

    if name not in ("nip", "consultancy", "debate", "mnip"):
        yield f"the protocol is {name}", rules("verifier_first")
    if name not in ("nip", "adp", "mnip"):
        yield f"the protocol is {name}", rules("prover_stance", "randomize_prover_stance")
    if not any(agent.role == "prover" for agent in protocol.agents):
        names = ("prover_reward", "prover_invalid_response_penalty", "shared_reward")
        yield "there is no prover", rules(*names)
    if common.shared_reward:
        yield "provers share the verifier's reward", rules("prover_reward")
    if common.force_guess:
        yield "the verdict is forced", rules("verifier_terminated_penalty")
    if all(one.discrete != NEITHER for one in SPECTRA[protocol.spectrum]):
        yield "no verdict is undecided", rules("verifier_neither_accept_nor_reject_reward")
    if len(verifier_rounds(protocol, key(params.seed))) < 2:
        yield "the verifier has one turn", rules("verifier_no_guess_reward")


def _of_data(params: HyperParameters) -> Found:
    options = "difficulty", "balance_classes", "reduce_shuffle_seed", "skip_bad_rows"
    shares = "validation_share", "test_share"
    apps = "apps_difficulty", "apps_solution_number", "apps_exclude_flagged"
    name = params.dataset
    if name in WORLDS:
        names = (*options, *shares, "kind")
        yield f"{name} is generated as it is", tuple(f"dataset_options.{n}" for n in names)
    elif is_reference(name):
        yield f"{name} gives its own rows", tuple(f"dataset_options.{n}" for n in options)
    elif name.startswith("builtin:"):
        yield f"{name} has no bad rows", ("dataset_options.skip_bad_rows",)
    if name.startswith("builtin:") or is_reference(name):
        yield f"{name} is not APPS", tuple(f"code_validation.{n}" for n in apps)
