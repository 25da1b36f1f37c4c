"""Runs on the Hugging Face hub, by its real client and a hub on loopback; and at W&B."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nip_fn_adapters import load_run

from ..adapters.fake_hub import Hub, fake_hub
from .conftest import COMMAND, Finished, RunCli, call_cli
from .test_loading import SMALL, load

pytestmark = pytest.mark.xdist_group("sharing")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of random words, with weights where a real training would have left them."""
    home = tmp_path_factory.mktemp("shared")
    done = call_cli(home, "train", *SMALL, "--run", "a")
    assert done.returncode == 0, done.stderr
    for adapter in load_run(home / "runs/a").unwrap().lineage("verifier"):
        folder = home / "runs/a/adapters" / adapter.name
        folder.mkdir(parents=True)
        (folder / "adapter_model.safetensors").write_bytes(adapter.name.encode() * 100)
        (folder / "adapter_config.json").write_text("{}")
        (folder / "training_args.bin").write_bytes(b"a pickle")
    return home / "runs/a"


@pytest.fixture
def earlier(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "runs/a"))


@pytest.fixture(scope="module")
def serving() -> Iterator[Hub]:
    with fake_hub() as one:
        yield one


@pytest.fixture
def at_hub(serving: Hub, tmp_path: Path) -> Callable[..., Finished]:
    """The command in a process of its own: the client reads its address when it is imported."""

    def run(*words: object) -> Finished:
        return subprocess.run(
            [COMMAND, *map(str, words)],
            cwd=tmp_path,
            env=serving.environment(tmp_path / "hf", HF_TOKEN="hf_shared"),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    return run


def test_a_run_is_pushed_and_pulled_and_gone_on_from(
    earlier: Path, at_hub: Callable[..., Finished], serving: Hub, run_cli: RunCli, tmp_path: Path
) -> None:
    pushed = at_hub("export", "a", "--to", "hf", "--push", "me/run")
    assert pushed.returncode == 0, pushed.stderr
    assert serving.created[-1]["visibility"] == "private"
    held = serving.models["me/run"]
    assert {"README.md", "checkpoint.msgpack", "config.toml", "data/games.parquet"} <= set(held)
    original = load_run(earlier).unwrap()
    assert f"Digest: `{original.digest}`" in held["README.md"].decode()
    pulled = at_hub("pull", "me/run", "--run", "b")
    assert pulled.returncode == 0, pulled.stderr
    copy = load_run(tmp_path / "runs/b").unwrap()
    assert copy.digest == original.digest
    names = [adapter.name for adapter in original.lineage("verifier")]
    for name in names:
        weights = tmp_path / "runs/b/adapters" / name
        assert (weights / "adapter_model.safetensors").read_bytes() == name.encode() * 100
        assert not (weights / "training_args.bin").exists(), "no pickle is downloaded"
    assert "hf_shared" not in pushed.stdout + pushed.stderr + pulled.stdout + pulled.stderr
    on = run_cli("train", *SMALL, *load("verifier", checkpoint_run_id="b"), "--run", "c")
    assert on.returncode == 0, on.stderr
    assert load_run(tmp_path / "runs/c").unwrap().lineage("verifier")[0].name == names[-1]
    again = run_cli("train", "runs/b/config.toml", "--run", "d")
    assert again.returncode == 0, again.stderr
    assert load_run(tmp_path / "runs/d").unwrap().digest == original.digest


def test_what_is_not_a_run_is_refused_and_leaves_nothing(
    earlier: Path, at_hub: Callable[..., Finished], serving: Hub, tmp_path: Path
) -> None:
    whole = (earlier / "checkpoint.msgpack").read_bytes()
    serving.models["me/model"] = {"config.json": b"{}"}
    serving.models["me/damaged"] = {"checkpoint.msgpack": whole[:900] + b"?" + whole[901:]}
    for place, words in (
        ("me/model", "has no checkpoint.msgpack"),
        ("me/damaged", "checksum"),
        ("me/nobody", "cannot be downloaded"),
    ):
        refused = at_hub("pull", place, "--run", "b")
        assert refused.returncode in (4, 9), refused.stderr
        assert words in refused.stderr
        assert refused.stderr.startswith(f"nip-fn: {place}")
        assert "Traceback" not in refused.stderr
        assert [path.name for path in (tmp_path / "runs").iterdir()] == ["a"]
    serving.refuses_pushes = True
    try:
        refused = at_hub("export", "a", "--to", "hf", "--push", "me/run")
    finally:
        serving.refuses_pushes = False
    assert refused.returncode == 9
    assert "set HF_TOKEN to a token that may write there" in refused.stderr


def test_the_folder_is_what_is_pushed(earlier: Path, run_cli: RunCli, tmp_path: Path) -> None:
    done = run_cli("export", "a", "--to", "hf", "-o", "out")
    assert done.returncode == 0, done.stderr
    card = (tmp_path / "out/hf/README.md").read_text()
    _, header, body = card.split("---\n", 2)
    fields = dict(line.split(": ", 1) for line in header.splitlines())
    assert fields["library_name"] == "peft"
    assert "nip-fn" in json.loads(fields["tags"])
    last = load_run(earlier).unwrap().state.rows[-1]
    assert f"| {last.iteration} | {100 * dict(last.metrics)['accuracy']:g} % |" in body
    lost = run_cli("export", "a", "--to", "csv", "--push", "me/run")
    assert lost.returncode == 2
    assert "add --to hf" in lost.stderr
    taken = run_cli("pull", "me/a")
    assert taken.returncode == 3
    assert "give it another name (--run)" in taken.stderr


STUB = """
import shutil
from pathlib import Path

class Api:
    def artifact(self, name):
        assert name.startswith("team/project/") and name.endswith(":latest"), name
        self.name = name.removeprefix("team/project/").removesuffix(":latest")
        return self

    def download(self, root):
        shutil.copytree(Path(HOME) / self.name, root, dirs_exist_ok=True)
"""


def test_a_tracked_run_is_pulled_by_its_artifacts(earlier: Path, tmp_path: Path) -> None:
    """W&B serves no artifacts without its server: a module of its name copies them instead."""
    artifacts = tmp_path / "artifacts"
    (artifacts / "a-1234-recording").mkdir(parents=True)
    shutil.copy(earlier / "checkpoint.msgpack", artifacts / "a-1234-recording")
    shutil.copytree(earlier / "adapters", artifacts, dirs_exist_ok=True)
    (tmp_path / "wandb.py").write_text(f"HOME = {str(artifacts)!r}\n{STUB}")
    done = subprocess.run(
        [COMMAND, "pull", "wandb:team/project/a-1234"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "runs/a-1234"
    copy, original = load_run(tmp_path / "runs/a-1234").unwrap(), load_run(earlier).unwrap()
    assert copy.digest == original.digest
    for adapter in original.lineage("verifier"):
        assert (tmp_path / "runs/a-1234/adapters" / adapter.name).is_dir()
