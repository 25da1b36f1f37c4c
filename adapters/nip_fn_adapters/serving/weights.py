"""Checks of an adapter's files, before vLLM may serve them; made without torch.

vLLM answers a broken adapter with an error, with wrong replies, or by its own end.  So it is never
given one.
"""

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta
from returns.result import Failure, Result, Success
from safetensors import SafetensorError, safe_open

from nip_fn.errors import Problem, collect
from nip_fn_adapters.providers.local.weights import CONFIG, NOT_STACKED, WEIGHTS
from nip_fn_adapters.serving.vllm import model_config

# A LoRA on each of the 128 experts of 48 layers has 36,864; each costs the checks some 20 µs.
MAX_TENSORS = 50_000
MAX_CONFIG = 1 << 20  # bytes
# Of lora_alpha / r, by which the product of A and B is multiplied: finite weights times 1e300 are
# no finite numbers, and what they leave in vLLM's cache spoils the replies of other models, too.
MAX_SCALE = 1_000.0
MAX_WEIGHT = 2.0**13  # of A and B; trained ones are below 10
CHUNK = 1 << 22  # numbers that are checked together
PREFIX = "base_model.model."  # peft's, before the name of a module in the model
_LAYER = re.compile(r"\blayers\.(\d+)\.")
PARTS = (".lora_A.weight", ".lora_B.weight")
Size = Annotated[int, Meta(ge=0)]


# Weights are checked as integers: NumPy has no bfloat16, and bits need no conversion.
class Format(NamedTuple):
    """A floating-point format: an integer type of its size, and two patterns of bits.

    Without their signs, numbers are ordered as their bits are, and infinities and NaNs come last.
    """

    integers: str
    magnitude: int  # all bits but the sign
    most: int  # the bits of `MAX_WEIGHT`


FORMATS = {
    "F32": Format("<u4", 0x7FFFFFFF, 0x46000000),
    "F16": Format("<u2", 0x7FFF, 0x7000),
    "BF16": Format("<u2", 0x7FFF, 0x4600),
}


class LoraConfig(msgspec.Struct, frozen=True):
    """The fields of an `adapter_config.json` that are checked."""

    base_model_name_or_path: str
    peft_type: str
    r: Annotated[int, Meta(ge=1)]
    lora_alpha: float
    bias: str = "none"


class Tensor(msgspec.Struct, frozen=True):
    """A tensor's entry in the header of a safetensors file."""

    dtype: str
    shape: tuple[Size, ...]
    data_offsets: tuple[Size, Size]  # bytes after the header


def check_adapter(folder: Path, model: str, base: Path, max_rank: int) -> Result[None, Problem]:
    """Success if vLLM can serve an adapter.

    Args:
        folder: The adapter's.
        model: The name of the base model that is served.
        base: The base model's folder.
        max_rank: The highest rank that vLLM was started for.

    Returns:
        A failure that names what is missing or wrong.
    """
    return Result.do(
        None
        for config in read_config(folder)
        for _ in _check_config(config, model, max_rank)
        for tensors in read_tensors(folder / WEIGHTS)
        for _ in _check_weights(folder / WEIGHTS, tensors, config, base)
    )


def read_config(folder: Path) -> Result[LoraConfig, Problem]:
    """The adapter's configuration; a failure if vLLM could serve no adapter that has it."""
    path = folder / CONFIG
    try:
        if path.stat().st_size > MAX_CONFIG:
            return _problem(f"{CONFIG} has more than {MAX_CONFIG:,} bytes")
        data = path.read_bytes()
        config = msgspec.json.decode(data, type=LoraConfig)
        fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _problem(f"{CONFIG} cannot be read: {error}")
    if config.peft_type != "LORA":
        return _problem(f"it is no LoRA: {CONFIG} says {config.peft_type!r}")
    empty = (b"null", b"false", b"[]", b"{}", b"")
    more = [name for name in NOT_STACKED if bytes(fields.get(name, b"null")) not in empty]
    more += ["bias"] if config.bias != "none" else []
    if more:
        return _problem(f"vLLM cannot serve a LoRA with {', '.join(more)}")
    return Success(config)


def _check_config(config: LoraConfig, model: str, max_rank: int) -> Result[None, Problem]:
    made_for = config.base_model_name_or_path
    if made_for != model:
        return _problem(f"it is made for {made_for!r}, and {model} is served")
    if config.r > max_rank:
        return _problem(f"its rank is {config.r}, and vLLM was started for ranks up to {max_rank}")
    if not abs(config.lora_alpha) <= MAX_SCALE * config.r:
        return _problem(
            f"its lora_alpha {config.lora_alpha:g} is more than {MAX_SCALE:g} times its rank"
        )
    return Success(None)


def read_tensors(path: Path) -> Result[dict[str, Tensor], Problem]:
    """The tensors of a safetensors file, by name; a failure if the file is not whole."""
    try:
        # The library looks at every shape and offset; it has no bfloat16 without torch, and so does
        # not tell where the numbers are.
        with safe_open(path, "numpy") as whole, path.open("rb") as file:
            if len(whole.keys()) > MAX_TENSORS:
                return _problem(f"{path.name} has more than {MAX_TENSORS:,} tensors")
            length = int.from_bytes(file.read(8), "little")
            entries = msgspec.json.decode(file.read(length), type=dict[str, msgspec.Raw])
        entries.pop("__metadata__", None)
        return Success({n: msgspec.json.decode(raw, type=Tensor) for n, raw in entries.items()})
    except (OSError, SafetensorError, msgspec.DecodeError, UnicodeDecodeError) as error:
        return _problem(f"{path.name} cannot be read: {error}")


def _check_weights(
    path: Path, tensors: Mapping[str, Tensor], config: LoraConfig, base: Path
) -> Result[None, Problem]:
    shapes = _base_shapes(base)
    # Infinitely many if the configuration does not tell.
    layers = model_config(base).get("num_hidden_layers", math.inf)
    return Result.do(
        None
        for pairs in _pairs(tensors)
        for _ in _all(_check_layer(name, layers) for name in pairs)
        # In the order of their cost: only what has passed the header is read whole.
        for _ in _all(_check_pair(name, *pair, config.r, shapes) for name, pair in pairs.items())
        for _ in _all(_check_finite(path, name, tensor) for name, tensor in tensors.items())
    )


def _check_pair(
    module: str, a: Tensor, b: Tensor, rank: int, shapes: Mapping[str, tuple[int, ...]]
) -> Result[None, Problem]:
    """Success if A and B have the rank, and fit the module of the base model."""
    if (len(a.shape), len(b.shape)) != (2, 2) or (a.shape[0], b.shape[1]) != (rank, rank):
        return _problem(f"{module} has not the rank {rank} of {CONFIG}")
    widths, weight = (b.shape[0], a.shape[1]), shapes.get(f"{module}.weight")
    # A module of unknown shape passes: the files of quantised models do not show it.
    if weight in (None, widths, widths[::-1]):  # some models keep them transposed
        return Success(None)
    return _problem(
        f"it is made for another model: {module} is {_times(widths)} in it, and "
        f"{_times(weight or ())} in what is served"
    )


def _check_layer(module: str, layers: float) -> Result[None, Problem]:
    """Success if the base model has the module's layer; vLLM would silently leave it out."""
    layer = _LAYER.search(module)
    if layer is None or int(layer.group(1)) < layers:
        return Success(None)
    return _problem(f"it has {module}, and what is served has {layers:g} layers")


def _check_finite(path: Path, name: str, tensor: Tensor) -> Result[None, Problem]:
    _, magnitude, most = FORMATS[tensor.dtype]
    for numbers in _chunks(path, tensor):
        if ((numbers & magnitude) > most).any():
            return _problem(f"{name} has a weight that is not a finite number up to {MAX_WEIGHT:g}")
    return Success(None)


def _times(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))


def _pairs(tensors: Mapping[str, Tensor]) -> Result[dict[str, tuple[Tensor, Tensor]], Problem]:
    """A and B of each module, by the module's name in the model."""
    modules: dict[str, None] = {}
    for name, tensor in tensors.items():
        if not name.startswith(PREFIX) or not name.endswith(PARTS):
            return _problem(f"{WEIGHTS} holds {name!r}, which is not how peft names a LoRA's part")
        if tensor.dtype not in FORMATS:
            return _problem(f"{name} is of {tensor.dtype}, and must be one of {', '.join(FORMATS)}")
        modules[name.removeprefix(PREFIX).removesuffix(PARTS[0]).removesuffix(PARTS[1])] = None
    if not modules:
        return _problem(f"{WEIGHTS} holds nothing")
    pairs = {}
    for module in modules:
        a, b = (tensors.get(f"{PREFIX}{module}{part}") for part in PARTS)
        if a is None or b is None:
            return _problem(f"{module} has only one of a LoRA's two parts")
        pairs[module] = (a, b)
    return Success(pairs)


def _base_shapes(base: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of the model's own weights, by name, as far as they can be read."""
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(base.glob("*.safetensors")):
        tensors = read_tensors(path).value_or({})
        # Those of a quantised model are packed, and say nothing about its modules.
        shapes |= {n: t.shape for n, t in tensors.items() if t.dtype in FORMATS}
    return shapes


def _chunks(path: Path, tensor: Tensor) -> Iterator[np.ndarray]:
    """The tensor's numbers as integers of their size, a chunk at a time."""
    integers = np.dtype(FORMATS[tensor.dtype].integers)
    with path.open("rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
    begin, end = tensor.data_offsets
    step = CHUNK * integers.itemsize
    for offset in range(begin, end, step):
        count = min(step, end - offset) // integers.itemsize
        yield np.fromfile(path, integers, count, offset=start + offset)


def _all(checks: Iterator[Result[None, Problem]]) -> Result[None, Problem]:
    """Success if all are; otherwise the first failure."""
    return collect(checks).map(lambda nothing: None)


def _problem(text: str) -> Result[Any, Problem]:
    return Failure(Problem(text))
