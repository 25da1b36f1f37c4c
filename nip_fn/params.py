"""Every hyper-parameter of a run: frozen records, their meaning, and their TOML form.

A configuration is written as nested tables (TOML, `--set a.b=c`, or a plain `dict`).  `from_dict`
turns it into one frozen, hashable `HyperParameters`; `to_dict` is its inverse.  In the written form
`agents` is a table from agent name to fields, where `agents._default` holds what the agents share;
in the record it is a tuple in the protocol's order, each agent with all its fields.

Names and defaults are those of the *nip* library, except where its default cannot work for language
models (`rl.lr`, `rl.frames_per_batch`).
"""

import difflib
from collections.abc import Mapping
from functools import reduce
from hashlib import blake2b
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, inspect
from returns.result import Failure, Result, Success

from nip_fn.protocols.names import AGENTS_BY_PROTOCOL, ProtocolName

Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Positive = Annotated[float, Meta(gt=0.0)]

TrainerName = Literal["malt"]
Provider = Literal["local", "dummy"]
TestScheme = Literal["none", "all", "last", "first_and_last"]
PairSelection = Literal["positive_negative", "interval"]
ValueBackup = Literal["children", "leaves"]


class Record(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, cache_hash=True, kw_only=True
):
    """What all parameter records share: immutable, hashable, and no key is ignored."""


class AgentParameters(Record, frozen=True):
    """How one agent speaks and learns."""

    name: Annotated[str, Meta(description="the agent's name in the protocol")] = ""
    model_provider: Annotated[
        Provider, Meta(description="who samples: a model in this process, or none at all")
    ] = "local"
    model_name: Annotated[
        str, Meta(description='the base model: "builtin:tiny" or a directory with one')
    ] = "builtin:tiny"
    shared_model_group: Annotated[
        str | None, Meta(description="agents with the same group share a model; None: their own")
    ] = None
    freeze_agent: Annotated[bool, Meta(description="never train this agent")] = False
    temperature: Annotated[
        Annotated[float, Meta(ge=0.0)] | None,
        Meta(description="sampling temperature; None: 1"),
    ] = None
    max_response_words: Annotated[
        Count, Meta(description="the length of a message that the prompt asks for, in words")
    ] = 150
    max_tokens_per_message: Annotated[
        Count | None, Meta(description="hard limit of a reply; None: 1.5 x max_response_words")
    ] = None
    num_invalid_generation_retries: Annotated[
        Count, Meta(description="attempts at a reply before it is recorded as invalid")
    ] = 20
    use_supervisor_message: Annotated[
        Literal["none", "all", "first", "all_but_first"],
        Meta(description="rounds in which the chat ends with instructions from a supervisor"),
    ] = "none"
    supervisor_name: Annotated[str, Meta(description="the name of that supervisor")] = "Supervisor"
    fine_tune_from_scratch: Annotated[
        bool, Meta(description="start each training at the base model, not at the last adapter")
    ] = True
    dpo_beta: Annotated[
        Annotated[float, Meta(gt=0.0, le=2.0)] | None,
        Meta(description="DPO's beta: how closely to stay with the reference; None: 0.1"),
    ] = None
    dpo_reference: Annotated[
        Literal["previous", "base"],
        Meta(description="DPO's reference policy: the adapter before this training, or the base"),
    ] = "previous"
    num_epochs: Annotated[
        Count | None, Meta(description="passes over the training data; None: rl.num_epochs")
    ] = None
    lora_rank: Annotated[Count, Meta(description="rank of the LoRA adapter")] = 64
    lora_alpha: Annotated[
        Count | None, Meta(description="LoRA's scaling factor; None: lora_rank x lora_alpha_scale")
    ] = None
    lora_alpha_scale: Annotated[
        Positive | None, Meta(description="LoRA's alpha as a multiple of its rank")
    ] = 1.0
    lora_dropout: Annotated[Share, Meta(description="dropout rate of the LoRA layers")] = 0.05
    per_device_train_batch_size: Annotated[
        Count, Meta(description="training examples in a gradient step")
    ] = 2
    agent_lr_factor: Annotated[
        Positive, Meta(description="this agent's learning rate as a multiple of rl.lr")
    ] = 1.0


class CommonProtocolParameters(Record, frozen=True):
    """Rewards and rules that all protocols share."""

    verifier_first: Annotated[bool, Meta(description="the verifier opens the dialogue")] = True
    randomize_prover_stance: Annotated[
        bool, Meta(description="the prover argues for a side that depends on the solution's hash")
    ] = False
    prover_reward: Annotated[float, Meta(description="for a prover that persuades")] = 1.0
    prover_invalid_response_penalty: Annotated[
        float | None,
        Meta(description="reward for an invalid reply, which ends the game; None: off"),
    ] = None
    verifier_reward: Annotated[float, Meta(description="for the right decision")] = 1.0
    verifier_incorrect_penalty: Annotated[float, Meta(description="for the wrong one")] = -1.0
    verifier_neither_accept_nor_reject_reward: Annotated[
        float | None, Meta(description="for an undecided decision; None: half-way between the two")
    ] = None
    verifier_terminated_penalty: Annotated[
        float, Meta(description="for not deciding in the last turn")
    ] = -1.0
    verifier_no_guess_reward: Annotated[
        float, Meta(description="for each earlier turn without a decision")
    ] = 0.0
    shared_reward: Annotated[bool, Meta(description="provers get the verifier's reward")] = False


class LongProtocolParameters(Record, frozen=True):
    """The length of a dialogue."""

    max_message_rounds: Annotated[
        Count, Meta(description="rounds at most; the game ends at the verifier's last turn")
    ] = 8
    min_message_rounds: Annotated[
        Count, Meta(description="decisions in earlier rounds than this one's end are ignored")
    ] = 1


class RlParameters(Record, frozen=True):
    """The training loop."""

    num_iterations: Annotated[
        Count, Meta(description="trainings; each samples, selects and trains")
    ] = 8
    rollouts_per_iteration: Annotated[
        Count | None,
        Meta(description="datapoints sampled an iteration; None: the whole train split"),
    ] = None
    lr: Annotated[Positive, Meta(description="learning rate of the adapters")] = 1e-5
    num_epochs: Annotated[Count, Meta(description="passes over an iteration's data")] = 3
    num_test_iterations: Annotated[
        Count, Meta(description="dialogues for each held-out datapoint")
    ] = 1


class TextRlParameters(Record, frozen=True):
    """What is tested when, and what training may touch."""

    test_scheme: Annotated[
        TestScheme, Meta(description="models that are tested on held-out problems")
    ] = "none"
    switch_adapters: Annotated[
        bool, Meta(description="sample with what was trained; false: a control that never learns")
    ] = True


class PureTextMaltParameters(Record, frozen=True):
    """Multi-Agent LLM Training: trees of replies, expected rewards, preference pairs."""

    num_responses_per_timestep: Annotated[
        Count, Meta(description="replies sampled from each agent at each position (k)")
    ] = 2
    frozen_agents_generate_one_response: Annotated[
        bool, Meta(description="one reply instead of k where only frozen agents move")
    ] = True
    pair_selection_method: Annotated[
        PairSelection,
        Meta(description="a reply above and one below the mid-point, or two far enough apart"),
    ] = "positive_negative"
    interval_threshold_proportion: Annotated[
        Share, Meta(description='"interval": how far apart, as a share of the reward range')
    ] = 0.1
    num_initial_ei_iterations: Annotated[
        Natural, Meta(description="iterations of expert iteration before the first of MALT")
    ] = 0
    value_backup: Annotated[
        ValueBackup, Meta(description="expected reward: mean over children, or over leaves")
    ] = "children"


class DatasetParameters(Record, frozen=True):
    """How much of the data is used."""

    max_train_size: Annotated[Count | None, Meta(description="train datapoints at most")] = None
    max_test_size: Annotated[Count | None, Meta(description="held-out datapoints at most")] = None


class CodeValidationParameters(Record, frozen=True):
    """The wording of the task."""

    system_prompt_version: Annotated[
        Literal["v1", "tiny"], Meta(description='prompts for any model, or for "builtin:tiny"')
    ] = "v1"


class HyperParameters(Record, frozen=True):
    """All that defines a run; two runs with equal parameters and data are the same experiment."""

    trainer: Annotated[TrainerName, Meta(description="how the agents are trained")] = "malt"
    dataset: Annotated[str, Meta(description="the problems")] = "builtin:arithmetic"
    interaction_protocol: Annotated[ProtocolName, Meta(description="the game")] = "nip"
    seed: Annotated[int, Meta(description="the root of all randomness")] = 6198
    test_dataset_split: Annotated[
        Literal["validation", "test"], Meta(description="the split that counts as held out")
    ] = "test"
    agents: tuple[AgentParameters, ...] = ()
    rl: RlParameters = RlParameters()
    text_rl: TextRlParameters = TextRlParameters()
    malt: PureTextMaltParameters = PureTextMaltParameters()
    protocol_common: CommonProtocolParameters = CommonProtocolParameters()
    nip_protocol: LongProtocolParameters = LongProtocolParameters()
    code_validation: CodeValidationParameters = CodeValidationParameters()
    dataset_options: DatasetParameters = DatasetParameters()


DEFAULT_AGENT = "_default"


def merge(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `override` laid over it, table by table; neither is changed."""
    merged = dict(base)
    for name, value in override.items():
        below = merged.get(name)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            merged[name] = merge(below, value)
        else:
            merged[name] = value
    return merged


def nest(address: str, value: Any) -> dict[str, Any]:
    """`nest("a.b", 1)` is `{"a": {"b": 1}}`: the table that sets one dotted address."""
    nested: Any = reduce(lambda inner, part: {part: inner}, reversed(address.split(".")), value)
    return dict(nested)


def from_dict(table: Mapping[str, Any]) -> Result[HyperParameters, str]:
    """The parameters that a nested table describes, or one line that says what is wrong with it."""
    protocol = table.get("interaction_protocol", "nip")
    names = AGENTS_BY_PROTOCOL.get(protocol) if isinstance(protocol, str) else None
    if names is None:
        known = ", ".join(AGENTS_BY_PROTOCOL)
        return Failure(f"interaction_protocol: {protocol!r} is not a protocol; choose from {known}")
    agents = table.get("agents", {})
    if not isinstance(agents, Mapping):
        return Failure("agents: expected a table from agent name to its parameters")
    for name, fields in agents.items():
        if not isinstance(fields, Mapping):
            return Failure(f"agents.{name}: expected a table of parameters, got {fields!r}")
        if name not in (*names, DEFAULT_AGENT):
            return Failure(
                f"agents.{name}: the protocol {protocol!r} has no such agent; "
                f"it has {', '.join(names)} (and {DEFAULT_AGENT} for what they share)"
            )
    shared = agents.get(DEFAULT_AGENT, {})
    resolved = [_resolve_agent(name, merge(shared, agents.get(name, {}))) for name in names]
    try:
        params = msgspec.convert({**table, "agents": resolved}, HyperParameters)
    except (msgspec.ValidationError, TypeError) as error:
        return Failure(_explain(error, names))
    problem = next((line for agent in params.agents for line in _agent_problems(agent)), None)
    problem = problem or next(iter(_problems(params)), None)
    return Failure(problem) if problem else Success(params)


def to_dict(params: HyperParameters) -> dict[str, Any]:
    """The nested table of `params`; `from_dict(to_dict(p))` is `Success(p)`."""
    table: dict[str, Any] = msgspec.to_builtins(params)
    agents = {agent["name"]: agent for agent in table["agents"]}
    return {**table, "agents": agents}


def get(params: HyperParameters, address: str) -> Any:
    """The value at a dotted address such as `"agents.prover.lora_rank"`; `KeyError` if none."""
    value: Any = to_dict(params)
    for part in address.split("."):
        if not isinstance(value, dict) or part not in value:
            raise KeyError(address)
        value = value[part]
    return value


def params_hash(params: HyperParameters) -> str:
    """Sixteen hexadecimal digits that two configurations share only if they are equal."""
    return blake2b(msgspec.json.encode(params, order="sorted"), digest_size=8).hexdigest()


def differences(one: HyperParameters, other: HyperParameters) -> tuple[str, ...]:
    """The dotted addresses at which two configurations differ, sorted."""
    a, b = _flatten(to_dict(one)), _flatten(to_dict(other))
    return tuple(sorted(name for name in {*a, *b} if a.get(name) != b.get(name)))


def agent_group(agent: AgentParameters) -> str:
    """The name of the shared model group that the agent belongs to."""
    return agent.shared_model_group or agent.name


def lora_alpha(agent: AgentParameters) -> int:
    """LoRA's alpha: given outright, or `lora_rank * lora_alpha_scale`."""
    if agent.lora_alpha is not None:
        return agent.lora_alpha
    return round(agent.lora_rank * (agent.lora_alpha_scale or 1.0))


def max_tokens(agent: AgentParameters) -> int:
    """The hard limit of a reply in tokens: given, or one and a half for each word asked for."""
    return agent.max_tokens_per_message or int(1.5 * agent.max_response_words)


def _flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _resolve_agent(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The agent's fields with its name; writing `lora_alpha` turns the default scale off."""
    turned_off = {"lora_alpha_scale": None} if fields.get("lora_alpha") is not None else {}
    return {**turned_off, **fields, "name": name}


def _agent_problems(agent: AgentParameters) -> tuple[str, ...]:
    problems = []
    if agent.lora_alpha is not None and agent.lora_alpha_scale is not None:
        problems.append(
            f"agents.{agent.name}: lora_alpha and lora_alpha_scale are both set; keep one"
        )
    if agent.lora_alpha is None and agent.lora_alpha_scale is None:
        problems.append(f"agents.{agent.name}: set one of lora_alpha and lora_alpha_scale")
    return tuple(problems)


def _problems(params: HyperParameters) -> tuple[str, ...]:
    problems = []
    if params.malt.num_initial_ei_iterations:
        problems.append(
            "malt.num_initial_ei_iterations: expert iteration is not part of this version; "
            "leave it at 0"
        )
    rounds = params.nip_protocol
    if rounds.min_message_rounds > rounds.max_message_rounds:
        problems.append(
            f"nip_protocol.min_message_rounds: {rounds.min_message_rounds} is more than "
            f"max_message_rounds, {rounds.max_message_rounds}"
        )
    first_turn = 1 if params.protocol_common.verifier_first else 2
    if rounds.max_message_rounds < first_turn:
        problems.append("nip_protocol.max_message_rounds: the verifier never gets a turn")
    problems.extend(group_problems(params.agents))
    return tuple(problems)


# Fields that agents of one shared model group must agree on, because they describe the one model.
SHARED_FIELDS = (
    "model_provider",
    "model_name",
    "freeze_agent",
    "fine_tune_from_scratch",
    "dpo_beta",
    "dpo_reference",
    "num_epochs",
    "lora_rank",
    "lora_alpha",
    "lora_alpha_scale",
    "lora_dropout",
    "per_device_train_batch_size",
    "agent_lr_factor",
)


def group_problems(agents: tuple[AgentParameters, ...]) -> tuple[str, ...]:
    """Where agents of one shared model group disagree about the model that they share."""
    leaders: dict[str, AgentParameters] = {}
    problems = []
    for agent in agents:
        leader = leaders.setdefault(agent_group(agent), agent)
        for field in SHARED_FIELDS:
            ours, theirs = getattr(agent, field), getattr(leader, field)
            if ours != theirs:
                problems.append(
                    f"agents.{leader.name} and agents.{agent.name} share the model group "
                    f"{agent_group(agent)!r} but not {field}: {theirs!r} and {ours!r}"
                )
    return tuple(problems)


def _explain(error: Exception, agents: tuple[str, ...]) -> str:
    """msgspec's message with the address first, agents by name, and what would have been right."""
    message, _, where = str(error).partition(" - at `$")
    address = where.rstrip("`").lstrip(".")
    expected = _type_at(address)
    for i, name in enumerate(agents):
        address = address.replace(f"agents[{i}]", f"agents.{name}")
    if "unknown field" in message and isinstance(expected, inspect.StructType):
        unknown = message.split("`")[1]
        known = [field.name for field in expected.fields]
        near = difflib.get_close_matches(unknown, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"
        return f"{address}{'.' if address else ''}{unknown}: no such parameter{hint}"
    hint = "".join(f"; choose from {', '.join(map(str, of.values))}" for of in _literals(expected))
    return f"{address or 'parameters'}: {message[0].lower()}{message[1:]}{hint}"


def _type_at(address: str) -> inspect.Type:
    """What belongs at an address as msgspec writes it, such as `agents[0].lora_rank`."""
    expected: inspect.Type = inspect.type_info(HyperParameters)
    for part in address.split(".") if address else []:
        name = part.partition("[")[0]
        if isinstance(expected, inspect.StructType):
            expected = next(field.type for field in expected.fields if field.name == name)
        if isinstance(expected, inspect.VarTupleType):
            expected = expected.item_type
        while isinstance(expected, inspect.Metadata):
            expected = expected.type
    return expected


def _literals(expected: inspect.Type) -> tuple[inspect.LiteralType, ...]:
    """The choices among the types that belong at an address."""
    types = expected.types if isinstance(expected, inspect.UnionType) else (expected,)
    return tuple(one for one in types if isinstance(one, inspect.LiteralType))
