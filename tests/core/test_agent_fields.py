"""Every field of the nip library's text agents: its default, and what shows that it is honoured.

A field is honoured (something that a run does depends on it), or refused: set to anything but its
default it is an error that says why.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
import typer
from msgspec.structs import replace
from returns.result import Success

from nip_fn.config.codec import from_dict, load_agent
from nip_fn.config.compat.nip_rules import OWN_AGENT_FIELDS
from nip_fn.keys import key
from nip_fn.params.agent import AgentParameters, ConstantUpdateSchedule, fields_in
from nip_fn.run.events import CreateJob, RunStarted, SampleReplies
from nip_fn.run.request import Request, request
from nip_fn.run.state import EMPTY, rules
from nip_fn.run.step import step
from nip_fn.training.groups import Adapter, make_groups
from nip_fn.training.jobs import Job, make_job
from nip_fn_adapters.providers.api.endpoints import KEY_VARIABLES
from nip_fn_adapters.providers.api.sampler import ApiModel, served_by
from nip_fn_adapters.providers.selfhosted.host import hosts_of
from nip_fn_adapters.providers.selfhosted.needs import needs_of
from nip_fn_cli.loading import adapter_version
from nip_fn_cli.shown.exits import Exit
from nip_fn_cli.templates import with_templates
from nip_fn_cli.wiring import wire

from .games import DATASET, MANY_PAIRS, RETRIES, Play, Setup, ends, make_params, play

TINY = {
    "rl": {"num_iterations": 1, "rollouts_per_iteration": 1},
    "text_rl": {"test_scheme": "none"},
}
SHORT = {"nip_protocol": {"max_message_rounds": 3}}


# ------------------------------------------------------------------------------------ evidence


def tiny_run(**fields: object) -> Play:
    """A run of one tree, with these fields of both agents."""
    return play(Setup(make_params(TINY, SHORT, {"agents": {"_default": fields}}), 0.0, 0.0))


def asked(agent: str, **fields: object) -> Request:
    """The first request for an agent."""
    requests = (
        request(moment.state, effect)
        for moment in tiny_run(**fields)
        for effect in moment.emitted
        if isinstance(effect, SampleReplies)
    )
    return next(one for one in requests if one.agent == agent)


def job(trained_before: bool = False, /, **fields: object) -> Job:
    """A training of the prover's model, perhaps not the first one."""
    params = make_params({"agents": {"_default": fields}})
    (group, *_) = make_groups(params)
    if trained_before:
        group = replace(group, lineage=(Adapter("old", 0, None, None, ""),))
    return make_job(params, group, 1, (), key(0))


def trainings(**fields: object) -> set[str]:
    """The trainings in a run of two iterations with enough to train on, of the verifier's model."""
    params = make_params(MANY_PAIRS, RETRIES, {"agents": {"verifier": fields}})
    run = play(Setup(params, decision_rate=0.5))
    jobs = [e.job.name for moment in run for e in moment.emitted if isinstance(e, CreateJob)]
    return {name for name in jobs if name.startswith("verifier")}


def what_is_loaded_is_served() -> bool:
    """Two fields that go together; tests/cli/test_loading.py has the whole way."""
    fields = {"load_checkpoint_and_parameters": True, "checkpoint_run_id": "a"}
    params = make_params({"agents": {"prover": fields}})
    old = Adapter("prover-1-00", 1, None, None, "")
    state, _ = step(EMPTY, RunStarted(params, DATASET, "0", (("prover", old),)))
    return [group.serving for group in state.groups] == [old.name, None]


def a_version_is_an_iteration() -> bool:
    lineage = tuple(Adapter(f"prover-{i}-00", i, None, None, "") for i in range(3))
    return [adapter_version(lineage, v).unwrap() for v in ("latest", "1", 0, "base")] == [
        lineage[2],
        lineage[1],
        lineage[0],
        None,
    ]


def another_part_can_be_loaded() -> bool:
    """tests/cli/test_loading.py has the whole way."""
    table = load_agent({"checkpoint_agent": "prover"}, {"checkpoint_agent": None, "lora_rank": 8})
    return table == {"checkpoint_agent": "prover", "lora_rank": 8}


def wired(keys: dict[str, str], **fields: object) -> str:
    """The message with which wiring ends the command; "" if there is an adapter."""
    params = make_params({"agents": {"_default": fields}})
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nip_fn_cli.shown.exits.say", said.append)
        patch.setenv("NIP_FN_TRUST", "1")  # as if the addresses had been given to the command
        for name in KEY_VARIABLES.values():
            patch.delenv(name, raising=False)
        for name, value in keys.items():
            patch.setenv(name, value)
        try:
            wire(params, Path("run"))
        except typer.Exit as ended:
            said.append(f" ({ended.exit_code})")
    return "".join(said)


def sent(field: str, value: object) -> Callable[[], bool]:
    """A check that requests have that value of the field of the same name, and none without it."""

    def check() -> bool:
        with_it, without = asked("verifier", **{field: value}), asked("verifier")
        return getattr(with_it, field) == value and getattr(without, field) is None

    return check


def trained(name: str, value: object, **fields: object) -> Callable[[], bool]:
    """A check that trainings have that value with these fields, and another without them."""
    return lambda: getattr(job(**fields), name) == value != getattr(job(), name)


def words_are_asked_for() -> bool:
    told = asked("prover", max_response_words=77)
    limited = asked("verifier", max_response_words=77)
    return "77 words" in told.chat[0].content and told.max_tokens == limited.max_tokens == 616


def further_fields_are_sent() -> bool:
    """tests/adapters/test_refusals.py has the rest of the way."""
    fields = {"reasoning_effort": "low", "provider": {"only": ["a", 1, 0.5, True]}}
    sent = asked("verifier", extra_request_fields=fields)
    return fields_in(sent.extra_fields) == fields and asked("verifier").extra_fields is None


def tokens_are_limited() -> bool:
    return asked("prover", max_tokens_per_message=7).max_tokens == 7


def model_is_named() -> bool:
    return asked("prover", model_name="a").model == job(model_name="a").model == "a"


def supervisor_speaks() -> bool:
    plain, told = (asked("prover", use_supervisor_message=rule) for rule in ("none", "all"))
    return told.chat[-1].name == "Supervisor" != plain.chat[-1].name


def supervisor_has_a_name() -> bool:
    told = asked("prover", use_supervisor_message="all", supervisor_name="Boss")
    return told.chat[-1].name == "Boss"


def attempts_are_counted() -> bool:
    state = tiny_run(num_invalid_generation_retries=3)[0].state
    return rules(state).attempts == (3, 3)


def asked_for(**fields: object) -> list[int]:
    """The number of replies that the first tree of a run asks for, request by request."""
    effects = (effect for moment in tiny_run(**fields) for effect in moment.emitted)
    found = [e for e in effects if isinstance(e, SampleReplies)]
    return [sum(e.ask.path == path for e in found) for path in ((), (0,), (0, 0))]


def turns_have_replies_of_their_own() -> bool:
    return asked_for(num_responses=[3, 1]) == [3, 3, 1] != asked_for() == [2, 2, 2]


def idle_agents_have_replies_of_their_own() -> bool:
    idle = {"num_idle_responses": 3}
    frozen = {"freeze_agent": True}
    return asked_for(**idle) == [2, 2, 2] and asked_for(**frozen, **idle) == [3, 3, 3]


def pairs_of(**fields: object) -> dict[str, float]:
    """The pairs selected for each agent in a run in which the verifier has these fields."""
    few = {"rl": {"num_iterations": 1, "rollouts_per_iteration": 8}}
    params = make_params(MANY_PAIRS, RETRIES, few, {"agents": {"verifier": fields}})
    state = ends(play(Setup(params, decision_rate=0.5)), "sample")[0]
    metrics = dict(state.rows[-1].metrics)
    return {name: metrics[f"{name}.pairs"] for name in ("prover", "verifier")}


def pair_rules_are_the_agent_s_own() -> bool:
    own, plain = pairs_of(pair_selection_method="all"), pairs_of()
    return own["verifier"] > plain["verifier"] > 0 and own["prover"] == plain["prover"] > 0


def margins_are_the_agent_s_own() -> bool:
    own, plain = pairs_of(min_pair_margin=1.5), pairs_of()
    return own["verifier"] < plain["verifier"] and own["prover"] == plain["prover"] > 0


def chosen_replies_are_imitated() -> bool:
    """As tests/adapters/test_local_dpo.py shows of a training."""
    own = {"model_provider": "local", "dpo_sft_weight": 0.5}
    return job(**own).sft_weight == 0.5 != job().sft_weight


def memory_can_be_traded() -> bool:
    """As tests/adapters/test_local_memory.py shows of a training."""
    fields = {"gradient_checkpointing": "on", "base_precision": "bf16"}
    own = job(model_provider="local", **fields)
    return {name: getattr(own, name) for name in fields} == fields


def earlier_share(**fields: object) -> float:
    """The share of the last trees that an earlier model of the prover played."""
    more = {"rl": {"num_iterations": 2}}
    params = make_params(MANY_PAIRS, RETRIES, more, {"agents": {"verifier": fields}})
    state = ends(play(Setup(params, decision_rate=0.5)), "sample")[-1]
    return dict(state.rows[-1].metrics).get("prover.earlier_share", 0.0)


def earlier_models_are_met() -> bool:
    return earlier_share(opponent_pool=2) > 0.25 and earlier_share() == 0


def scripts_are_met() -> bool:
    return earlier_share(opponent_scripts=["mimic"]) > 0.25


def shares_of_trees_are_set() -> bool:
    return earlier_share(opponent_pool=2, opponent_pool_share=1.0) == 1


def model_is_shared() -> bool:
    params = make_params({"agents": {"_default": {"shared_model_group": "both"}}})
    shared, apart = make_groups(params), make_groups(make_params())
    return [group.agents for group in shared] == [(0, 1)] and len(apart) == 2


def starts_afresh_or_goes_on() -> bool:
    starts = [job(True, fine_tune_from_scratch=scratch).start for scratch in (True, False)]
    return starts == [None, "old"]


def frozen_is_not_trained() -> bool:
    return trainings(freeze_agent=True) == set() < trainings()


def other_iterations_are_left_out() -> bool:
    odd = {"_type": "ContiguousPeriodicUpdateSchedule", "period": 2, "start": 1, "stop": 2}
    return trainings(update_schedule=odd) == {"verifier-1"} < trainings()


def template_is_read_and_rendered() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "t.jinja"
        file.write_text("In {{ max_response_words }} words: {{ question }}")
        agents = {"agents": {"_default": {"system_prompt_template_path": str(file)}}}
        fields = with_templates(agents)["agents"]["_default"]
    refused = str(from_dict(agents).failure())
    prompt = asked("prover", **fields).chat[0].content
    return "system_prompt_template_path" in refused and prompt.startswith("In 150 words: Is ")


def dummies_need_no_provider() -> bool:
    return wired({}, use_dummy_api=True) == "" != wired({}, use_dummy_api=False)


def asked_at(**fields: object) -> ApiModel:
    """The endpoints and settings of an agent with these fields."""
    keys = {**dict.fromkeys(KEY_VARIABLES.values(), "usual"), "MINE": "own"}
    agent = make_params({"agents": {"_default": fields}}).agents[0]
    served: ApiModel = served_by(agent, keys).unwrap()
    return served


def urls(**fields: object) -> list[str]:
    """The addresses at which an agent with these fields is asked."""
    return [server.url for server in asked_at(**fields).endpoints]


def providers_have_addresses() -> bool:
    addresses = [urls(model_provider=name)[0] for name in ("OpenAI", "OpenRouter", "SelfHosted")]
    return addresses == [
        "https://api.openai.com/v1",
        "https://openrouter.ai/api/v1",
        "http://localhost:8000/v1",
    ]


def own_servers_have_addresses() -> bool:
    own = {"model_provider": "SelfHosted", "language_model_server_scheme_host": "http://gpu-1"}
    return urls(**own, vllm_server_port=8001) == ["http://gpu-1:8001/v1"]


def language_model_servers_have_addresses() -> bool:
    own = {"model_provider": "SelfHosted", "language_model_server_scheme_host": "https://gpu-1/"}
    params = make_params({"agents": {"_default": {**own, "language_model_server_port": 5001}}})
    hosts = hosts_of(params, Path("run"), {}).unwrap()
    return {host.client.server.url for host in hosts.values()} == {"https://gpu-1:5001"}


def quantization_is_asked_for() -> bool:
    own = {"model_provider": "SelfHosted", "quantization": "bitsandbytes"}
    params = make_params({"agents": {"_default": own}})
    return needs_of(params, "http://localhost:5000").quantization == "bitsandbytes"


def addresses_can_be_given() -> bool:
    return urls(api_base_url="http://a/v1/, http://b/v1") == ["http://a/v1", "http://b/v1"]


def keys_can_be_named() -> bool:
    keys = [asked_at(api_key_variable=name).endpoints[0].key for name in (None, "MINE")]
    return keys == ["usual", "own"]


def replies_come_together_or_not() -> bool:
    """As tests/adapters/test_api_sampler.py shows at a server."""
    return all(
        asked_at(replies_per_request=how).replies_per_request == how
        for how in ("auto", "all", "one")
    )


def batches_are_asked_for() -> bool:
    """As tests/adapters/test_api_batches.py shows at a server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "k")
        one, other = (
            wire(make_params({"agents": {"_default": {"use_batch_api": batched}}}), Path("run"))
            for batched in (False, True)
        )
    return type(one.sampler) is not type(other.sampler)


# ------------------------------------------------------------------------------------ the table


class Honoured(NamedTuple):
    """Something that a run does depends on it."""

    shown_by: Callable[[], bool]


class Refused(NamedTuple):
    """It is an error to set it."""

    value: object
    reason: str  # a word of it


TENSORS, WANDB = "networks other than language models", "Weights & Biases"

# name: (default, what becomes of it).  The defaults of checkpoint_entity and checkpoint_project are
# those of an environment that names no entity and no project.
FIELDS: dict[str, tuple[object, Honoured | Refused]] = {
    "agent_lr_factor": (
        None,
        Honoured(trained("learning_rate", 2e-5, agent_lr_factor={"actor": 2.0})),
    ),
    "body_lr_factor": (None, Refused({"actor": 2.0}, TENSORS)),
    "update_schedule": (ConstantUpdateSchedule(), Honoured(other_iterations_are_left_out)),
    "use_manual_architecture": (False, Refused(True, TENSORS)),
    "normalize_message_history": (False, Refused(True, TENSORS)),
    "load_checkpoint_and_parameters": (False, Honoured(what_is_loaded_is_served)),
    "checkpoint_entity": ("", Refused("a-team", WANDB)),
    "checkpoint_project": ("", Refused("proofs", WANDB)),
    "checkpoint_run_id": (None, Honoured(what_is_loaded_is_served)),
    "checkpoint_version": ("latest", Honoured(a_version_is_an_iteration)),
    "use_orthogonal_initialisation": (True, Refused(False, TENSORS)),
    "orthogonal_initialisation_gain": (1.0, Refused(2.0, TENSORS)),
    "model_provider": ("OpenAI", Honoured(providers_have_addresses)),
    "model_name": ("gpt-4o-mini-2024-07-18", Honoured(model_is_named)),
    "language_model_server_scheme_host": (
        "http://localhost",
        Honoured(own_servers_have_addresses),
    ),
    "language_model_server_port": (
        5000,
        Honoured(language_model_servers_have_addresses),
    ),
    "vllm_server_port": (8000, Honoured(own_servers_have_addresses)),
    "use_dummy_api": (False, Honoured(dummies_need_no_provider)),
    "shared_model_group": (None, Honoured(model_is_shared)),
    "temperature": (None, Honoured(sent("temperature", 0.5))),
    "top_p": (None, Honoured(sent("top_p", 0.5))),
    "repetition_penalty": (None, Honoured(sent("repetition_penalty", 1.5))),
    "fine_tune_from_scratch": (True, Honoured(starts_afresh_or_goes_on)),
    "freeze_agent": (False, Honoured(frozen_is_not_trained)),
    "quantization": ("none", Honoured(quantization_is_asked_for)),
    "num_epochs": (None, Honoured(trained("num_epochs", 7, num_epochs=7))),
    "dpo_beta": (None, Honoured(trained("beta", 0.5, dpo_beta=0.5))),
    "use_lora": (True, Honoured(trained("use_lora", False, use_lora=False))),
    "lora_rank": (64, Honoured(trained("lora_rank", 8, lora_rank=8))),
    "lora_alpha": (None, Honoured(trained("lora_alpha", 8, lora_alpha=8))),
    "lora_alpha_scale": (1.0, Honoured(trained("lora_alpha", 128, lora_alpha_scale=2.0))),
    "lora_dropout": (0.05, Honoured(trained("lora_dropout", 0.5, lora_dropout=0.5))),
    "stack_lora_adapters": (
        False,
        Honoured(
            lambda: (
                job(True, stack_lora_adapters=True, fine_tune_from_scratch=False).stack
                and not job(True, fine_tune_from_scratch=False).stack
                and not job(stack_lora_adapters=True).stack  # nothing to stack on yet
            )
        ),
    ),
    "per_device_train_batch_size": (
        2,
        Honoured(trained("batch_size", 5, per_device_train_batch_size=5)),
    ),
    "system_prompt_template_path": (None, Honoured(template_is_read_and_rendered)),
    "use_supervisor_message": ("none", Honoured(supervisor_speaks)),
    "supervisor_name": ("Supervisor", Honoured(supervisor_has_a_name)),
    "max_response_words": (150, Honoured(words_are_asked_for)),
    "max_tokens_per_message": (None, Honoured(tokens_are_limited)),
    "num_invalid_generation_retries": (20, Honoured(attempts_are_counted)),
}

# What the nip library does not have; tests/core/test_chat.py and others show the rest.
OWN: dict[str, Callable[[], bool]] = {
    "api_base_url": addresses_can_be_given,
    "api_key_variable": keys_can_be_named,
    "replies_per_request": replies_come_together_or_not,
    "use_batch_api": batches_are_asked_for,
    "extra_request_fields": further_fields_are_sent,
    "num_responses": turns_have_replies_of_their_own,
    "checkpoint_agent": another_part_can_be_loaded,
    "num_idle_responses": idle_agents_have_replies_of_their_own,
    "pair_selection_method": pair_rules_are_the_agent_s_own,
    "min_pair_margin": margins_are_the_agent_s_own,
    "dpo_sft_weight": chosen_replies_are_imitated,
    "gradient_checkpointing": memory_can_be_traded,
    "base_precision": memory_can_be_traded,
    "opponent_pool": earlier_models_are_met,
    "opponent_scripts": scripts_are_met,
    "opponent_pool_share": shares_of_trees_are_set,
}


def of_kind(kind: type) -> list[str]:
    """The fields of which this becomes."""
    return [name for name, (_, fate) in FIELDS.items() if isinstance(fate, kind)]


def test_our_agents_have_these_fields_and_defaults_and_a_few_of_their_own() -> None:
    ours = {field.name: field.default for field in msgspec.structs.fields(AgentParameters)}
    assert set(OWN_AGENT_FIELDS) == {
        "name",
        "dpo_reference",
        "system_prompt_template",
        "name_speakers_in_content",
        "merge_same_role_messages",
        *OWN,
    }
    theirs = {name: default for name, default in ours.items() if name not in OWN_AGENT_FIELDS}
    assert theirs == {name: default for name, (default, _) in FIELDS.items()}


@pytest.mark.parametrize("name", of_kind(Honoured))
def test_a_field_is_honoured(name: str) -> None:
    fate = FIELDS[name][1]
    assert isinstance(fate, Honoured)
    assert fate.shown_by()


@pytest.mark.parametrize("name", OWN)
def test_a_field_of_our_own_is_honoured(name: str) -> None:
    assert OWN[name]()


@pytest.mark.parametrize("name", of_kind(Refused))
def test_a_field_is_refused_with_the_reason(name: str) -> None:
    default, fate = FIELDS[name]
    assert isinstance(fate, Refused)
    line = str(from_dict({"agents": {"prover": {name: fate.value}}}).failure())
    assert line.startswith(f"agents.prover.{name}: ")
    assert fate.reason in line
    assert isinstance(from_dict({"agents": {"prover": {name: default}}}), Success)


def test_a_provider_that_cannot_train_serves_agents_that_are_frozen() -> None:
    keys = {"OPENROUTER_API_KEY": "k"}
    line = wired(keys, model_provider="OpenRouter")
    assert "openrouter trains no models; freeze the agent (--set " in line
    assert wired(keys, model_provider="OpenRouter", freeze_agent=True) == ""


@pytest.mark.parametrize(("provider", "variable"), sorted(KEY_VARIABLES.items()))
def test_a_key_is_asked_for_before_anything_else(provider: str, variable: str) -> None:
    fields = {"model_provider": provider, "freeze_agent": True}
    line = wired({}, **fields)
    assert line == (
        f"nip-fn: agents.prover: provider {provider.lower()} needs an API key; set {variable} in "
        f"the environment or in a file .env ({int(Exit.USAGE)})"
    )
    assert wired({variable: "k"}, **fields) == ""
    assert "set MY_KEY in the environment" in wired({}, **fields, api_key_variable="MY_KEY")


def test_a_model_that_only_this_process_has_is_not_asked_for_at_a_provider() -> None:
    line = wired({"OPENAI_API_KEY": "k"}, model_name="builtin:tea")
    assert line.startswith("nip-fn: agents.prover.model_name: builtin:tea is served by provider ")


@pytest.mark.parametrize(
    "address",
    [
        *("", "localhost:8000/v1", "http://", "http://[::1", "ftp://x/v1", "http://a:99999/v1"),
        *("http://a b/v1", "http://a/v1, nothing", "https://me:sk-1@a/v1", "https://a/v1?key=sk-1"),
    ],
)
def test_an_address_at_which_nothing_can_be_asked_is_refused(address: str) -> None:
    line = wired({"OPENAI_API_KEY": "k"}, api_base_url=address)
    assert line.startswith("nip-fn: agents.prover.api_base_url: ")
    assert "sk" not in line
    assert line.endswith(f" ({int(Exit.USAGE)})")
