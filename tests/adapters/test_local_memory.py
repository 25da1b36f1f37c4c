"""The memory of a training, estimated from a configuration, and as it is."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from nip_fn.training.packing import TokenRow, pack
from nip_fn_adapters.local import weights
from nip_fn_adapters.local.attention import attend_in_blocks
from nip_fn_adapters.local.memory import training_memory
from nip_fn_adapters.local.models import load_base
from nip_fn_adapters.local.packed import score

from .tiny_llama import make_tiny_llama


@pytest.mark.parametrize("rank", [None, 4])
def test_the_parts_are_those_of_the_model(tmp_path: Path, rank: int | None) -> None:
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


def test_a_model_without_a_configuration_is_told(tmp_path: Path) -> None:
    problem = training_memory(str(tmp_path), lora_rank=4).failure()
    assert str(tmp_path) in str(problem)
