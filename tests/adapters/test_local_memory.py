"""The memory of a training, estimated from a configuration, and as it is."""

import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from nip_fn.training.packing import TokenRow, pack
from nip_fn.training.tuning import Precision
from nip_fn_adapters.providers.local import attention, weights
from nip_fn_adapters.providers.local.attention import attend_in_blocks
from nip_fn_adapters.providers.local.jobs import JobFiles
from nip_fn_adapters.providers.local.loading import load_job
from nip_fn_adapters.providers.local.memory import training_memory
from nip_fn_adapters.providers.local.models import load_base
from nip_fn_adapters.providers.local.packed import packing_problem, score

from ..lazily import torch
from .tiny_llama import make_tiny_llama
from .training import make_job


@pytest.mark.parametrize("rank", [None, 4])
def test_the_parts_are_those_of_the_model(tmp_path: Path, rank: int | None) -> None:
    from peft import LoraConfig, get_peft_model

    folder = make_tiny_llama(tmp_path)
    model = load_base(folder)
    if rank is not None:
        model = get_peft_model(
            model, LoraConfig(task_type="CAUSAL_LM", r=rank, target_modules="all-linear")
        )
    own = [(weight.nbytes, weight.requires_grad) for weight in model.parameters()]
    told = training_memory(str(folder), lora_rank=rank, tokens=300, replies=10).unwrap()
    assert told.weights == sum(size for size, _ in own)
    assert told.optimiser == 3 * sum(size for size, is_trained in own if is_trained)
    assert told.logits == 3 * 4 * 10 * model.config.vocab_size
    kept = kept_by_a_forest(attend_in_blocks(model.train()), 300)
    assert told.activations / 2 < kept < 2 * told.activations


def kept_by_a_forest(model: Any, tokens: int) -> int:
    """The bytes that a real forward pass keeps."""
    (packed,) = pack([TokenRow([3] * (tokens - 20), ([4] * 10, [5] * 10))], tokens)
    own = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept: dict[int, Any] = {}

    def keep(tensor: Any) -> Any:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        score(model, packed)
    return sum(storage.nbytes() for place, storage in kept.items() if place not in own)


def test_a_large_model_keeps_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_tiny_llama(tmp_path)
    whole = training_memory(str(folder), lora_rank=4).unwrap()
    monkeypatch.setattr(weights, "LARGE", 1000)
    less = training_memory(str(folder), lora_rank=4).unwrap()
    assert less.activations < whole.activations / 4
    assert less._replace(activations=0) == whole._replace(activations=0)


@pytest.mark.parametrize("numbers", ["float32", "bf16", "8-bit", "4-bit"])
def test_a_base_in_fewer_bits_takes_less(tmp_path: Path, numbers: Precision) -> None:
    folder = make_tiny_llama(tmp_path)
    base = sum(weight.numel() for weight in load_base(folder).parameters())
    whole = training_memory(str(folder), lora_rank=4, numbers="float32").unwrap()
    told = training_memory(str(folder), lora_rank=4, numbers=numbers).unwrap()
    bits = {"float32": 32, "bf16": 16, "8-bit": 8, "4-bit": 4}[numbers]
    assert whole.weights - told.weights == base * (32 - bits) // 8
    assert told._replace(weights=0) == whole._replace(weights=0)


def test_a_job_says_what_is_kept_and_in_which_numbers(tmp_path: Path) -> None:
    """By itself a small model is neither; a LoRA is float32 in any case."""
    job, files = make_job(make_tiny_llama(tmp_path / "model")), JobFiles(tmp_path, "verifier-0")
    own = replace(job, gradient_checkpointing="on", base_precision="bf16")
    usual, asked = (load_job(one, files).model for one in (job, own))
    assert not usual.is_gradient_checkpointing
    assert asked.is_gradient_checkpointing
    for model, expected in ((usual, torch.float32), (asked, torch.bfloat16)):
        kinds = {(weight.requires_grad, weight.dtype) for weight in model.parameters()}
        assert kinds == {(True, torch.float32), (False, expected)}


def test_a_base_in_16_bits_is_packed_and_a_mask_that_is_not_obeyed_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, files = make_job(make_tiny_llama(tmp_path / "model")), JobFiles(tmp_path, "verifier-0")
    loaded = load_job(replace(job, base_precision="bf16"), files)
    assert packing_problem(loaded.model, loaded.encoded) == ""
    real = attention._attend
    monkeypatch.setattr(
        attention, "_attend", lambda *args, blocks=None, **options: real(*args, **options)
    )
    assert "differs by" in packing_problem(loaded.model, loaded.encoded)


@pytest.mark.parametrize(
    ("large", "device", "expected"),
    [(True, "bf16", "bf16"), (True, "fp16", "float32"), (False, "bf16", "float32")],
)
def test_by_itself_a_large_model_is_held_in_bf16_where_the_device_is_fast_at_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool, device: str, expected: str
) -> None:
    monkeypatch.setattr(weights, "LARGE", 1000 if large else weights.LARGE)
    monkeypatch.setattr(weights, "precision", lambda: device)
    folder = make_tiny_llama(tmp_path)
    assert weights.base_numbers(make_job(folder), folder) == expected


@pytest.mark.parametrize(("numbers", "bits"), [("8-bit", 8), ("4-bit", 4)])
def test_fewer_bits_are_asked_of_bitsandbytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numbers: Precision, bits: int
) -> None:
    """By configuration alone: it needs a GPU."""
    from transformers import AutoModelForCausalLM

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda folder, **options: options)
    config = load_base(tmp_path, numbers)["quantization_config"]
    assert (config.load_in_8bit, config.load_in_4bit) == (bits == 8, bits == 4)


def test_what_fewer_bits_lack_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)  # as if it were not installed
    job = replace(make_job(make_tiny_llama(tmp_path)), base_precision="4-bit")
    with pytest.raises(SystemExit, match=r"needs bitsandbytes.*nip-fn\[quantized\]"):
        load_job(job, JobFiles(tmp_path, job.name))


def test_a_model_without_a_configuration_is_told(tmp_path: Path) -> None:
    problem = training_memory(str(tmp_path), lora_rank=4).failure()
    assert str(tmp_path) in str(problem)
