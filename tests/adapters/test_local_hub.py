"""Models of the Hugging Face hub: found in its cache, downloaded, or refused in one line."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nip_fn.training.losses import DPO, SFT
from nip_fn.training.tuning import Job
from nip_fn_adapters.providers.local.hub import repository
from nip_fn_adapters.providers.local.jobs import JobFiles
from nip_fn_adapters.providers.local.models import load_tokenizer, model_directory
from nip_fn_adapters.providers.local.policy import load_policy

from .fake_hub import COMMIT, Hub, fake_hub
from .tiny_llama import chat, make_tiny_llama
from .training import CHOSEN, log_probability, make_job, make_trainer, rows, supervised_rows, tune

# One worker: these share a server that trainings are forked from, and trl's imports.
pytestmark = pytest.mark.xdist_group("trainings")

LOOK = (
    "import sys\n"
    "from nip_fn_adapters.providers.local.models import model_directory\n"
    "for name in sys.argv[1:]:\n"
    "    found = model_directory(name)\n"
    "    print(found.value_or(None) or found.failure())\n"
)
SAMPLE_AND_TRAIN = """
import asyncio, sys
from pathlib import Path
import msgspec
from nip_fn.training.losses import DPO, SFT
from nip_fn.training.tuning import Job
from nip_fn_adapters.providers.local.policy import load_policy, probe_scores
from nip_fn_adapters.providers.local.tuner import local_tuner
run = Path(sys.argv[1])
job = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Job)
left = asyncio.run(local_tuner(run)(job)).unwrap()
policy = load_policy(job.model, run / "adapters", left.adapter).unwrap()
print(left.scores[0].after, probe_scores(policy, job.probes)[0])
"""


@pytest.fixture
def hub() -> Iterator[Hub]:
    with fake_hub() as one:
        yield one


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("model"))


def look(name: str, environment: dict[str, str]) -> str:
    """The line of a fresh process about the model: its folder, or the problem."""
    (line,) = look_at([name], environment)
    return line


def look_at(names: Iterable[str], environment: dict[str, str]) -> list[str]:
    """The lines of a fresh process about so many models."""
    asked = [sys.executable, "-c", LOOK, *names]
    told = subprocess.run(asked, env=environment, capture_output=True, text=True, check=True)
    return told.stdout.splitlines()


def cached(home: Path, name: str, folder: Path) -> Path:
    """Lay out a model as the hub's cache does; its snapshot."""
    place = home / "hub" / f"models--{name.replace('/', '--')}"
    snapshot = place / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for path in folder.iterdir():
        os.symlink(path, snapshot / path.name)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(COMMIT)
    return snapshot


def test_a_cached_model_is_found_without_asking_the_hub(
    hub: Hub, model: Path, tmp_path: Path
) -> None:
    snapshot = cached(tmp_path, "org/name", model)
    assert look("org/name", hub.environment(tmp_path)) == str(snapshot)
    assert hub.asked == []


@pytest.mark.exhaustive
def test_a_cached_model_is_sampled_and_trained_offline(model: Path, tmp_path: Path) -> None:
    cached(tmp_path / "home", "org/name", model)
    job = replace(make_job(model), model="org/name", rows=supervised_rows(12), loss=SFT())
    variables = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    told = subprocess.run(
        [sys.executable, "-c", SAMPLE_AND_TRAIN, str(tmp_path / "run")],
        env={**os.environ, **variables},
        input=msgspec.msgpack.encode(job),
        capture_output=True,
        check=True,
    )
    trained, served = map(float, told.stdout.split()[-2:])
    assert served == pytest.approx(trained, abs=1e-3)
    (adapter,) = (tmp_path / "run" / "adapters").iterdir()
    config = json.loads((adapter / "adapter_config.json").read_text("utf-8"))
    assert config["base_model_name_or_path"] == "org/name"


def test_a_model_is_downloaded_once_and_only_what_it_is_loaded_from(
    hub: Hub, model: Path, tmp_path: Path
) -> None:
    hub.put("org/name", model)
    more = {"pytorch_model.bin": b"x", "README.md": b"x", "onnx/model.safetensors": b"x"}
    hub.models["org/name"].update(more)
    folder = Path(look("org/name", hub.environment(tmp_path, HF_TOKEN="secret")))
    files = {path.name for path in folder.iterdir()}
    assert files == {path.name for path in model.iterdir()}
    assert (folder / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    assert hub.tokens == {"Bearer secret"}
    hub.asked.clear()
    assert look("org/name", hub.environment(tmp_path)) == str(folder)
    assert hub.asked == []


def test_a_token_that_lies_on_the_disk_is_not_shown(hub: Hub, model: Path, tmp_path: Path) -> None:
    hub.put("org/name", model)
    (tmp_path / "token").write_text("secret")
    assert Path(look("org/name", hub.environment(tmp_path))).is_dir()
    assert hub.tokens == {None}


def test_half_a_model_in_the_cache_is_completed(hub: Hub, model: Path, tmp_path: Path) -> None:
    hub.put("org/name", model)
    (cached(tmp_path, "org/name", model) / "model.safetensors").unlink()
    offline = look("org/name", hub.environment(tmp_path, HF_HUB_OFFLINE="1"))
    assert "org/name" in offline
    assert "no weights" in offline
    assert hub.asked == []
    assert (Path(look("org/name", hub.environment(tmp_path))) / "model.safetensors").is_file()


UNAVAILABLE = {
    "org/none": "neither a folder nor a model",
    "org/gated": "accept its terms",
    "org/pickled": "no weights as safetensors",
    "org/half": "model-00002-of-00002.safetensors is missing",
    "org/deep": "its model.safetensors.index.json cannot be read",
    "a--b/../c": "is no model",
    "org/na--me": "'org/na--me'",
}


def test_what_cannot_be_had_is_told_in_one_line_that_names_it(hub: Hub, tmp_path: Path) -> None:
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    index["weight_map"]["b"] = "model-00002-of-00002.safetensors"
    hub.models = {
        "org/gated": {"config.json": b"{}"},
        "org/pickled": {"config.json": b"{}", "pytorch_model.bin": b"x"},
        "org/half": {
            "config.json": b"{}",
            "model-00001-of-00002.safetensors": b"x",
            "model.safetensors.index.json": json.dumps(index).encode(),
        },
        "org/deep": {
            "config.json": b"{}",
            "model.safetensors.index.json": b'{"x": ' + b"[" * 100_000 + b"]" * 100_000,
        },
    }
    hub.gated = {"org/gated"}
    told = look_at(UNAVAILABLE, hub.environment(tmp_path))
    for line, (name, words) in zip(told, UNAVAILABLE.items(), strict=True):
        assert name in line
        assert words in line


def test_offline_and_away_are_told_apart(hub: Hub, tmp_path: Path) -> None:
    offline = look("org/name", hub.environment(tmp_path, HF_HUB_OFFLINE="1"))
    assert "HF_HUB_OFFLINE" in offline
    away = look("org/name", hub.environment(tmp_path, HF_ENDPOINT="http://127.0.0.1:1"))
    assert "cannot be downloaded" in away
    assert "onnect" in away


def test_a_folder_of_that_name_comes_before_the_hub(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org").mkdir()
    os.symlink(model, tmp_path / "org" / "name")
    monkeypatch.chdir(tmp_path)
    assert model_directory("org/name").unwrap() == Path("org/name")


@given(
    st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,199}\Z"),
    st.from_regex(r"\A[a-z][a-z0-9]{0,38}\Z"),
)
def test_any_adapter_has_a_repository_that_keeps_the_end_of_its_name(
    adapter: str, namespace: str
) -> None:
    name = f"{adapter}-0123abcd"
    pushed = repository(namespace, name)
    from huggingface_hub.utils import validate_repo_id

    validate_repo_id(pushed)
    assert pushed.startswith(f"{namespace}/")
    assert pushed.endswith("0123abcd")


def test_a_model_in_several_files_is_sampled_and_trained(model: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    whole = AutoModelForCausalLM.from_pretrained(model)
    whole.save_pretrained(tmp_path / "model", max_shard_size="20KB")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (tmp_path / "model" / name).write_bytes((model / name).read_bytes())
    assert len(list((tmp_path / "model").glob("*.safetensors"))) > 1
    one, other = (
        log_probability(load_policy(str(folder), tmp_path, None).unwrap(), chat("x"), CHOSEN)
        for folder in (model, tmp_path / "model")
    )
    assert one == other
    losses = {first_loss(make_job(folder), tmp_path) for folder in (model, tmp_path / "model")}
    assert len(losses) == 1


@pytest.mark.parametrize("is_supervised", [True, False])
def test_a_model_without_a_token_for_padding_is_trained_as_with_one(
    model: Path, tmp_path: Path, is_supervised: bool
) -> None:
    bare = make_tiny_llama(tmp_path / "model")
    edit(bare / "tokenizer_config.json", pad_token=None)
    edit(bare / "config.json", pad_token_id=None)
    assert load_tokenizer(bare).pad_token is None
    # Rows of different lengths.
    some, loss = (supervised_rows(12), SFT()) if is_supervised else (rows(12), DPO())
    with_one, without = (
        first_loss(replace(make_job(folder), rows=some, loss=loss), tmp_path)
        for folder in (model, bare)
    )
    assert without == pytest.approx(with_one, abs=1e-6)


def first_loss(job: Job, run: Path) -> float:
    """The loss of a training's first batch."""
    trainer, _ = make_trainer(job, JobFiles(run, job.name))
    batch = next(iter(trainer.get_train_dataloader()))
    return float(trainer.compute_loss(trainer.model.train(), batch).detach())


def test_a_model_without_a_chat_template_is_neither_sampled_nor_trained(tmp_path: Path) -> None:
    bare = make_tiny_llama(tmp_path / "model")
    (bare / "chat_template.jinja").unlink()
    (failed,) = tune(tmp_path, make_job(bare))
    sampled = load_policy(str(bare), tmp_path, None)
    for cause in map(str, (failed.failure(), sampled.failure())):
        assert "no chat template" in cause
        assert "\n" not in cause


def test_pickled_weights_are_not_loaded(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    bare = make_tiny_llama(tmp_path / "model")
    torch.save(load_file(bare / "model.safetensors"), bare / "pytorch_model.bin")
    (bare / "model.safetensors").unlink()
    failure = str(load_policy(str(bare), tmp_path, None).failure())
    assert "safetensors" in failure
    assert "\n" not in failure


def edit(path: Path, **values: object) -> None:
    """Change entries of a JSON file; None takes one away."""
    found = {**json.loads(path.read_text("utf-8")), **values}
    kept = {name: value for name, value in found.items() if value is not None}
    path.write_text(json.dumps(kept), "utf-8")
