"""Every field of the nip library's text agents: its default, and what shows that it is honoured.

A field is honoured (something that a run does depends on it), refused (set to anything but its
default it is an error that says why), or wired: it describes a provider that this version does not
have, so it is kept as data, and the command ends with a line when it comes to the wiring.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import typer
from msgspec.structs import replace
from returns.result import Success

from nip_fn.agent_params import AgentParameters, ConstantUpdateSchedule
from nip_fn.config import from_dict, get, merge, to_dict
from nip_fn.events import AskTree, CreateJob, RunStarted
from nip_fn.finetune import Adapter, Job, make_groups, make_job
from nip_fn.keys import key
from nip_fn.params import HyperParameters
from nip_fn.reference_rules import OWN_AGENT_FIELDS
from nip_fn.requests import Request, request
from nip_fn.run import step
from nip_fn.state import EMPTY, rules
from nip_fn_cli.exits import Exit
from nip_fn_cli.loading import chosen_version
from nip_fn_cli.templates import with_templates
from nip_fn_cli.wiring import wire

from .games import DATASET, MANY_PAIRS, RETRIES, Play, Setup, make_params, play

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
        if isinstance(effect, AskTree)
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
    return [chosen_version("", lineage, v) for v in ("latest", "1", 0)] == [
        lineage[2],
        lineage[1],
        lineage[0],
    ]


def wired(**fields: object) -> str:
    """What the command says when it comes to the wiring; "" if there is an adapter."""
    params = make_params({"agents": {"_default": fields}})
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nip_fn_cli.exits.say", said.append)
        try:
            wire(params, Path("run"))
        except typer.Exit as ended:
            said.append(f" ({ended.exit_code})")
    return "".join(said)


def sent(field: str, value: object) -> Callable[[], bool]:
    """Whether requests have that value of the field of the same name, and none without it."""

    def check() -> bool:
        with_it, without = asked("verifier", **{field: value}), asked("verifier")
        return getattr(with_it, field) == value and getattr(without, field) is None

    return check


def trained(name: str, value: object, **fields: object) -> Callable[[], bool]:
    """Whether trainings have that value with these fields, and another without them."""
    return lambda: getattr(job(**fields), name) == value != getattr(job(), name)


def words_are_asked_for() -> bool:
    told = asked("prover", max_response_words=77)
    limited = asked("verifier", max_response_words=77)
    return "77 words" in told.chat[0].content and told.max_tokens == limited.max_tokens == 115


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
    refused = from_dict(agents).failure()
    prompt = asked("prover", **fields).chat[0].content
    return "system_prompt_template_path" in refused and prompt.startswith("In 150 words: Is ")


def dummies_need_no_provider() -> bool:
    return wired(use_dummy_api=True) == "" != wired(use_dummy_api=False)


# ------------------------------------------------------------------------------------ the table


class Honoured(NamedTuple):
    """Something that a run does depends on it."""

    shown_by: Callable[[], bool]


class Refused(NamedTuple):
    """It is an error to set it."""

    value: object
    reason: str  # a word of it


class Wired(NamedTuple):
    """It describes a provider that this version does not have: data, until the wiring."""

    fields: dict[str, object]
    reason: str


def self_hosted(**fields: object) -> Wired:
    return Wired({"model_provider": "SelfHosted", **fields}, "SelfHosted is not served")


TENSORS, WANDB = "networks other than language models", "Weights & Biases"

# name: (default, what becomes of it).  The defaults of checkpoint_entity and checkpoint_project are
# those of an environment that names no entity and no project.
FIELDS: dict[str, tuple[object, Honoured | Refused | Wired]] = {
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
    "model_provider": (
        "OpenAI",
        Wired({"model_provider": "OpenRouter"}, "OpenRouter is not served"),
    ),
    "model_name": ("gpt-4o-mini-2024-07-18", Honoured(model_is_named)),
    "language_model_server_scheme_host": (
        "http://localhost",
        self_hosted(language_model_server_scheme_host="http://gpu-1"),
    ),
    "language_model_server_port": (5000, self_hosted(language_model_server_port=5001)),
    "vllm_server_port": (8000, self_hosted(vllm_server_port=8001)),
    "use_dummy_api": (False, Honoured(dummies_need_no_provider)),
    "shared_model_group": (None, Honoured(model_is_shared)),
    "temperature": (None, Honoured(sent("temperature", 0.5))),
    "top_p": (None, Honoured(sent("top_p", 0.5))),
    "repetition_penalty": (None, Honoured(sent("repetition_penalty", 1.5))),
    "fine_tune_from_scratch": (True, Honoured(starts_afresh_or_goes_on)),
    "freeze_agent": (False, Honoured(frozen_is_not_trained)),
    "quantization": ("none", Refused("bitsandbytes", "serves no model")),
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
    }
    theirs = {name: default for name, default in ours.items() if name not in OWN_AGENT_FIELDS}
    assert theirs == {name: default for name, (default, _) in FIELDS.items()}


@pytest.mark.parametrize("name", of_kind(Honoured))
def test_a_field_is_honoured(name: str) -> None:
    fate = FIELDS[name][1]
    assert isinstance(fate, Honoured)
    assert fate.shown_by()


@pytest.mark.parametrize("name", of_kind(Refused))
def test_a_field_is_refused_with_the_reason(name: str) -> None:
    default, fate = FIELDS[name]
    assert isinstance(fate, Refused)
    line = from_dict({"agents": {"prover": {name: fate.value}}}).failure()
    assert line.startswith(f"agents.prover.{name}: ")
    assert fate.reason in line
    assert isinstance(from_dict({"agents": {"prover": {name: default}}}), Success)


@pytest.mark.parametrize("name", of_kind(Wired))
def test_a_field_of_an_absent_provider_is_data_until_the_wiring(name: str) -> None:
    fate = FIELDS[name][1]
    assert isinstance(fate, Wired)
    params: HyperParameters = from_dict({"agents": {"prover": fate.fields}}).unwrap()
    assert get(params, f"agents.prover.{name}") == fate.fields[name]
    assert from_dict(merge(to_dict(params), {})) == Success(params)
    line = wired(**fate.fields)
    assert line.startswith("nip-fn: agents.prover.model_provider: ")
    assert fate.reason in line
    assert line.endswith(f" ({int(Exit.USAGE)})")


def test_every_provider_but_the_local_one_ends_at_the_wiring() -> None:
    absent: dict[str, Any] = {
        name: wired(model_provider=name) for name in ("OpenAI", "SelfHosted", "OpenRouter")
    }
    assert all(f"{name} is not served" in line for name, line in absent.items())
