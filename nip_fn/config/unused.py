"""Parameters that have no effect, whatever their value, beside the others of a configuration.

Each is declared with a condition that it `needs`; here are the conditions.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from nip_fn.config.codec import by_address, default_table
from nip_fn.config.hosting import is_trained, provider_kind
from nip_fn.config.presets import WORLDS, with_preset
from nip_fn.config.schema import Parameter, parameter_at
from nip_fn.config.spelling import DUMMY
from nip_fn.config.trainers import loss_of
from nip_fn.game.decision import NEITHER, SPECTRA
from nip_fn.game.protocol import has_answers, verifier_rounds
from nip_fn.keys import key
from nip_fn.params.agent import AgentParameters, is_frozen, meets_others, provider
from nip_fn.params.names import BUILT_IN_TRAINERS, is_reference
from nip_fn.params.run import DEFAULT_AGENT, HyperParameters
from nip_fn.params.update_schedule import ConstantUpdateSchedule
from nip_fn.protocols.registry import find_protocol, protocol_of
from nip_fn.protocols.sides import speakers
from nip_fn.training.losses import DPO


class Unused(NamedTuple):
    """Parameters without effect.

    reason: The reason why they have none.
    addresses: The parameters.
    """

    reason: str
    addresses: tuple[str, ...]

    def __str__(self) -> str:
        """One line for the user."""
        return f"without effect, since {self.reason}: {', '.join(self.addresses)}"


def unused(written: Mapping[str, Any], runs: Iterable[HyperParameters]) -> tuple[Unused, ...]:
    """Parameters that were set but have no effect in any of the runs.

    A value that applies anyway, by default or by the settings for the models, is not counted as
    set: the file that a run leaves behind repeats all of them.

    Args:
        written: The written configuration of the runs; `agents._default` stands for their agents.
        runs: The parameters of each run that was made of it.
    """
    players = _players(written)
    defaults, settings = by_address(default_table()), _added(with_preset(players), players)
    runs = tuple(runs)
    lines: dict[str, list[str]] = {}
    for address, value in by_address(written).items():
        shared = _shared(address)
        usual = (defaults.get(shared, ...), settings.get(address, settings.get(shared, ...)))
        if value in usual or (usual[0] is None and value == "none"):
            continue
        if shared.endswith(".model_provider") and value == DUMMY:  # by it there is no model
            continue
        reasons = [reason_unused(params, address) for params in runs]
        if reasons and all(reasons):
            lines.setdefault(reasons[0], []).append(address)
    return tuple(Unused(reason, tuple(addresses)) for reason, addresses in lines.items())


def reason_unused(params: HyperParameters, address: str) -> str:
    """The reason why the parameter at an address has no effect in a run; "" if it has one."""
    parameter = parameter_at(address, type(params))
    if parameter is None:
        return ""
    section, _, rest = address.partition(".")
    if section != "agents":
        return _unmet(parameter, run_conditions(params))
    name = rest.partition(".")[0]
    agents = [agent for agent in params.agents if name in (agent.name, DEFAULT_AGENT)]
    reasons = [_unmet(parameter, agent_conditions(params, agent)) for agent in agents]
    return reasons[0] if reasons and all(reasons) else ""


def _players(written: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a written configuration that says who plays what."""
    agents = {
        name: {field: value for field, value in fields.items() if field in _WHO}
        for name, fields in written.get("agents", {}).items()
    }
    game = {name: written[name] for name in ("dataset", "interaction_protocol") if name in written}
    return {**game, "agents": agents}


def _added(whole: Mapping[str, Any], written: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a table that were not written themselves, by address."""
    return {
        name: value for name, value in by_address(whole).items() if name not in by_address(written)
    }


_WHO = ("model_provider", "model_name", "max_response_words", "use_lora")


def _shared(address: str) -> str:
    """The address in `agents._default` of an agent's field; any other as it is."""
    section, _, rest = address.partition(".")
    field = rest.partition(".")[2]
    return f"agents.{DEFAULT_AGENT}.{field}" if section == "agents" else address


# -------------------------------------------------------------------------------- the conditions

NO_MODEL = "there is no model (dummy)"
NOT_REAL = "nothing is really trained (dummy)"
NO_TREES = "Expert Iteration grows no trees"
NO_PAIRS = "policy gradients need no pairs"
OWN = "each agent has its own"
ONE_REPLY = "no agent is trained, and each gives one reply"


class Condition(NamedTuple):
    """A condition of a run, or of an agent in it.

    after: A more general condition that has to be met, too; "" for none.
    is_met: True (or a value that counts as true) if it is met.
    reason: The reason why parameters that need it have no effect if it is not met.
    """

    after: str
    is_met: object
    reason: str


def _unmet(parameter: Parameter, conditions: Mapping[str, Condition]) -> str:
    """The reason of the first condition of a parameter that is not met; "" if all of them are."""
    for need in parameter.needs:
        chain = []
        while need:
            chain.append(conditions[need])
            need = conditions[need].after
        for condition in reversed(chain):
            if not condition.is_met:
                return condition.reason
    return ""


@lru_cache(maxsize=64)
def agent_conditions(params: HyperParameters, agent: AgentParameters) -> dict[str, Condition]:
    """The conditions of an agent by name, over those of its run."""
    served_by, frozen = provider_kind(agent), is_frozen(agent)
    # A limit of words matters if the prompt states it, or if the limit of tokens follows from it.
    limit = agent.max_tokens_per_message is None or agent.system_prompt_template is not None
    version = params.code_validation.system_prompt_version
    verifier = any(
        s.name == agent.name and s.role == "verifier" for s in protocol_of(params).agents
    )
    own_url, meeting = agent.api_base_url is not None, any(map(meets_others, params.agents))
    custom, loss = params.trainer not in BUILT_IN_TRAINERS, loss_of(params, agent)
    by_default = agent.loss is None and (custom or isinstance(loss, DPO))
    idle = frozen or agent.update_schedule != ConstantUpdateSchedule() or meeting
    table = {
        "chat": ("", served_by != "scripted", "a script speaks"),
        "model": ("chat", served_by != "dummy", NO_MODEL),
        "provider": ("", served_by != "dummy", NO_MODEL),
        "server": ("model", served_by != "local", "the model is in this process (local)"),
        "no URL": ("server", not own_url, "api_base_url names the server"),
        "language-model server": (
            "no URL",
            served_by != "api",
            f"the model is at {provider(agent)}",
        ),
        "limit in v1": (
            "chat",
            limit or version == "v1",
            f"prompts of version {version} state no limit of words",
        ),
        "word limit": ("limit in v1", limit or not verifier, "a verifier has no limit of words"),
        "trained": ("iterations", not frozen, "it is frozen"),
        "real training": ("trained", served_by != "dummy", NOT_REAL),
        "our trainer": ("real training", served_by != "api", "OpenAI's API does not take it"),
        "lora": ("our trainer", agent.use_lora, "all weights are trained (use_lora)"),
        "stacked adapters": (
            "lora",
            not agent.fine_tune_from_scratch,
            "each training starts afresh",
        ),
        "loss": ("real training", params.trainer != "ei", "Expert Iteration imitates (sft)"),
        "dpo": ("loss", by_default or agent.loss == "dpo", f"the loss is {loss.name}"),
        "reference": (
            "our trainer",
            params.trainer != "ei" and (custom or loss.reads_reference),
            f"{'sft' if params.trainer == 'ei' else loss.name} has no reference policy",
        ),
        "idle turns": ("malt", idle, "it is trained in every iteration"),
        "opponents": ("iterations", meets_others(agent), "opponent_pool is 0"),
        "loading": ("", agent.load_checkpoint_and_parameters, "nothing is loaded"),
    }
    return {**run_conditions(params), **{name: Condition(*row) for name, row in table.items()}}


@lru_cache(maxsize=64)
def run_conditions(params: HyperParameters) -> dict[str, Condition]:
    """The conditions of a run by name."""
    table = {**_training_conditions(params), **_game_conditions(params)}
    return {name: Condition(*row) for name, row in table.items()}


UnusedRows = dict[str, tuple[str, object, str]]


def _training_conditions(params: HyperParameters) -> UnusedRows:
    agents, ei, malt, text_rl = params.agents, params.ei, params.malt, params.text_rl
    kinds = {provider_kind(agent) for agent in agents}
    trained = {provider_kind(agent) for agent in agents if is_trained(params, agent)}
    servers, models = {"api", "self-hosted"}, kinds - {"dummy", "scripted"}
    # A user's own trainer may read any parameter.
    custom, by_ei = params.trainer not in BUILT_IN_TRAINERS, params.trainer == "ei"
    by_reinforce = params.trainer == "reinforce"
    threshold = ei.rollout_selection_method == "threshold"
    rules = {agent.pair_selection_method or malt.pair_selection_method for agent in agents}
    replies = {agent.num_responses for agent in agents}
    # Without training an agent gives one reply, unless more are set for it.
    several = {*replies, *(agent.num_idle_responses for agent in agents)} != {None}
    siblings = trained or several or not malt.frozen_agents_generate_one_response
    at_once = any(len(movers) > 1 for movers in speakers(protocol_of(params)))
    return {
        "iterations": ("", params.rl.num_iterations, "nothing is trained"),
        "trained": ("iterations", trained, "no agent is trained"),
        "real training": ("trained", trained - {"dummy"}, NOT_REAL),
        "learning rate": (
            "real training",
            trained - {"api", "dummy"},
            "OpenAI sets the learning rate, which agent_lr_factor multiplies",
        ),
        "rl.lr": ("learning rate", not by_ei or ei.lr is None, "ei.lr goes before it"),
        "rl.num_epochs": ("real training", not all(agent.num_epochs for agent in agents), OWN),
        "sampling": (
            "",
            params.rl.num_iterations or not text_rl.test_on_whole_dataset,
            "nothing is trained",
        ),
        "batches": (
            "sampling",
            not by_ei or ei.rollouts_per_iteration is None,
            "ei.rollouts_per_iteration goes before it",
        ),
        "tests": ("", text_rl.test_scheme != "none", "nothing is tested (text_rl.test_scheme)"),
        "models": ("", models, "there is no model"),
        "test temperature": ("tests", models, "there is no model"),
        "tests by malt": ("tests", not by_ei, NO_TREES),
        "test trees": ("tests by malt", siblings, ONE_REPLY),
        "transcripts": ("", text_rl.save_transcripts, "no transcripts are saved"),
        "trainer": ("iterations", siblings, ONE_REPLY),
        "ei": (
            "iterations",
            by_ei or malt.num_initial_ei_iterations or custom,
            "there is no Expert Iteration",
        ),
        "replaced verdicts": (
            "ei",
            text_rl.verifier_guess_replacement_proportion or custom,
            "no verdict is replaced",
        ),
        "annealing": (
            "replaced verdicts",
            text_rl.verifier_guess_replacement_annealing != "none" or custom,
            "the share stays as it is",
        ),
        "threshold": ("", threshold or custom, "dialogues are drawn by their reward"),
        "weighted draws": ("", not threshold or custom, "dialogues are selected by a threshold"),
        "tree": ("", not by_ei, NO_TREES),
        "malt": ("tree", params.rl.num_iterations or text_rl.test_trees, "nothing is trained"),
        "siblings": ("", siblings, ONE_REPLY),
        "pairs": ("siblings", not by_reinforce, NO_PAIRS),
        "pair rule": ("pair trainer", not by_reinforce, NO_PAIRS),
        "pair trainer": ("trainer", not by_ei, NO_TREES),
        "reinforce": ("", by_reinforce or custom, f"the trainer is {params.trainer}"),
        "running baseline": (
            "",
            params.reinforce.advantage == "running_baseline" or custom,
            "the baseline is the mean of a prompt's replies",
        ),
        "malt.num_responses_per_timestep": ("siblings", None in replies, OWN),
        "malt.pair_selection_method": (
            "pairs",
            not all(agent.pair_selection_method for agent in agents),
            OWN,
        ),
        "malt.min_pair_margin": (
            "pairs",
            any(agent.min_pair_margin is None for agent in agents),
            OWN,
        ),
        "interval": ("pairs", "interval" in rules or custom, "no pair rule asks for it"),
        "frozen agents": (
            "",
            any(is_frozen(agent) and agent.num_responses is None for agent in agents) or custom,
            "no agent is frozen",
        ),
        "simultaneous turns": ("siblings", at_once or custom, "no two agents speak at once"),
        "server": ("", kinds & servers, "no model is at a server"),
        "training server": ("", trained & servers, "no model is trained at a server"),
        "jobs": (
            "",
            trained & servers or any(a.use_batch_api and provider_kind(a) == "api" for a in agents),
            "no model is trained at a server",
        ),
        "dummy": ("", "dummy" in kinds, "every agent has a model or a script"),
    }


def _game_conditions(params: HyperParameters) -> UnusedRows:
    name, dataset, common = params.interaction_protocol, params.dataset, params.protocol_common
    protocol, custom = protocol_of(params), is_reference(name)
    sequential = getattr(params, f"{name}_protocol", None)
    prover = any(agent.role == "prover" for agent in protocol.agents)
    undecided = any(verdict.discrete == NEITHER for verdict in SPECTRA[protocol.spectrum])
    turns = len(verifier_rounds(protocol, key(params.seed)))
    ours, named = dataset.startswith("builtin:"), is_reference(dataset)

    def played(*names: str) -> tuple[str, bool, str]:
        return "", name in names or custom, f"the protocol is {name}"

    return {
        "answers": ("", has_answers(protocol) or custom, "nobody writes an answer"),
        "given answers": (
            "",
            common.answers == "written" and not has_answers(find_protocol(name).unwrap()(params)),
            "a prover of this game writes the answer in any case",
        ),
        "nip_protocol": played("nip", "consultancy", "open_consultancy"),
        "debate_protocol": played("debate", "open_debate", "symmetric_debate"),
        "oracle_protocol": played("oracle"),
        "mnip_protocol": played("mnip"),
        "sequential": ("", getattr(sequential, "sequential", True), "both provers speak at once"),
        "first speaker": played(
            "nip", "consultancy", "debate", "mnip", "open_consultancy", "open_debate"
        ),
        "stances": played("nip", "adp", "mnip"),
        "prover": ("", prover or custom, "there is no prover"),
        "prover rewards": (
            "prover",
            not common.shared_reward or custom,
            "provers share the verifier's reward",
        ),
        "free verdict": ("", not common.force_guess or custom, "the verdict is forced"),
        "undecided verdicts": ("", undecided or custom, "no verdict is undecided"),
        "several turns": ("", turns > 1 or custom, "the verifier has one turn"),
        "given rows": ("", dataset not in WORLDS, f"{dataset} is generated as it is"),
        "chosen rows": ("given rows", not named, f"{dataset} gives its own rows"),
        "bad rows": ("chosen rows", not ours, f"{dataset} has no bad rows"),
        "apps": ("", not (ours or named), f"{dataset} is not APPS"),
    }
