"""Whether an adapter's files are what vLLM can serve on a model; read without torch.

What vLLM does with a broken adapter ranges from an error to wrong replies and to its own end, so
it is never shown one.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta
from returns.result import Failure, Result, Success

from nip_fn_adapters.local.weights import CONFIG, NOT_STACKED, WEIGHTS

MOST_HEADER = 64 << 20  # bytes of a safetensors file that say what is in it
MOST_CONFIG = 1 << 20  # bytes
CHUNK = 1 << 22  # numbers that are looked at together
PREFIX = "base_model.model."  # peft's, before the name of a module in the model
PARTS = (".lora_A.weight", ".lora_B.weight")
Size = Annotated[int, Meta(ge=0)]


class Format(NamedTuple):
    """How a number lies in a file, and the bits that are all set where it is not finite."""

    integers: str
    exponent: int


FORMATS = {
    "F32": Format("<u4", 0x7F800000),
    "F16": Format("<u2", 0x7C00),
    "BF16": Format("<u2", 0x7F80),
}


class Config(msgspec.Struct, frozen=True):
    """What counts in an `adapter_config.json`."""

    base_model_name_or_path: str
    peft_type: str
    r: Annotated[int, Meta(ge=1)]
    lora_alpha: float
    bias: str = "none"


class Tensor(msgspec.Struct, frozen=True):
    """Where a tensor lies in a safetensors file: bytes after the header."""

    dtype: str
    shape: tuple[Size, ...]
    data_offsets: tuple[Size, Size]


class Contents(NamedTuple):
    """What a safetensors file says that it holds."""

    start: int  # bytes before the first tensor
    tensors: dict[str, Tensor]


def check_adapter(folder: Path, model: str, base: Path, max_rank: int) -> Result[None, str]:
    """Success where vLLM can serve the adapter in `folder` on the model, whose own files lie in
    `base`; otherwise why it cannot.
    """
    return read_config(folder).bind(
        lambda config: _check_config(config, model, max_rank).bind(
            lambda _: read_contents(folder / WEIGHTS).bind(
                lambda contents: _check_weights(folder / WEIGHTS, contents, config, base)
            )
        )
    )


def read_config(folder: Path) -> Result[Config, str]:
    """The adapter's configuration; or why vLLM could not serve anything that has it."""
    path = folder / CONFIG
    try:
        if path.stat().st_size > MOST_CONFIG:
            return Failure(f"{CONFIG} has more than {MOST_CONFIG:,} bytes")
        data = path.read_bytes()
        config = msgspec.json.decode(data, type=Config)
        others = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Failure(f"{CONFIG} cannot be read: {error}")
    if config.peft_type != "LORA":
        return Failure(f"it is no LoRA: {CONFIG} says {config.peft_type!r}")
    empty = (b"null", b"false", b"[]", b"{}", b"")
    more = [name for name in NOT_STACKED if bytes(others.get(name, b"null")) not in empty]
    more += ["bias"] if config.bias != "none" else []
    if more:
        return Failure(f"vLLM cannot serve a LoRA with {', '.join(more)}")
    return Success(config)


def _check_config(config: Config, model: str, max_rank: int) -> Result[None, str]:
    if config.base_model_name_or_path != model:
        return Failure(f"it is made for {config.base_model_name_or_path!r}, and {model} is served")
    if config.r > max_rank:
        return Failure(f"its rank is {config.r}, and vLLM was started for ranks up to {max_rank}")
    return Success(None)


def read_contents(path: Path) -> Result[Contents, str]:
    """What the safetensors file holds, if it is whole."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= min(MOST_HEADER, size - 8):
                return Failure(f"{path.name} is no whole safetensors file")
            entries = msgspec.json.decode(file.read(length), type=dict[str, msgspec.Raw])
        entries.pop("__metadata__", None)
        tensors = {n: msgspec.json.decode(raw, type=Tensor) for n, raw in entries.items()}
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Failure(f"{path.name} cannot be read: {error}")
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda one: one[1].data_offsets):
        if tensor.data_offsets[0] != end or tensor.data_offsets[1] < end:
            return Failure(f"{path.name} has a gap or an overlap at {name}")
        end = tensor.data_offsets[1]
    if 8 + length + end != size:
        return Failure(f"{path.name} has {size:,} bytes, and should have {8 + length + end:,}")
    return Success(Contents(8 + length, tensors))


def _check_weights(path: Path, contents: Contents, config: Config, base: Path) -> Result[None, str]:
    pairs = _pairs(contents.tensors)
    if isinstance(pairs, Failure):
        return Failure(pairs.failure())
    known = _base_shapes(base)
    for module, (a, b) in pairs.unwrap().items():
        if (len(a.shape), len(b.shape)) != (2, 2) or (a.shape[0], b.shape[1]) != (config.r,) * 2:
            return Failure(f"{module} has not the rank {config.r} of {CONFIG}")
        widths, weight = (b.shape[0], a.shape[1]), known.get(f"{module}.weight")
        if weight not in (None, widths, widths[::-1]):  # some models keep them transposed
            return Failure(
                f"it is made for another model: {module} is {_times(widths)} in it, and "
                f"{_times(weight)} in what is served"
            )
    for name, tensor in contents.tensors.items():
        if not all(_are_finite(part, tensor.dtype) for part in _parts(path, contents, tensor)):
            return Failure(f"{name} has a weight that is not a finite number")
    return Success(None)


def _times(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))


def _pairs(tensors: Mapping[str, Tensor]) -> Result[dict[str, tuple[Tensor, Tensor]], str]:
    """A and B of each module, by the module's name in the model."""
    modules: dict[str, None] = {}
    for name, tensor in tensors.items():
        if not name.startswith(PREFIX) or not name.endswith(PARTS):
            return Failure(f"{WEIGHTS} holds {name!r}, which is not how peft names a LoRA's part")
        form, (begin, end) = FORMATS.get(tensor.dtype), tensor.data_offsets
        if form is None:
            return Failure(f"{name} is of {tensor.dtype}, and must be one of {', '.join(FORMATS)}")
        if math.prod(tensor.shape) * np.dtype(form.integers).itemsize != end - begin:
            return Failure(f"{name} has not as many bytes as its shape says")
        modules[name.removeprefix(PREFIX).removesuffix(PARTS[0]).removesuffix(PARTS[1])] = None
    if not modules:
        return Failure(f"{WEIGHTS} holds nothing")
    pairs = {}
    for module in modules:
        a, b = (tensors.get(f"{PREFIX}{module}{part}") for part in PARTS)
        if a is None or b is None:
            return Failure(f"{module} has only one of a LoRA's two parts")
        pairs[module] = (a, b)
    return Success(pairs)


def _base_shapes(base: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of the model's own weights, by name, as far as they can be read."""
    found: dict[str, tuple[int, ...]] = {}
    for path in sorted(base.glob("*.safetensors")):
        contents = read_contents(path)
        if isinstance(contents, Success):
            tensors = contents.unwrap().tensors
            # Those of a quantised model are packed, and say nothing about its modules.
            found |= {n: t.shape for n, t in tensors.items() if t.dtype in FORMATS}
    return found


def _parts(path: Path, contents: Contents, tensor: Tensor) -> Iterator[np.ndarray]:
    """The tensor's numbers as integers of their size, a chunk at a time."""
    integers = np.dtype(FORMATS[tensor.dtype].integers)
    begin, end = tensor.data_offsets
    step = CHUNK * integers.itemsize
    for offset in range(begin, end, step):
        count = min(step, end - offset) // integers.itemsize
        yield np.fromfile(path, integers, count, offset=contents.start + offset)


def _are_finite(numbers: np.ndarray, dtype: str) -> bool:
    """Whether none has all bits of its exponent set, as infinities and NaNs do."""
    exponent = FORMATS[dtype].exponent
    return not bool(((numbers & exponent) == exponent).any())
