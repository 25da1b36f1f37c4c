"""The settings that a command starts from: each belongs to a model, and yields to what is written.

An agent that is played by an embedded model (`PRESETS`) has the settings that were made for it; any
other model has the defaults of the parameters, and those of `OTHER`.  Settings of the whole run are
an embedded model's only where it plays all agents.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from nip_fn.config.codec import merge, spread
from nip_fn.errors import Problem
from nip_fn.params.agent import AgentParameters, is_scripted
from nip_fn.params.run import DEFAULT_AGENT, HyperParameters
from nip_fn.protocols.registry import PROTOCOLS, agent_names, protocol_of

# The model of agents that name none, where no embedded model plays the data set.
NO_MODEL = "builtin:none"


class Preset(NamedTuple):
    """Settings as a user would write them in TOML.

    agent: the fields of each agent that the model plays.
    run: everything else.
    roles: further fields of an agent, by its name.
    scripts: further fields of the verifier that trains together with a prover, in the game and on
        the data that the model was made for.
    """

    agent: dict[str, Any]
    run: dict[str, Any]
    roles: Mapping[str, dict[str, Any]] = MappingProxyType({})
    scripts: Mapping[str, Any] = MappingProxyType({})


# For every model.  A command that trains also tests, so that its result can be seen.
ANY: dict[str, Any] = {
    "trainer": "malt",
    "interaction_protocol": "nip",
    "agents": {DEFAULT_AGENT: {"model_provider": "local"}},
    "text_rl": {"test_scheme": "all"},
}

_SHORT = {"max_message_rounds": 3}

# What the embedded models have in common.
_EMBEDDED = Preset(
    agent={
        "max_tokens_per_message": 64,
        "num_invalid_generation_retries": 1,
        "merge_same_role_messages": False,
        "fine_tune_from_scratch": False,
        "lora_rank": 16,
        "lora_alpha_scale": 2.0,
        "lora_dropout": 0.0,
        "dpo_beta": 0.1,
        "per_device_train_batch_size": 32,
    },
    run={
        "rl": {"num_iterations": 10, "lr": 5e-4, "num_epochs": 2},
        # One dialogue a problem instead of a tree: more problems, for about as many replies.
        # Imitation moves a model less than preferences do at the same learning rate.
        "ei": {"rollouts_per_iteration": 1500, "lr": 3e-3},
        "malt": {"num_responses_per_timestep": 4},
        "nip_protocol": _SHORT,
        "debate_protocol": _SHORT,
        "mnip_protocol": _SHORT,
        "code_validation": {"system_prompt_version": "views"},
        "dataset_options": {"max_test_size": 400},
    },
)

# The lady tasting tea: the default of `nip-fn train`.
TEA = Preset(
    agent={
        **_EMBEDDED.agent,
        "use_supervisor_message": "first",
        "max_tokens_per_message": 48,
    },
    # Once most openings are good, few differ in the sign of their value, and all in its size.
    run=merge(
        _EMBEDDED.run,
        {
            "rl": {"rollouts_per_iteration": 48, "num_iterations": 20},
            "malt": {"pair_selection_method": "best_worst"},
        },
    ),
    # Many questions, since few of them differ in value; of two verdicts on the same answers one is
    # often better already.
    roles={"verifier": {"num_responses": [8, 2]}},
    # A verifier that meets its own prover alone never sees most of the replies by which it could be
    # misled.
    scripts={"opponent_scripts": ["evades"], "opponent_pool_share": 0.3},
)

_CRITICISM = {"max_message_rounds": 2}

# The bug hunt: a critic with the tokens for a check of all of up to 16 steps, and a verifier with
# those for one.  In every game the experts speak first, and only once.
BUG_HUNT = Preset(
    agent={
        **_EMBEDDED.agent,
        "use_supervisor_message": "none",
        "max_tokens_per_message": 80,
    },
    run=merge(
        _EMBEDDED.run,
        {
            "interaction_protocol": "adp",
            "protocol_common": {"prover_stance": "reject", "verifier_first": False},
            "nip_protocol": _CRITICISM,
            "debate_protocol": _CRITICISM,
            "mnip_protocol": _CRITICISM,
            "rl": {"rollouts_per_iteration": 60},
        },
    ),
    roles={"verifier": {"max_tokens_per_message": 12}},
)

# A tool whose model is not named tells the truth.
TOOL: dict[str, Any] = {"model_provider": "scripted", "model_name": "honest"}

_DEFAULTS = AgentParameters()
LIMIT = "max_tokens_per_message"

# Every other model.  An iteration is as many dialogues as the *nip* library's 1000 rounds are.
# Learning rates are those that are usual for LoRA: 1e-5 for DPO, and ten times that for imitation.
OTHER = Preset(
    agent={name: getattr(_DEFAULTS, name) for name in TEA.agent},
    run={"rl": {"rollouts_per_iteration": 125, "lr": 1e-5}, "ei": {"lr": 1e-4}},
)

# Of runs in which an agent's weights are all trained: a tenth of what LoRA takes (Schulman et al.
# 2025, "LoRA Without Regret"); 1e-6 is the default of trl's DPO, too.
ALL_WEIGHTS: dict[str, Any] = {"rl": {"lr": 1e-6}, "ei": {"lr": 1e-5}}

# By the game of an embedded model, which is named builtin:GAME, or builtin:GAME@SEED.
PRESETS = {"builtin:tea": TEA, "builtin:bug-hunt": BUG_HUNT}

# The embedded model that plays a data set.
PLAYERS = {
    "builtin:tea": "builtin:tea",
    "builtin:tea-public": "builtin:tea",
    "builtin:bug-hunt": "builtin:bug-hunt",
}

# Games in which each side has its own view, whichever model plays.
WORLDS = (
    "builtin:tea",
    "builtin:tea-public",
    "builtin:bug-hunt",
    "builtin:bug-hunt-12",
    "builtin:bug-hunt-16",
    "builtin:sums",
)
_WORLD = {"code_validation": {"system_prompt_version": "views"}, "nip_protocol": _SHORT}

_DATA: dict[str, dict[str, Any]] = {
    # Three of four of its solutions have a bug: a verifier that rejects all of them would seem
    # good.
    "builtin:python": {"dataset_options": {"balance_classes": True}},
    "builtin:sums": {"protocol_common": {"answers": "written"}},
}

# Writing the parameter on the left removes a preset's values on the right, which would override it.
_DISPLACES = (
    ("rl.lr", ("ei.lr",)),
    ("rl.rollouts_per_iteration", ("ei.rollouts_per_iteration",)),
    ("rl.frames_per_batch", ("rl.rollouts_per_iteration", "ei.rollouts_per_iteration")),
)


def with_preset(written: Mapping[str, Any]) -> dict[str, Any]:
    """A written configuration, laid over the settings for its models and its data."""
    written = _without_unset(written)
    named = written.get("dataset", "builtin:tea")
    dataset = named if isinstance(named, str) else ""
    table = merge(ANY, {"dataset": named, **_run_preset(written, dataset)})
    table = merge(table, _DATA.get(dataset, {}))
    return merge(merge(table, {"agents": _agents(written, dataset)}), written)


def _without_unset(written: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration without limits of tokens that are "none", which is as if left out.

    Otherwise "none" would take the place of an embedded model's limit.
    """
    agents = written.get("agents")
    if not isinstance(agents, Mapping):
        return written
    kept = {
        name: {k: v for k, v in fields.items() if k != LIMIT or v not in (None, "none")}
        if isinstance(fields, Mapping)
        else fields
        for name, fields in agents.items()
    }
    return {**written, "agents": kept}


def preset_of(agent: Mapping[str, Any], dataset: str) -> Preset:
    """The settings for the model of an agent, whose fields are as they were written."""
    model = _model(agent, dataset)
    return PRESETS.get(model.partition("@")[0], OTHER) if isinstance(model, str) else OTHER


def model_problems(params: HyperParameters) -> Iterator[Problem]:
    """A problem for each agent that needs a model where none was named, nor plays the data set."""
    for agent in params.agents:
        if agent.model_name == NO_MODEL and not (agent.use_dummy_api or is_scripted(agent)):
            yield Problem(
                f"no model is named, and no embedded one plays {params.dataset}",
                f"agents.{agent.name}.model_name",
                "name one, as in --provider openai --model gpt-4.1-mini, or play without a model "
                "(--provider dummy)",
            )


def _model(agent: Mapping[str, Any], dataset: str) -> Any:
    return agent.get("model_name", PLAYERS.get(dataset, NO_MODEL))


def _run_preset(written: Mapping[str, Any], dataset: str) -> dict[str, Any]:
    """The settings of the run, without those that something written takes the place of."""
    playing = [
        fields
        for fields in _fields_of_agents(written).values()
        if fields.get("model_provider") != "scripted"
    ]
    # Without any model, the settings are those of the embedded model of the data set.
    presets = [preset_of(fields, dataset) for fields in playing or [{}]]
    alike = all(preset is presets[0] for preset in presets)
    table = presets[0].run if alike else OTHER.run
    if table is OTHER.run and any(fields.get("use_lora") is False for fields in playing):
        table = merge(table, ALL_WEIGHTS)
    table = merge(table, _WORLD) if dataset in WORLDS else table
    for address, displaced in _DISPLACES:
        if _has(written, address):
            table = {
                section: _without(fields, section, displaced) for section, fields in table.items()
            }
    return table


def _without(table: Any, section: str, displaced: tuple[str, ...]) -> Any:
    if not isinstance(table, Mapping):
        return table
    return {k: v for k, v in table.items() if f"{section}.{k}" not in displaced}


def _agents(written: Mapping[str, Any], dataset: str) -> dict[str, dict[str, Any]]:
    """The settings of agents: those of `_default`, and of each agent with other ones."""
    agents = _tables(written.get("agents"))
    shared = agents.get(DEFAULT_AGENT, {})
    instructions = _instructions(written, dataset)
    common = {"model_name": _model(shared, dataset), **_fields(shared, dataset, instructions)}
    playing = _fields_of_agents(written)
    roles = [name for name in preset_of(shared, dataset).roles if name in playing]
    settings: dict[str, dict[str, Any]] = {DEFAULT_AGENT: common}
    tools = _tools(written)
    for name in dict.fromkeys(name for name in (*agents, *roles) if name != DEFAULT_AGENT):
        agent = merge(shared, agents.get(name, {}))
        special = preset_of(agent, dataset).roles.get(name, {})
        if _has(written, "malt.num_responses_per_timestep"):
            special = {k: v for k, v in special.items() if k != "num_responses"}
        if name == "verifier" and _learn_together(written, dataset):
            special = {**preset_of(agent, dataset).scripts, **special}
        fields = {**_fields(agent, dataset, instructions), **special}
        # An agent's settings override `_default`, so what is written there must be left out.
        settings[name] = {
            k: v for k, v in fields.items() if k not in shared and common.get(k, ...) != v
        }
    for name in tools:
        is_chosen = {"model_provider", "model_name", "use_dummy_api"} & agents.get(name, {}).keys()
        settings[name] = {**settings.get(name, {}), **({} if is_chosen else TOOL)}
    return {name: fields for name, fields in settings.items() if fields}


def _learn_together(written: Mapping[str, Any], dataset: str) -> bool:
    """True if prover and verifier learn the lady's tea together, as an interactive proof."""
    are_trained = not any(
        fields.get("model_provider") == "scripted" or fields.get("freeze_agent")
        for fields in _fields_of_agents(written).values()
    )
    is_nip = written.get("interaction_protocol", "nip") == "nip"
    return dataset == "builtin:tea" and is_nip and are_trained


def _tools(written: Mapping[str, Any]) -> tuple[str, ...]:
    """The agents of the protocol that are tools."""
    protocol = written.get("interaction_protocol", "nip")
    if not isinstance(protocol, str) or protocol not in PROTOCOLS:
        return ()
    made = protocol_of(HyperParameters(interaction_protocol=protocol))
    return tuple(agent.name for agent in made.agents if agent.role == "tool")


def _fields(
    agent: Mapping[str, Any], dataset: str, instructions: Mapping[str, Any]
) -> dict[str, Any]:
    preset = preset_of(agent, dataset)
    return preset.agent if preset is not OTHER else {**preset.agent, **instructions}


def _instructions(written: Mapping[str, Any], dataset: str) -> dict[str, Any]:
    """The fields by which models other than the embedded ones learn how to ask and to decide."""
    prompts = written.get("code_validation")
    version = prompts.get("system_prompt_version") if isinstance(prompts, Mapping) else None
    # In this version only the supervisor says how to ask and to decide.
    leaves = version == "views" or (version is None and dataset in WORLDS)
    return {"use_supervisor_message": "all"} if leaves else {}


def _fields_of_agents(written: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The fields of each agent of the protocol, as they were written."""
    protocol, agents = written.get("interaction_protocol", "nip"), _tables(written.get("agents"))
    is_known = isinstance(protocol, str) and protocol in PROTOCOLS
    return spread(agents, agent_names(protocol) if is_known else (DEFAULT_AGENT,))


def _tables(agents: object) -> dict[str, dict[str, Any]]:
    """The tables of agents; what is malformed is left out, to be refused where it is read."""
    tables = agents if isinstance(agents, Mapping) else {}
    return {name: fields for name, fields in tables.items() if isinstance(fields, dict)}


def _has(written: Mapping[str, Any], address: str) -> bool:
    section, _, name = address.partition(".")
    table = written.get(section)
    return isinstance(table, Mapping) and name in table
