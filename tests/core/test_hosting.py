"""Requirements of a run on language-model servers, and requests that they cannot meet."""

from typing import Any

import pytest
from returns.result import Success

from nip_fn.config.codec import from_dict, merge
from nip_fn.config.hosting import is_hosted
from nip_fn.params.run import HyperParameters
from nip_fn_adapters.providers.selfhosted.needs import needs_of

URL = "http://localhost:5000"
HOSTED: dict[str, Any] = {"agents": {"_default": {"model_provider": "SelfHosted"}}}
STACKED = {"stack_lora_adapters": True, "fine_tune_from_scratch": False, "lora_rank": 20}


def params_of(**fields: Any) -> HyperParameters:
    """Eight iterations of a prover and a verifier at one server, with these fields of both."""
    return from_dict(merge(HOSTED, {"agents": {"_default": fields}})).unwrap()


def refusal_of(*tables: dict[str, Any]) -> str:
    table = HOSTED
    for other in tables:
        table = merge(table, other)
    return str(from_dict(table).failure())


@pytest.mark.parametrize(
    ("fields", "rank", "loras"),
    [
        ({"lora_rank": 24}, 24, 2),
        ({"lora_rank": 24, "shared_model_group": "both"}, 24, 1),
        ({"lora_rank": 24, "freeze_agent": True}, 1, 1),
        (STACKED, 8 * 20, 2),
        ({**STACKED, "fine_tune_from_scratch": True}, 20, 2),
        (
            {
                **STACKED,
                "update_schedule": {
                    "_type": "AlternatingPeriodicUpdateSchedule",
                    "period": 2,
                    "first_agent_num_rounds": 1,
                },
            },
            4 * 20,
            2,
        ),
    ],
)
def test_vllm_is_started_for_the_adapters_that_there_will_be(
    fields: dict[str, Any], rank: int, loras: int
) -> None:
    needs = needs_of(params_of(**fields), URL)
    assert (needs.max_lora_rank, needs.max_loras) == (rank, loras)


def test_adapters_of_an_earlier_run_count() -> None:
    assert needs_of(params_of(lora_rank=8), URL, loaded_rank=96).max_lora_rank == 96


def test_each_server_is_asked_for_what_its_own_agents_need() -> None:
    table = merge(
        HOSTED,
        {
            "agents": {
                "prover": {"model_name": "large", "language_model_server_port": 5001},
                "verifier": {"model_name": "small", "lora_rank": 8},
            }
        },
    )
    params = from_dict(table).unwrap()
    assert needs_of(params, URL).model_name == "small"
    assert needs_of(params, URL).max_lora_rank == 8
    assert needs_of(params, "http://localhost:5001").model_name == "large"


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("use_lora", False, "vLLM is given adapters, not whole models"),
        ("lora_rank", 513, "reach rank 513, and vLLM supports at most 512"),
        ("use_batch_api", True, "has no batch API"),
        ("language_model_server_scheme_host", "localhost", "is not a scheme and a host"),
        (
            "language_model_server_scheme_host",
            "http://localhost:5000",
            "is not a scheme and a host",
        ),
        ("language_model_server_scheme_host", "http://me:sk-1@gpu", "is not a scheme and a host"),
        ("api_base_url", "http://localhost:8000/v1", "a vLLM by itself trains nothing"),
    ],
)
def test_what_a_server_cannot_do_is_refused(field: str, value: Any, reason: str) -> None:
    line = refusal_of({"agents": {"_default": {field: value}}})
    assert line.startswith(f"agents.prover.{field}: ")
    assert reason in line
    assert "\n" not in line


def test_a_stack_that_would_grow_too_high_is_refused_at_the_beginning() -> None:
    table = {"agents": {"_default": {**STACKED, "lora_rank": 64}}}
    assert isinstance(from_dict(merge(HOSTED, table)), Success)
    assert "reach rank 576" in refusal_of(table, {"rl": {"num_iterations": 9}})


def test_one_server_serves_one_model() -> None:
    line = refusal_of({"agents": {"prover": {"model_name": "another"}}})
    assert line.startswith("agents.prover and agents.verifier: ")
    assert f"they are at {URL}, which serves one model" in line


@pytest.mark.parametrize(
    "fields",
    [
        {"freeze_agent": True, "api_base_url": "http://localhost:8000/v1"},
        {"freeze_agent": True, "use_lora": False},
        {"language_model_server_scheme_host": "https://[::1]/"},
        {"use_dummy_api": True, "use_lora": False},
    ],
)
def test_what_it_can_do_is_not(fields: dict[str, Any]) -> None:
    params = params_of(**fields)
    plain = "api_base_url" in fields or "use_dummy_api" in fields
    assert [is_hosted(agent) for agent in params.agents] == [not plain] * 2


@pytest.mark.parametrize(
    "fields",
    [
        {"model_provider": "OpenAI"},
        {"model_provider": "local"},
        {"freeze_agent": True, "api_base_url": "http://localhost:8000/v1"},
    ],
)
def test_only_a_language_model_server_quantizes(fields: dict[str, Any]) -> None:
    quantized = {"quantization": "bitsandbytes"}
    assert needs_of(params_of(**quantized), URL).quantization == "bitsandbytes"
    line = refusal_of({"agents": {"_default": {**quantized, **fields}}})
    assert line.startswith("agents.prover.quantization: only a language-model server")


@pytest.mark.parametrize("precision", ["bf16", "8-bit", "4-bit"])
@pytest.mark.parametrize("fields", [{"use_lora": False}, {"stack_lora_adapters": True}])
def test_weights_that_change_are_not_held_in_coarse_numbers(
    fields: dict[str, Any], precision: str
) -> None:
    agents = {"_default": {"model_provider": "local", **fields}}
    assert from_dict({"agents": agents}).unwrap()
    line = refusal_of({"agents": {"_default": {**agents["_default"], "base_precision": precision}}})
    assert line.startswith("agents.prover.base_precision: with ")
    assert precision in line
