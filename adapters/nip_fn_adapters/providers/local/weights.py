"""The weights that a training starts from, its reference, and the weights that it leaves.

start            the job trains           and leaves
base, LoRA       all weights              a whole model
base             a LoRA                   the LoRA
LoRA             that LoRA, further       the LoRA
LoRA, stacked    a LoRA on top            one LoRA, the sum of both
whole model      all weights, or a LoRA   a whole model
"""

import json
import math
import shutil
from hashlib import blake2b
from pathlib import Path
from typing import Any

from returns.result import Failure, Result, Success

from nip_fn.errors import Problem
from nip_fn.training.tuning import Checkpointing, Job, Precision
from nip_fn_adapters.durable import sync_path
from nip_fn_adapters.providers.local.jobs import JobFiles
from nip_fn_adapters.providers.local.models import (
    is_lora,
    is_sharded,
    load_adapter,
    load_base,
    load_model,
    precision,
)

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
GENERATION = "generation_config.json"
# Options of peft with which a LoRA is more than a product of two matrices in each module, so that
# the sum of two is no LoRA.
NOT_STACKED = (
    "use_dora",
    "modules_to_save",
    "rank_pattern",
    "alpha_pattern",
    "trainable_token_indices",
)


# Models with as many weights are trained in less memory, unless the job says otherwise.
LARGE = 1_000_000_000


def load_trainable(job: Job, base: Path, start: Path | None) -> Any:
    """The model to train; its only dropout is the job's, in its LoRA layers."""
    return checkpointed(_load_trainable(job, base, start), job.gradient_checkpointing)


def checkpointed(model: Any, setting: Checkpointing = "auto") -> Any:
    """The model; if checkpointed, it takes a third more time, and a fraction of the memory.

    Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost".
    """
    if setting == "on" or (setting == "auto" and is_large(model)):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def is_large(model: Any) -> bool:
    """True if the model has so many weights that memory matters more than time."""
    return bool(sum(weight.numel() for weight in model.parameters()) >= LARGE)


def base_numbers(job: Job, base: Path) -> Precision:
    """The numbers that hold the base's weights while the job trains a LoRA on it."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if job.base_precision != "auto":
        return job.base_precision
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(base))
    return usual_numbers(empty)


def usual_numbers(model: Any) -> Precision:
    """The numbers that hold the weights of a LoRA's base unless a job says otherwise."""
    in_16_bits = is_large(model) and precision() == "bf16" and not is_sharded()
    return "bf16" if in_16_bits else "float32"


def _load_trainable(job: Job, base: Path, start: Path | None) -> Any:
    from peft import LoraConfig, get_peft_model

    if not job.use_lora:
        return _without_dropout(load_model(base, start)).requires_grad_(True)
    is_on_base = start is None or (is_lora(start) and not job.stack)
    model = load_base(base, base_numbers(job, base)) if is_on_base else load_model(base, start)
    model = _without_dropout(model)
    if is_on_base and start is not None:
        return load_adapter(model, start, train_with_dropout=job.lora_dropout)
    lora = LoraConfig(
        task_type="CAUSAL_LM",
        target_modules="all-linear",
        r=job.lora_rank,
        lora_alpha=job.lora_alpha,
        lora_dropout=job.lora_dropout,
    )
    return get_peft_model(model, lora)


def _without_dropout(model: Any) -> Any:
    """The model, with its own dropout (of modules, and of attention) turned off."""
    import torch

    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0
    return model


def load_reference(base: Path, adapter: Path | None) -> Any:
    """A DPO reference policy, frozen."""
    return load_model(base, adapter).requires_grad_(False).eval()


def are_finite(job: Job, weights: dict[str, Any]) -> bool:
    """True if all weights that the job trained are finite numbers."""
    import torch

    trained = (w for name, w in weights.items() if not job.use_lora or "lora_" in name)
    return all(bool(torch.isfinite(weight).all()) for weight in trained)


def save(
    model: Any,
    weights: dict[str, Any],
    files: JobFiles,
    job: Job,
    base: Path,
    start: Path | None,
) -> str:
    """Write the adapter under a temporary name, then rename it.

    Args:
        model: The trained model.
        weights: The whole model's; they may have been trained in shards on several devices.
        files: Those of the job.
        job: The job, whose name and a hash of the weights make the adapter's name.
        base: The base model's folder.
        start: The folder of the adapter that the training started from; None: the base model.

    Returns:
        The adapter's name.
    """
    _write(model, weights, files.unfinished, job, base, start)
    for file in (*files.unfinished.iterdir(), files.unfinished):
        sync_path(file)
    # A hash of the weights is a part of the name: servers cache prefixes by an adapter's name, so
    # that none may ever stand for other weights.
    digest = blake2b(digest_size=4)
    for file in sorted(files.unfinished.glob("*.safetensors")):  # a big model has several
        digest.update(file.read_bytes())
    adapter = f"{job.name}-{digest.hexdigest()}"
    if (files.adapters / adapter).exists():  # left by an earlier try, which then crashed
        shutil.rmtree(files.unfinished)
    else:
        files.unfinished.rename(files.adapters / adapter)
    sync_path(files.adapters)
    return adapter


def _write(
    model: Any,
    weights: dict[str, Any],
    folder: Path,
    job: Job,
    base: Path,
    start: Path | None,
) -> None:
    """Write the LoRA or the whole model, with no path of this machine in it."""
    if job.use_lora and (start is None or is_lora(start)):
        config = model.peft_config["default"]
        # A run can be moved, or its adapter sent to a server: paths of this machine are wrong
        # there.
        config.base_model_name_or_path = job.model  # peft has its folder
        if isinstance(config.target_modules, set):  # or the file depends on hashes of strings
            config.target_modules = sorted(config.target_modules)
        model.save_pretrained(folder, state_dict=weights)
        (folder / "README.md").unlink(missing_ok=True)
        if start is not None and job.stack:
            add_below(folder, start)
        return
    whole = model.merge_and_unload() if job.use_lora else model
    whole.config._name_or_path = job.model
    whole.save_pretrained(folder, state_dict=None if job.use_lora else weights)
    (folder / GENERATION).unlink(missing_ok=True)  # the trainer may have changed it
    if (base / GENERATION).is_file():
        shutil.copyfile(base / GENERATION, folder / GENERATION)


def scale_of(folder: Path) -> Result[float, Problem]:
    """The factor of a LoRA's product B·A; a failure if it is more than such a product."""
    config = json.loads((folder / CONFIG).read_text("utf-8"))
    more = [name for name in NOT_STACKED if config.get(name)]
    more += ["bias"] if config.get("bias", "none") != "none" else []
    if more or isinstance(config["target_modules"], str):
        what = ", ".join(more) or "target_modules as a pattern"
        message = f"no LoRA can be stacked on {folder.name}, which has {what}"
        return Failure(Problem(message, remedy="train it further instead (stack_lora_adapters)"))
    rank = config["r"]
    return Success(config["lora_alpha"] / (math.sqrt(rank) if config.get("use_rslora") else rank))


def add_below(folder: Path, below: Path) -> None:
    """Make the LoRA in `folder` the sum of itself and the one in `below`, exactly.

    B₁·A₁·s₁ + B₂·A₂·s₂ = [s₁·B₁ s₂·B₂]·[A₁; A₂]: the ranks add up and the scale becomes 1.
    """
    import torch
    from safetensors.torch import load_file, save_file

    paths = (below, folder)
    configs = [json.loads((path / CONFIG).read_text("utf-8")) for path in paths]
    scales = [scale_of(path).unwrap() for path in paths]
    ranks = [config["r"] for config in configs]
    adapters = [load_file(path / WEIGHTS) for path in paths]
    weights = {}
    for name in sorted({name for adapter in adapters for name in adapter}):
        axis = 0 if name.endswith("lora_A.weight") else 1
        shape = list(next(adapter[name] for adapter in adapters if name in adapter).shape)
        pieces = []
        for adapter, scale, rank in zip(adapters, scales, ranks, strict=True):
            shape[axis] = rank
            piece = adapter[name] if name in adapter else torch.zeros(shape)
            pieces.append(piece * scale if axis == 1 else piece)
        weights[name] = torch.cat(pieces, dim=axis).contiguous()
    targets = sorted({target for config in configs for target in config["target_modules"]})
    config = {**configs[1], "r": sum(ranks), "lora_alpha": sum(ranks), "target_modules": targets}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    text = json.dumps({**config, "use_rslora": False}, indent=2, sort_keys=True)
    (folder / CONFIG).write_text(text, "utf-8")
