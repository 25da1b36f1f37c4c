"""Problems with parameters that have the right types, each with its address and a remedy."""

import re
from collections.abc import Iterator

from msgspec.structs import replace

from nip_fn.config.hosting import (
    MAX_RANK,
    highest_rank,
    is_hosted,
    is_trained,
    provider_kind,
    server_url,
)
from nip_fn.config.schema import parameters
from nip_fn.config.trainers import BACKUPS, SELECTORS, TRAINERS, loss_of
from nip_fn.errors import Problem
from nip_fn.game.bounds import reward_bounds, reward_mid_point
from nip_fn.game.checkers import CHECKERS
from nip_fn.game.datapoint import make_datapoint
from nip_fn.game.protocol import Protocol, verifier_rounds
from nip_fn.keys import key
from nip_fn.params.agent import (
    LOSS_NAMES,
    AgentParameters,
    agent_group,
    group_name_problems,
    is_scripted,
    meets_others,
)
from nip_fn.params.names import is_reference, unknown_name
from nip_fn.params.run import HyperParameters
from nip_fn.params.update_schedule import ContiguousPeriodicUpdateSchedule
from nip_fn.prompts.chat import system_variables
from nip_fn.prompts.render import render_text
from nip_fn.protocols.answers import writer_of
from nip_fn.protocols.registry import protocol_of
from nip_fn.protocols.strategies import strategies_for
from nip_fn.select.rollouts import as_written
from nip_fn.training.losses import OwnLoss, is_plain
from nip_fn.training.rows import PREFERENCE

# Weights such as a trainer gives its rows.
_WEIGHTS = {"malt": PREFERENCE, "reinforce": (1.0, 0.5)}

# No port: each server of the host has its own parameter.  No user and no path: a password in a URL
# would be recorded with the run.
_SCHEME_HOST = r"https?://([^\s/:@?#\[\]]+|\[[0-9A-Fa-f:]+\])/?"


def problems(params: HyperParameters) -> Iterator[Problem]:
    """All problems with parameters whose agents are those of the protocol."""
    yield from _name_problems(params)
    for agent in params.agents:
        yield from _agent_problems(agent)
    common = params.protocol_common
    if common.randomize_prover_stance and common.prover_stance in ("accept", "reject"):
        yield Problem(
            f"it is {common.prover_stance!r}, but randomize_prover_stance draws it",
            "protocol_common.prover_stance",
            "leave randomize_prover_stance at false",
        )
    yield from _answer_problems(params)
    yield from _split_problems(params)
    yield from _size_problems(params)
    yield from _turn_problems(params)
    yield from group_name_problems(params.agents)
    yield from group_problems(params.agents)
    yield from _hosting_problems(params)
    yield from _loss_problems(params)
    yield from _pool_problems(params)
    yield from _template_problems(params)


def _answer_problems(params: HyperParameters) -> Iterator[Problem]:
    if params.protocol_common.answers != "written":
        return
    given = replace(params.protocol_common, answers="given")
    if writer_of(protocol_of(replace(params, protocol_common=given))) is None:
        yield Problem(
            f"no prover of {params.interaction_protocol} always argues for acceptance, and would "
            "stand by the answer that it wrote",
            "protocol_common.answers",
            "choose another protocol, such as solo_judge or open_consultancy",
        )


def _split_problems(params: HyperParameters) -> Iterator[Problem]:
    if not params.rl.num_iterations:
        return
    if params.test_dataset_split == "train":
        remedy = "choose validation or test, or train nothing (nip-fn eval)"
        yield Problem("its rows are trained on", "test_dataset_split", remedy)
    if params.dataset_options.only_split is not None:
        remedy = "leave it out, or train nothing (nip-fn eval)"
        yield Problem("it leaves no rows to train on", "dataset_options.only_split", remedy)


def warnings(params: HyperParameters) -> Iterator[Problem]:
    """Problems with settings that are allowed, and that silently defeat their purpose."""
    if params.trainer != "malt":
        return
    common = params.protocol_common
    # Without the penalties the bounds are those of games that are decided.
    harmless = {
        "prover_invalid_response_penalty": None,
        "verifier_terminated_penalty": common.verifier_incorrect_penalty,
    }

    def spared(*names: str) -> Protocol:
        fields = {name: harmless[name] for name in names}
        return protocol_of(replace(params, protocol_common=replace(common, **fields)))

    decided = spared(*harmless)
    for index, agent in enumerate(params.agents):
        rule = agent.pair_selection_method or params.malt.pair_selection_method
        if rule != "positive_negative" or not is_trained(params, agent):
            continue
        least, most = reward_bounds(decided, index)
        middle = reward_mid_point(spared(), index)
        if least < middle <= most or least == most:
            continue
        cause = next(
            (name for name in harmless if least < reward_mid_point(spared(name), index) <= most),
            "verifier_terminated_penalty",
        )
        yield Problem(
            f"it puts the mid-point of {agent.name}'s rewards at {middle:g}, and decisions are "
            f"worth {least:g} to {most:g}: to positive_negative they are all on one side, so that "
            "none is paired with another",
            f"protocol_common.{cause}",
            "set malt.pair_selection_method to about_mean, or choose a smaller penalty",
        )


def _name_problems(params: HyperParameters) -> Iterator[Problem]:
    """A problem for each name that is neither built in nor a reference to the user's own."""
    rule, protocol = params.malt.pair_selection_method, protocol_of(params)
    names = (
        ("trainer", params.trainer, "trainer", tuple(TRAINERS)),
        ("malt.pair_selection_method", rule, "pair rule", tuple(SELECTORS)),
        ("malt.value_backup", params.malt.value_backup, "backup", tuple(BACKUPS)),
        (
            "dataset_options.checker",
            params.dataset_options.checker or "exact",
            "checker",
            tuple(CHECKERS),
        ),
        *(
            (f"agents.{agent.name}.loss", agent.loss, "loss", LOSS_NAMES)
            for agent in params.agents
            if isinstance(agent.loss, str)
        ),
        *(
            (
                f"agents.{agent.name}.model_name",
                agent.model_name,
                "strategy",
                tuple(strategies_for(params.dataset, spec.role)),
            )
            for agent, spec in zip(params.agents, protocol.agents, strict=True)
            if is_scripted(agent)
        ),
    )
    scripts = (
        (
            f"agents.{agent.name}.opponent_scripts",
            script,
            "strategy",
            tuple(strategies_for(params.dataset, spec.role)),
        )
        for agent in params.agents
        for script in agent.opponent_scripts
        for opponent, spec in zip(params.agents, protocol.agents, strict=True)
        if opponent is not agent
    )
    for address, name, noun, choices in (*names, *scripts):
        if name not in choices and not is_reference(name):
            yield unknown_name(address, name, noun, choices)
    for agent in params.agents:
        rule_of_agent = agent.pair_selection_method
        if rule_of_agent is not None and rule_of_agent not in SELECTORS:
            yield Problem(
                f"{rule_of_agent!r} is not a pair rule",
                f"agents.{agent.name}.pair_selection_method",
                f"choose from {', '.join(SELECTORS)}; a rule of your own is named in "
                "malt.pair_selection_method, and these for the other agents",
            )


def _size_problems(params: HyperParameters) -> Iterator[Problem]:
    """Problems with the number of datapoints in an iteration or in a split."""
    if params.rl.rollouts_per_iteration is not None and params.rl.frames_per_batch is not None:
        yield Problem("rollouts_per_iteration and frames_per_batch are both set", "rl", "keep one")
    frames, rounds = params.rl.frames_per_batch, protocol_of(params).max_message_rounds
    if frames is not None and frames % rounds:
        yield Problem(
            f"{frames} is not a multiple of the {rounds} rounds of a dialogue",
            "rl.frames_per_batch",
            f"write {frames - frames % rounds or rounds}",
        )
    options = params.dataset_options
    shares = as_written(options.validation_share) + as_written(options.test_share)
    if shares >= 1:
        yield Problem(
            f"validation_share and test_share add up to {float(shares):g}, which leaves nothing to "
            "train on",
            "dataset_options",
            "let them add up to less than 1",
        )


def _agent_problems(agent: AgentParameters) -> Iterator[Problem]:
    """Problems with the parameters of one agent."""
    where = f"agents.{agent.name}"
    yield from _loading_problems(agent)
    schedule = agent.update_schedule
    if isinstance(schedule, ContiguousPeriodicUpdateSchedule) and not (
        schedule.start < schedule.stop <= schedule.period
    ):
        yield Problem(
            f"start {schedule.start} and stop {schedule.stop} do not fit into a period of "
            f"{schedule.period}",
            f"{where}.update_schedule",
            "choose start < stop <= period",
        )
    if agent.temperature is not None and agent.top_p is not None:
        yield Problem("temperature and top_p are both set", where, "keep one")
    if agent.system_prompt_template_path is not None and agent.system_prompt_template is None:
        yield Problem(
            "the text of the template is missing",
            f"{where}.system_prompt_template_path",
            "read the file into system_prompt_template (as nip-fn train does)",
        )
    if agent.stack_lora_adapters and not agent.use_lora:
        yield Problem(
            "without LoRA there are no adapters to stack",
            f"{where}.stack_lora_adapters",
            "set use_lora to true",
        )
    if agent.base_precision not in ("auto", "float32"):
        # Updates of all weights are smaller than the steps of such numbers, and so is a LoRA that
        # is merged into them.
        for field, value in (("use_lora", True), ("stack_lora_adapters", False)):
            if getattr(agent, field) != value:
                yield Problem(
                    f"with {field} = {str(not value).lower()} the base's weights change, which "
                    f"{agent.base_precision} is too coarse for",
                    f"{where}.base_precision",
                    f"leave it at 'auto', or set {field} to {str(value).lower()}",
                )
    at_openai = agent.model_provider == "OpenAI" and not agent.use_dummy_api
    continues = not agent.fine_tune_from_scratch and not agent.freeze_agent
    if at_openai and continues and agent.dpo_reference == "base":
        yield Problem(
            "OpenAI's API takes no reference policy; it is always the model that a training "
            "starts from",
            f"{where}.dpo_reference",
            "leave it at 'previous', or set fine_tune_from_scratch to true",
        )
    yield from _lora_problems(agent)


def _loss_problems(params: HyperParameters) -> Iterator[Problem]:
    """A problem for each trained agent whose trainer or provider cannot train by its loss."""
    if params.trainer == "ei":
        return
    for agent in params.agents:
        if not is_trained(params, agent):
            continue
        where, served_by = f"agents.{agent.name}.loss", provider_kind(agent)
        loss = loss_of(params, agent)
        if why := loss.weights_problem(_WEIGHTS.get(params.trainer, PREFERENCE)):
            remedy = f"choose another one for {params.trainer}"
            yield Problem(f"{loss.name} {why}", where, remedy)
        elif loss.reads_sampler and not params.text_rl.record_tokens:
            yield Problem(
                f"{loss.name} reads the log-probabilities that replies were sampled with",
                "text_rl.record_tokens",
                "set it to true",
            )
        elif served_by == "api" and not is_plain(loss):
            yield Problem(
                "OpenAI's API trains by dpo without a supervised loss, or imitates",
                f"agents.{agent.name}.dpo_sft_weight" if agent.dpo_sft_weight else where,
                "leave it out, or warm up by Expert Iteration (malt.num_initial_ei_iterations)",
            )
        elif served_by == "self-hosted" and isinstance(loss, OwnLoss):
            yield Problem(
                "a function of your own is not sent to a language-model server",
                where,
                "choose a built-in loss, or train with --provider local",
            )


def _loading_problems(agent: AgentParameters) -> Iterator[Problem]:
    address = f"agents.{agent.name}.checkpoint_run_id"
    if agent.load_checkpoint_and_parameters and agent.checkpoint_run_id is None:
        yield Problem(
            "missing, although load_checkpoint_and_parameters is set",
            address,
            "set it to the name or the folder of the run to load",
        )
    named = {"run_id": agent.checkpoint_run_id, "agent": agent.checkpoint_agent}
    for field, value in named.items():
        if value is not None and not agent.load_checkpoint_and_parameters:
            yield Problem(
                "nothing is loaded from it",
                f"agents.{agent.name}.checkpoint_{field}",
                "set load_checkpoint_and_parameters to true, too",
            )


def _lora_problems(agent: AgentParameters) -> Iterator[Problem]:
    where = f"agents.{agent.name}"
    if agent.lora_alpha is not None and agent.lora_alpha_scale is not None:
        yield Problem("lora_alpha and lora_alpha_scale are both set", where, "keep one")
    if agent.lora_alpha is None and agent.lora_alpha_scale is None:
        yield Problem("neither lora_alpha nor lora_alpha_scale is set", where, "set one")
    alpha = agent.lora_rank * as_written(agent.lora_alpha_scale or 1.0)
    if alpha < 1 or alpha.denominator != 1:
        yield Problem(
            f"{agent.lora_alpha_scale} times the rank, {agent.lora_rank}, is not a whole number of "
            "at least 1",
            f"{where}.lora_alpha_scale",
            "choose another, or set lora_alpha instead",
        )


def _fields_of_groups(record: type[AgentParameters]) -> list[str]:
    """The fields that agents of one model group must agree on."""
    return [name for name, field in parameters(record).items() if field.meaning.shared]


def group_problems(agents: tuple[AgentParameters, ...]) -> Iterator[Problem]:
    """A problem for each disagreement, in a model group, about the model that is shared."""
    # The first agent of a group stands for it, as in `run.jobs.make_job`.
    leaders: dict[str, AgentParameters] = {}
    for agent in agents:
        leader = leaders.setdefault(agent_group(agent), agent)
        for field in _fields_of_groups(type(agent)):
            ours, theirs = getattr(agent, field), getattr(leader, field)
            if ours != theirs:
                yield Problem(
                    f"they share the model group {agent_group(agent)!r} but not {field}: "
                    f"{theirs!r} and {ours!r}",
                    f"agents.{leader.name} and agents.{agent.name}",
                    "give both the same, or each a model group of its own",
                )


def _hosting_problems(params: HyperParameters) -> Iterator[Problem]:
    """Problems with agents at language-model servers, and with agents that would need one."""
    first: dict[str, AgentParameters] = {}
    for agent in params.agents:
        where = f"agents.{agent.name}"
        if is_hosted(agent):
            yield from _hosted_problems(params, agent)
            neighbour = first.setdefault(server_url(agent), agent)
            for field in ("model_name", "quantization"):
                ours, theirs = getattr(agent, field), getattr(neighbour, field)
                if ours != theirs:
                    yield Problem(
                        f"they are at {server_url(agent)}, which serves one model, but differ in "
                        f"{field}: {theirs!r} and {ours!r}",
                        f"agents.{neighbour.name} and {where}",
                        "give each a server (language_model_server_port)",
                    )
        elif agent.quantization != "none" and not agent.use_dummy_api:
            yield Problem(
                "only a language-model server (self-hosted, without api_base_url) can quantize",
                f"{where}.quantization",
                "leave it at 'none'",
            )
        elif _is_plain_vllm(agent) and is_trained(params, agent):
            yield Problem(
                "a vLLM by itself trains nothing",
                f"{where}.api_base_url",
                "leave it out to use a language-model server, or freeze the agent "
                f"({where}.freeze_agent = true)",
            )


def _pool_problems(params: HyperParameters) -> Iterator[Problem]:
    """Problems with the pools of earlier models that agents are to meet."""
    meeting = [agent for agent in params.agents if meets_others(agent)]
    shares = sum(as_written(agent.opponent_pool_share) for agent in meeting)
    if shares > 1:
        yield Problem(
            f"{' and '.join(agent.name for agent in meeting)} meet earlier models or scripts in "
            f"{float(shares):g} times as many trees as there are",
            "agents.*.opponent_pool_share",
            "let the shares of all agents add up to at most 1",
        )
    for agent in meeting:
        for opponent in params.agents:
            if not agent.opponent_pool or opponent is agent:
                continue
            if is_hosted(opponent) and is_trained(params, opponent):
                yield Problem(
                    f"earlier models of {opponent.name} cannot be met: a language-model server "
                    "serves only the last adapter of each model group",
                    f"agents.{agent.name}.opponent_pool",
                    f"leave it at 0, or give {opponent.name} another provider",
                )


def _is_plain_vllm(agent: AgentParameters) -> bool:
    """True if the agent's model is at a vLLM without a language-model server in front of it."""
    return agent.model_provider == "SelfHosted" and not (agent.use_dummy_api or is_hosted(agent))


def _hosted_problems(params: HyperParameters, agent: AgentParameters) -> Iterator[Problem]:
    """Problems with an agent whose model is at a language-model server."""
    where = f"agents.{agent.name}"
    if not re.fullmatch(_SCHEME_HOST, agent.language_model_server_scheme_host):
        yield Problem(
            f"{agent.language_model_server_scheme_host!r} is not a scheme and a host",
            f"{where}.language_model_server_scheme_host",
            "write one like http://localhost (the port is language_model_server_port)",
        )
    if agent.use_batch_api:
        yield Problem(
            "a language-model server has no batch API",
            f"{where}.use_batch_api",
            "leave it at false",
        )
    if not is_trained(params, agent):
        return
    if not agent.use_lora:
        yield Problem(
            "vLLM is given adapters, not whole models", f"{where}.use_lora", "leave it at true"
        )
    rank = highest_rank(params, agent)
    if rank > MAX_RANK:
        yield Problem(
            f"the adapters reach rank {rank}, and vLLM supports at most {MAX_RANK}",
            f"{where}.lora_rank",
            "lower it, or set stack_lora_adapters to false",
        )


# Games that are as long as others.
_LENGTHS = {
    "consultancy": "nip",
    "open_consultancy": "nip",
    "open_debate": "debate",
    "symmetric_debate": "debate",
}


def _turn_problems(params: HyperParameters) -> Iterator[Problem]:
    """Problems with games in which the verifier has no turn, or none in which it may decide."""
    protocol = protocol_of(params)
    section = f"{_LENGTHS.get(protocol.name, protocol.name)}_protocol"
    # A protocol of the user's own has no section; its own rules are at fault.
    is_custom = not hasattr(params, section)
    # Under one key: a built-in schedule draws who else speaks, never when the verifier does, and
    # `check_protocol` tries a user's own under many.
    rounds = verifier_rounds(protocol, key(params.seed))
    if not rounds:
        yield Problem(
            "the verifier never gets a turn",
            "interaction_protocol" if is_custom else f"{section}.max_message_rounds",
            "give it a turn in its schedule"
            if is_custom
            else "raise it, or let the verifier speak first",
        )
    elif rounds[-1] < protocol.min_message_rounds - 1:
        yield Problem(
            f"{protocol.min_message_rounds} is too many: the verifier speaks for the last time in "
            f"round {rounds[-1] + 1} of {protocol.max_message_rounds}, so its decision would never "
            "count",
            "interaction_protocol" if is_custom else f"{section}.min_message_rounds",
            f"set it to at most {rounds[-1] + 1}",
        )


def _template_problems(params: HyperParameters) -> Iterator[Problem]:
    """A problem for each agent's own template that cannot be rendered."""
    sample = make_datapoint("sample", "a question", "a solution", 1)
    for index, agent in enumerate(params.agents):
        if agent.system_prompt_template is None:
            continue
        variables = system_variables(params, protocol_of(params), sample, index, max_questions=1)
        try:
            render_text(agent.system_prompt_template, **variables)
        except ValueError as error:
            yield Problem(
                " ".join(str(error).split()),
                f"agents.{agent.name}.system_prompt_template",
                f"correct it; its variables are {', '.join(sorted(variables))}",
            )
