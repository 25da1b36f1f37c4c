"""The memory that a training takes, from a model's configuration alone."""

import warnings
from typing import Any, Literal, NamedTuple

from returns.pipeline import is_successful
from returns.result import Failure, Result, Success

from nip_fn.errors import Problem
from nip_fn.training.tuning import Checkpointing, Precision
from nip_fn_adapters.providers.local.models import first_line, is_on_hub, model_directory
from nip_fn_adapters.providers.local.packed import MAX_TOKENS
from nip_fn_adapters.providers.local.weights import checkpointed, usual_numbers

FLOAT = 4  # bytes: weights are trained in float32
# Of a base's weight.  Not counted: that bitsandbytes leaves embeddings as they are.
BYTES: dict[Precision, float] = {"float32": FLOAT, "bf16": 2, "8-bit": 1, "4-bit": 0.5}
KEPT = 3 * FLOAT  # for each trained number: its gradient, and the two moments of AdamW
PROBE = 64  # tokens


class Memory(NamedTuple):
    """The bytes of a training, in its parts."""

    weights: int  # of the model, which policy and reference share, and of the LoRA
    optimiser: int  # gradients and AdamW's moments of what is trained
    activations: int  # of one forest, kept from its forward pass to its backward pass
    logits: int  # those that predict a forest's replies, their softmax, and its gradient

    def __str__(self) -> str:
        """The sum and the parts, for people."""
        sizes = (f"{name} {size / 1e9:.1f}" for name, size in self._asdict().items())
        return f"at least {sum(self) / 1e9:.1f} GB ({', '.join(sizes)})"


def training_memory(
    model: str,
    *,
    lora_rank: int | None,
    checkpointing: Checkpointing = "auto",
    numbers: Literal["auto", Precision] = "auto",
    tokens: int = MAX_TOKENS,
    replies: int = MAX_TOKENS // 4,
) -> Result[Memory, Problem]:
    """An estimate for a training on packed rows, on the low side, within a factor of 2.5.

    Measured on a processor: a Llama of 60 million weights with forests of 1,460 tokens (of replies
    480) held 2.6 GB above its imports where this says 1.1.  Not counted: the keys and values that
    blocks gather, gradients on their way, and what the allocator keeps.

    The model is built without numbers (on torch's device "meta") and reads a text: what its layers
    keep for the backward pass is counted, so that the count is of its own architecture.  It is
    linear in the tokens, as attention keeps no pairs of them (Dao et al. 2022, "FlashAttention");
    for a transformer's layer it is what Korthikanti et al. 2022 ("Reducing Activation Recomputation
    in Large Transformer Models", section 4.1) count by hand.

    Args:
        model: A folder, a built-in model, or one of the Hugging Face hub, of which nothing but its
            configuration is downloaded.
        lora_rank: The rank of the LoRA; None: all weights are trained.
        checkpointing: As `gradient_checkpointing`.
        numbers: As `base_precision`; with "auto", as it is decided on this machine.
        tokens: The size of the largest forest.
        replies: Of these, the tokens of replies.
    """
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    named = Success(model) if is_on_hub(model) else model_directory(model)
    if not is_successful(named):
        return Failure(named.failure())
    try:
        config = AutoConfig.from_pretrained(named.unwrap())
        with torch.device("meta"), warnings.catch_warnings():
            # peft asks transformers for names that it is giving up.
            warnings.simplefilter("ignore", FutureWarning)
            built = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
            if lora_rank is None:
                size = float(FLOAT)
            else:
                size = BYTES[usual_numbers(built) if numbers == "auto" else numbers]
                lora = LoraConfig(task_type="CAUSAL_LM", r=lora_rank, target_modules="all-linear")
                built = get_peft_model(built, lora)
            built = checkpointed(built, checkpointing).train()
            once, twice = (_kept(built, PROBE * times) for times in (1, 2))
    except (OSError, ValueError) as error:
        return Failure(Problem(f"the configuration of {model}: {first_line(error)}"))
    trained, frozen = (
        sum(weight.numel() for weight in built.parameters() if weight.requires_grad is is_trained)
        for is_trained in (True, False)
    )
    # On this device attention keeps the pairs, as many as the square of the tokens: f(n) is
    # a·n + b·n², and so a is (4·f(n) - f(2n)) / 2n.
    linear = (4 * once - twice) / (2 * PROBE)
    return Success(
        Memory(
            weights=FLOAT * trained + round(size * frozen),
            optimiser=KEPT * trained,
            activations=round(tokens * linear),
            logits=3 * FLOAT * replies * config.get_text_config().vocab_size,
        )
    )


def _kept(model: Any, tokens: int) -> int:
    """The bytes that a forward pass keeps for the backward pass, weights left out."""
    import torch

    weights = {weight.untyped_storage()._cdata for weight in model.parameters()}
    kept: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage  # held, lest another should get its address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(
            input_ids=torch.zeros(1, tokens, dtype=torch.long),
            attention_mask=torch.ones(1, 1, tokens, tokens, dtype=torch.bool),
            logits_to_keep=1,
            use_cache=False,
        )
    return sum(storage.nbytes() for storage in kept.values())
