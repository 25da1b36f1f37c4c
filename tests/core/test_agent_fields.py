"""Fields of agents, and what they change in requests, trainings and addresses.

`test_unused` shows of every field that it changes something.
"""

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from returns.pipeline import is_successful

from nip_fn.config.codec import from_dict
from nip_fn.config.compat.nip_rules import KEPT
from nip_fn.config.groups import make_groups
from nip_fn.config.trainers import losses_of
from nip_fn.keys import key
from nip_fn.params.agent import AgentParameters
from nip_fn.run.events import CreateJob, RunStarted, SampleReplies
from nip_fn.run.jobs import make_job
from nip_fn.run.request import Request, request
from nip_fn.run.state import EMPTY, rules
from nip_fn.run.step import step
from nip_fn.training.groups import Adapter
from nip_fn.training.losses import DPO, IPO
from nip_fn.training.tuning import Job
from nip_fn_adapters.experiments.loading import adapter_version
from nip_fn_adapters.experiments.outcomes import outcome
from nip_fn_adapters.experiments.prompt_files import with_templates
from nip_fn_adapters.experiments.wiring import wire
from nip_fn_adapters.providers.api.endpoints import KEY_VARIABLES
from nip_fn_adapters.providers.api.sampler import ApiModel, served_by
from nip_fn_adapters.providers.selfhosted.host import hosts_of
from nip_fn_adapters.providers.selfhosted.needs import needs_of

from ..nip_library import TEXT_AGENT
from .games import DATASET, MANY_PAIRS, RETRIES, Play, Setup, ends, make_params, play

TINY = {
    "rl": {"num_iterations": 1, "rollouts_per_iteration": 1},
    "text_rl": {"test_scheme": "none"},
}
SHORT = {"nip_protocol": {"max_message_rounds": 3}}


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
    return make_job(params, group, 1, (), losses_of(params)[group.name], key(0))


def trainings(**fields: object) -> set[str]:
    """The trainings in a run of two iterations with enough to train on, of the verifier's model."""
    params = make_params(MANY_PAIRS, RETRIES, {"agents": {"verifier": fields}})
    run = play(Setup(params, decision_rate=0.5))
    jobs = [e.job.name for moment in run for e in moment.emitted if isinstance(e, CreateJob)]
    return {name for name in jobs if name.startswith("verifier")}


def wired(keys: dict[str, str], **fields: object) -> str:
    """The problem for which wiring is refused, and its kind; "" if there is an adapter."""
    params = make_params({"agents": {"_default": fields}})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NIP_FN_TRUST", "1")  # as if the addresses had been given to the command
        for name in KEY_VARIABLES.values():
            patch.delenv(name, raising=False)
        for name, value in keys.items():
            patch.setenv(name, value)
        wiring = outcome(wire)(params, Path("run"))
    return "" if is_successful(wiring) else f"{wiring.failure()} ({wiring.failure().kind})"


def asked_at(**fields: object) -> ApiModel:
    """The endpoints and settings of an agent with these fields."""
    keys = {**dict.fromkeys(KEY_VARIABLES.values(), "usual"), "MINE": "own"}
    agent = make_params({"agents": {"_default": fields}}).agents[0]
    served: ApiModel = served_by(agent, keys).unwrap()
    return served


def urls(**fields: object) -> list[str]:
    """The addresses at which an agent with these fields is asked."""
    return [server.url for server in asked_at(**fields).endpoints]


# ----------------------------------------------------------------------------- requests


def test_defaults_are_those_of_the_nip_library() -> None:
    ours = {field.name: field.default for field in msgspec.structs.fields(AgentParameters)}
    ours["update_schedule"] = {"_type": type(ours["update_schedule"]).__name__}
    # Saved as a table of ones, which is none here.
    shared = set(KEPT["agents.*", "agents.*"].split()) - {"agent_lr_factor"}
    assert {name: ours[name] for name in shared} == {name: TEXT_AGENT[name] for name in shared}


@pytest.mark.parametrize("field", ["temperature", "top_p", "repetition_penalty"])
def test_how_to_sample_is_in_each_request(field: str) -> None:
    assert getattr(asked("verifier", **{field: 0.5}), field) == 0.5
    assert getattr(asked("verifier"), field) is None


def test_the_model_is_named_in_requests_and_trainings() -> None:
    assert asked("prover", model_name="a").model == job(model_name="a").model == "a"


def test_words_are_stated_to_a_prover_and_limit_the_tokens_of_all() -> None:
    prover, verifier = (asked(agent, max_response_words=77) for agent in ("prover", "verifier"))
    assert "77 words" in prover.chat[0].content
    assert prover.max_tokens == verifier.max_tokens == 616
    assert asked("prover", max_tokens_per_message=7).max_tokens == 7


def test_a_supervisor_speaks_by_its_name() -> None:
    plain, instructed, renamed = (
        asked("prover", **fields).chat[-1].name
        for fields in (
            {"use_supervisor_message": "none"},
            {"use_supervisor_message": "all"},
            {"use_supervisor_message": "all", "supervisor_name": "Boss"},
        )
    )
    assert plain != instructed == "Supervisor"
    assert renamed == "Boss"


def test_attempts_are_counted() -> None:
    state = tiny_run(num_invalid_generation_retries=3)[0].state
    assert rules(state).attempts == (3, 3)


def test_a_template_is_read_from_its_file_and_rendered(tmp_path: Path) -> None:
    file = tmp_path / "t.jinja"
    file.write_text("In {{ max_response_words }} words: {{ question }}")
    agents = {"agents": {"_default": {"system_prompt_template_path": str(file)}}}
    assert "system_prompt_template_path" in str(from_dict(agents).failure())
    fields = with_templates(agents)["agents"]["_default"]
    assert asked("prover", **fields).chat[0].content.startswith("In 150 words: Is ")


# ---------------------------------------------------------------------------- trainings


@pytest.mark.parametrize(
    ("attribute", "value", "fields"),
    [
        ("learning_rate", 2e-5, {"agent_lr_factor": 2.0}),
        ("num_epochs", 7, {"num_epochs": 7}),
        ("loss", DPO(beta=0.5), {"dpo_beta": 0.5}),
        ("loss", DPO(sft_weight=0.5), {"dpo_sft_weight": 0.5, "model_provider": "local"}),
        ("loss", IPO(), {"loss": "ipo", "model_provider": "local"}),
        ("loss", IPO(0.3), {"loss": {"_type": "ipo", "beta": 0.3}, "model_provider": "local"}),
        ("use_lora", False, {"use_lora": False}),
        ("lora_rank", 8, {"lora_rank": 8}),
        ("lora_alpha", 8, {"lora_alpha": 8}),
        ("lora_alpha", 128, {"lora_alpha_scale": 2.0}),
        ("lora_dropout", 0.5, {"lora_dropout": 0.5}),
        ("batch_size", 5, {"per_device_train_batch_size": 5}),
        ("gradient_checkpointing", "on", {"gradient_checkpointing": "on"}),
        ("base_precision", "bf16", {"base_precision": "bf16"}),
    ],
)
def test_a_training_has_the_agent_s_fields(
    attribute: str, value: object, fields: dict[str, object]
) -> None:
    assert getattr(job(**fields), attribute) == value != getattr(job(), attribute)


def test_a_training_starts_afresh_or_goes_on() -> None:
    starts = [job(True, fine_tune_from_scratch=scratch).start for scratch in (True, False)]
    assert starts == [None, "old"]
    assert job(True, stack_lora_adapters=True, fine_tune_from_scratch=False).stack
    assert not job(True, fine_tune_from_scratch=False).stack
    assert not job(stack_lora_adapters=True).stack  # nothing to stack on yet


def test_an_agent_is_trained_when_it_is_due_and_not_frozen() -> None:
    odd = {"_type": "ContiguousPeriodicUpdateSchedule", "period": 2, "start": 1, "stop": 2}
    assert trainings(freeze_agent=True) == set()
    assert trainings(update_schedule=odd) == {"verifier-1"} < trainings()


def test_agents_of_a_group_share_a_model() -> None:
    shared = make_groups(make_params({"agents": {"_default": {"shared_model_group": "both"}}}))
    assert [group.agents for group in shared] == [(0, 1)]
    assert len(make_groups(make_params())) == 2


def test_an_adapter_that_is_loaded_is_served() -> None:
    """tests/cli/test_loading.py has the whole way."""
    fields = {"load_checkpoint_and_parameters": True, "checkpoint_run_id": "a"}
    params = make_params({"agents": {"prover": fields}})
    old = Adapter("prover-1-00", 1, None, None, "")
    state, _ = step(EMPTY, RunStarted(params, DATASET, "0", (("prover", old),)))
    assert [group.serving for group in state.groups] == [old.name, None]


def test_a_version_is_an_iteration() -> None:
    lineage = tuple(Adapter(f"prover-{i}-00", i, None, None, "") for i in range(3))
    versions = [adapter_version(lineage, v).unwrap() for v in ("latest", "1", 0, "base")]
    assert versions == [lineage[2], lineage[1], lineage[0], None]


# --------------------------------------------------------------------------- selection


def pairs_of(**fields: object) -> dict[str, float]:
    """The pairs selected for each agent in a run in which the verifier has these fields."""
    few = {"rl": {"num_iterations": 1, "rollouts_per_iteration": 8}}
    params = make_params(MANY_PAIRS, RETRIES, few, {"agents": {"verifier": fields}})
    state = ends(play(Setup(params, decision_rate=0.5)), "sample")[0]
    metrics = dict(state.rows[-1].metrics)
    return {name: metrics[f"{name}.pairs"] for name in ("prover", "verifier")}


def test_pair_rules_and_margins_are_the_agent_s_own() -> None:
    plain = pairs_of()
    every, distant = pairs_of(pair_selection_method="all"), pairs_of(min_pair_margin=1.5)
    assert distant["verifier"] < plain["verifier"] < every["verifier"]
    assert distant["prover"] == plain["prover"] == every["prover"] > 0


# --------------------------------------------------------------------------- addresses


def test_providers_have_addresses_unless_others_are_given() -> None:
    addresses = [urls(model_provider=name)[0] for name in ("OpenAI", "OpenRouter", "SelfHosted")]
    assert addresses == [
        "https://api.openai.com/v1",
        "https://openrouter.ai/api/v1",
        "http://localhost:8000/v1",
    ]
    assert urls(api_base_url="http://a/v1/, http://b/v1") == ["http://a/v1", "http://b/v1"]


def test_self_hosted_models_are_at_their_host_and_port() -> None:
    hosted = {"model_provider": "SelfHosted", "language_model_server_scheme_host": "https://gpu-1/"}
    assert urls(**hosted, vllm_server_port=8001) == ["https://gpu-1:8001/v1"]
    params = make_params({"agents": {"_default": {**hosted, "language_model_server_port": 5001}}})
    hosts = hosts_of(params, Path("run"), {}).unwrap()
    assert {host.client.server.url for host in hosts.values()} == {"https://gpu-1:5001"}


def test_quantization_is_asked_for() -> None:
    hosted = {"model_provider": "SelfHosted", "quantization": "bitsandbytes"}
    params = make_params({"agents": {"_default": hosted}})
    assert needs_of(params, "http://localhost:5000").quantization == "bitsandbytes"


def test_keys_can_be_named() -> None:
    keys = [asked_at(api_key_variable=name).endpoints[0].key for name in (None, "MINE")]
    assert keys == ["usual", "own"]


@pytest.mark.parametrize("rule", ["auto", "all", "one"])
def test_replies_come_together_or_not(rule: str) -> None:
    """As tests/adapters/test_api_sampler.py shows at a server."""
    assert asked_at(replies_per_request=rule).replies_per_request == rule


def test_batches_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As tests/adapters/test_api_batches.py shows at a server."""
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    chat, batch = (
        wire(make_params({"agents": {"_default": {"use_batch_api": batched}}}), Path("run"))
        for batched in (False, True)
    )
    assert type(chat.sampler) is not type(batch.sampler)


def test_dummies_need_no_provider() -> None:
    assert wired({}, use_dummy_api=True) == "" != wired({}, use_dummy_api=False)


def test_a_provider_that_cannot_train_serves_agents_that_are_frozen() -> None:
    keys = {"OPENROUTER_API_KEY": "k"}
    line = wired(keys, model_provider="OpenRouter")
    assert "openrouter trains no models; freeze the agent (agents." in line
    assert wired(keys, model_provider="OpenRouter", freeze_agent=True) == ""


@pytest.mark.parametrize(("provider", "variable"), sorted(KEY_VARIABLES.items()))
def test_a_key_is_asked_for_before_anything_else(provider: str, variable: str) -> None:
    fields = {"model_provider": provider, "freeze_agent": True}
    line = wired({}, **fields)
    assert line == (
        f"agents.prover: provider {provider.lower()} needs an API key; set {variable} in "
        f"the environment or in a file .env (usage)"
    )
    assert wired({variable: "k"}, **fields) == ""
    assert "set MY_KEY in the environment" in wired({}, **fields, api_key_variable="MY_KEY")


def test_a_model_that_only_this_process_has_is_not_asked_for_at_a_provider() -> None:
    line = wired({"OPENAI_API_KEY": "k"}, model_name="builtin:tea")
    assert line.startswith("agents.prover.model_name: builtin:tea is served by provider ")


@pytest.mark.parametrize(
    "address",
    [
        *("", "localhost:8000/v1", "http://", "http://[::1", "ftp://x/v1", "http://a:99999/v1"),
        *("http://a b/v1", "http://a/v1, nothing", "https://me:sk-1@a/v1", "https://a/v1?key=sk-1"),
    ],
)
def test_an_address_at_which_nothing_can_be_asked_is_refused(address: str) -> None:
    line = wired({"OPENAI_API_KEY": "k"}, api_base_url=address)
    assert line.startswith("agents.prover.api_base_url: ")
    assert "sk" not in line
    assert line.endswith(" (usage)")
