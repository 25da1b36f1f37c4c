"""Law: vLLM is only shown adapters that it can serve, and whoever sent another is told why."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from returns.result import Success

from nip_fn.training.tuning import Job
from nip_fn_adapters.providers.local.jobs import JobFiles
from nip_fn_adapters.providers.local.models import model_directory
from nip_fn_adapters.serving.weights import MAX_TENSORS, check_adapter, read_tensors

from .serving import CONFIG, MODEL, WEIGHTS, config, lora, write_adapter
from .training import make_job, tune

pytest.importorskip("safetensors")

Q = "base_model.model.model.layers.0.self_attn.q_proj"
A, B = f"{Q}.lora_A.weight", f"{Q}.lora_B.weight"
NOT_FINITE = f"{B} has a weight that is not a finite number up to 8192"


def problem(folder: Path, max_rank: int = 16) -> str:
    """The reason why the adapter is refused; "" if it is not."""
    base = model_directory(MODEL).unwrap()
    checked = check_adapter(folder, MODEL, base, max_rank)
    return checked.swap().map(str).value_or("")


def test_a_sound_adapter_passes(tmp_path: Path) -> None:
    assert problem(write_adapter(tmp_path / "sound", lora())) == ""


def test_more_tensors_than_a_model_has_are_refused(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "many", lora())
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header = json.dumps({f"tensor-{number}": empty for number in range(MAX_TENSORS + 1)}).encode()
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(header)) + header)
    assert problem(folder) == f"{WEIGHTS} has more than 50,000 tensors"


@pytest.mark.xdist_group("trainings")
def test_what_peft_saves_after_a_training_passes(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    job: Job = make_job(model_directory(MODEL).unwrap())
    (tuned,) = tune(tmp_path, job)
    adapter = JobFiles(tmp_path, job.name).adapters / str(tuned.unwrap().adapter)
    checked = check_adapter(adapter, job.model, model_directory(MODEL).unwrap(), 8)
    assert checked == Success(None)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 8200.0, -8200.0])
def test_weights_must_be_finite(tmp_path: Path, dtype: Any, value: float) -> None:
    weights = {name: weight.astype(dtype) for name, weight in lora().items()}
    weights[B][127, 3] = np.sign(value) * 8192.0
    assert problem(write_adapter(tmp_path, weights)) == ("" if value == value else NOT_FINITE)
    weights[B][127, 3] = value
    assert problem(write_adapter(tmp_path, weights)) == NOT_FINITE


def as_bfloat16(weights: dict[str, np.ndarray], folder: Path) -> Path:
    """The adapter in a format that numpy does not have."""
    write_adapter(folder, weights)
    entries, parts, end = {}, [], 0
    for name, weight in weights.items():
        part = (weight.view(np.uint32) >> 16).astype("<u2").tobytes()
        offsets = [end, end := end + len(part)]
        entries[name] = {"dtype": "BF16", "shape": list(weight.shape), "data_offsets": offsets}
        parts.append(part)
    header = json.dumps(entries).encode()
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(header)) + header + b"".join(parts))
    return folder


def test_weights_must_be_finite_also_as_bfloat16(tmp_path: Path) -> None:
    weights = lora()
    weights[A][0, 0] = 8192.0
    assert problem(as_bfloat16(weights, tmp_path)) == ""
    weights[A][0, 0] = np.nan
    assert "not a finite number" in problem(as_bfloat16(weights, tmp_path))


Weights = dict[str, np.ndarray]


def without(name: str) -> Callable[[Weights], Weights]:
    return lambda weights: {n: w for n, w in weights.items() if n != name}


def with_one(name: str, weight: np.ndarray) -> Callable[[Weights], Weights]:
    return lambda weights: {**weights, name: weight}


def in_layer_99(weights: Weights) -> Weights:
    return {n.replace("layers.0", "layers.99"): w for n, w in weights.items()}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (without(A), "only one of a LoRA's two parts"),
        (lambda weights: {}, "holds nothing"),
        (with_one("lm_head.weight", np.ones((2, 2), np.float32)), "not how peft names"),
        (with_one(A, np.ones((5, 128), np.float32)), "has not the rank 4"),
        (with_one(A, np.ones((4, 64), np.float32)), "another model"),
        (with_one(A, np.ones(512, np.float32)), "has not the rank 4"),
        (with_one(A, np.ones((4, 128), np.float64)), "must be one of F32, F16, BF16"),
        (in_layer_99, "it has model.layers.99.self_attn.q_proj, and what is served has"),
    ],
)
def test_other_weights_are_refused(
    tmp_path: Path, change: Callable[[Weights], Weights], why: str
) -> None:
    assert why in problem(write_adapter(tmp_path, change(lora())))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"r": 8}, "has not the rank 8"),
        ({"r": 0}, "cannot be read"),
        ({"r": 32}, "its rank is 32, and vLLM was started for ranks up to 16"),
        ({"lora_alpha": 1e300}, "its lora_alpha 1e+300 is more than 1000 times its rank"),
        ({"lora_alpha": -1e9}, "its lora_alpha -1e+09 is more than 1000 times its rank"),
        ({"peft_type": "IA3"}, "no LoRA"),
        ({"base_model_name_or_path": "org/other"}, "made for 'org/other'"),
        ({"base_model_name_or_path": None}, "cannot be read"),
        ({"use_dora": True}, "use_dora"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern"),
        ({"bias": "all"}, "bias"),
    ],
)
def test_other_configurations_are_refused(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    assert why in problem(write_adapter(tmp_path, lora(), config() | changes))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"r": 4}', "[" * 100_000, "\x00", "\ud800"]
)
def test_a_configuration_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    write_adapter(tmp_path, lora())
    (tmp_path / CONFIG).write_bytes(text.encode("utf-8", "surrogatepass"))
    assert problem(tmp_path).startswith(f"{CONFIG} cannot be read")


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    (write_adapter(tmp_path, lora()) / name).unlink()
    assert name in problem(tmp_path)


def test_every_cut_of_the_file_is_noticed(tmp_path: Path) -> None:
    whole = (write_adapter(tmp_path, lora()) / WEIGHTS).read_bytes()
    for length in {0, 1, 7, 8, 9, 200, len(whole) // 2, len(whole) - 1}:
        (tmp_path / WEIGHTS).write_bytes(whole[:length])
        assert WEIGHTS in problem(tmp_path)
    (tmp_path / WEIGHTS).write_bytes(whole + b"\0")
    assert "file not fully covered" in problem(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(tmp_path_factory.mktemp("whole"), lora())


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_spoilt_header_never_ends_in_an_exception(whole: Path, data: st.DataObject) -> None:
    """Whatever the header says, it is read as weights inside the file, or refused."""
    content = bytearray((whole / WEIGHTS).read_bytes())
    (length,) = struct.unpack("<Q", content[:8])
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, 8 + length - 1))
        content[place] = data.draw(st.integers(0, 255))
    spoilt = whole.parent / "spoilt"
    shutil.copytree(whole, spoilt, dirs_exist_ok=True)
    (spoilt / WEIGHTS).write_bytes(content)
    assert isinstance(problem(spoilt), str)
    size = len(content) - 8 - int.from_bytes(content[:8], "little")
    tensors = read_tensors(spoilt / WEIGHTS).value_or({})
    assert all(tensor.data_offsets[1] <= size for tensor in tensors.values())
