"""The memory of trainings, as a dry run tells it."""

from pathlib import Path
from typing import Any

import pytest

from nip_fn.config.codec import from_dict
from nip_fn_adapters.providers.local.memory import training_memory
from nip_fn_cli.shown.dryrun import say_memory

from ..adapters.tiny_llama import make_tiny_llama

pytestmark = pytest.mark.xdist_group("trainings")  # their imports take seconds


def lines(capsys: pytest.CaptureFixture[str], **fields: Any) -> list[str]:
    """What is told of a run by agents with these fields."""
    capsys.readouterr()
    say_memory(from_dict({"agents": {"_default": fields}}).unwrap())
    return capsys.readouterr().err.splitlines()


def test_it_is_what_doctor_estimates(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = str(make_tiny_llama(tmp_path))
    own = {"lora_rank": 8, "gradient_checkpointing": "on", "base_precision": "bf16"}
    told = lines(capsys, model_provider="local", model_name=folder, **own)
    memory = training_memory(folder, lora_rank=8, checkpointing="on", numbers="bf16").unwrap()
    assert told == [
        f"memory to train {group}, on a machine such as this: {memory}"
        for group in ("prover", "verifier")
    ]


def test_of_a_model_that_is_not_here_it_says_what_would_tell(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    hosted = {"model_provider": "SelfHosted", "model_name": "no-one/no-such-model"}
    for line in lines(capsys, **hosted):
        assert line.endswith(": nip-fn doctor --model no-one/no-such-model estimates it")
    (tmp_path / "config.json").write_text("{}")
    (broken, _) = lines(capsys, model_provider="local", model_name=str(tmp_path))
    assert "the configuration of" in broken


@pytest.mark.parametrize(
    "fields",
    [
        {"model_provider": "OpenAI"},
        {"model_provider": "local", "model_name": "builtin:tea"},
        {"model_provider": "SelfHosted", "model_name": "a/b", "freeze_agent": True},
    ],
)
def test_otherwise_nothing_is_said(
    capsys: pytest.CaptureFixture[str], fields: dict[str, Any]
) -> None:
    assert lines(capsys, **fields) == []
