"""Language-model servers in processes of their own, and adapters to send them."""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import msgspec
import numpy as np

from nip_fn.training.tuning import Job

from .fleets import free_ports

MODEL = "builtin:tea"
PATIENCE = 300.0  # seconds for what takes a few on a machine that is busy
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MAIN = "from nip_fn_cli.main import main; main()"


class Answer:
    """The answer of a server."""

    def __init__(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.status, self.body, self.headers = status, body, headers

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def detail(self) -> str:
        """The one line of an error."""
        line: str = self.json()["detail"]
        assert "\n" not in line
        assert "Traceback" not in line
        assert set(self.json()) == {"detail"}
        return line


def ask(
    url: str, method: str = "GET", body: Any = None, headers: dict[str, str] | None = None
) -> Answer:
    """A request; a body that is not bytes is sent as JSON."""
    data = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc)
    try:
        with suppress(BrokenPipeError, ConnectionResetError):  # it was answered before its end
            connection.request(method, url.partition(parts.netloc)[2], data, headers or {})
        answer = connection.getresponse()
        return Answer(answer.status, answer.read(), dict(answer.headers))
    finally:
        connection.close()


class Server:
    """`nip-fn serve` from `with` to the end of the block, its state in a folder."""

    def __init__(self, state: Path, *options: str, token: str | None = None) -> None:
        self.state, self.token = state, token
        self._given = ("--state", str(state), *options)
        self.url, self.said, self.code = "", "", 0
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "Server":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.process is not None:
            self.end()

    def start(self) -> None:
        """Start it (again)."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        environment.pop("NIP_FN_SERVER_TOKEN", None)
        if self.token is not None:
            environment["NIP_FN_SERVER_TOKEN"] = self.token
        self.process = subprocess.Popen(
            (*(sys.executable, "-c", MAIN, "serve", "--port", "0"), *self._given),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=self.state.parent,
        )
        assert self.process.stdout is not None
        self._listening = threading.Thread(target=self._listen, args=(self.process.stderr,))
        self._listening.start()
        self.url = self.process.stdout.readline().strip()
        if not self.url:
            self.process.wait(timeout=PATIENCE)
            self.end()
            raise RuntimeError(f"the server did not start: {self.said}")

    def _listen(self, stream: Any) -> None:
        for line in stream:
            self.said += line

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """End it; its exit code."""
        assert self.process is not None
        self.process.send_signal(how)
        self.code = self.process.wait(timeout=PATIENCE)
        self._listening.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        assert self.process.stderr is not None
        self.process.stderr.close()
        self.process = None
        return self.code

    def kill(self) -> None:
        """End it as the kernel does where memory is short."""
        self.end(signal.SIGKILL)

    def ask(self, path: str, method: str = "GET", body: Any = None, **headers: str) -> Answer:
        """A request, with the token."""
        shown = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        return ask(f"{self.url}{path}", method, body, {**shown, **headers})

    def put_adapter(self, name: str, folder: Path) -> None:
        """Upload an adapter."""
        for file in (CONFIG, WEIGHTS):
            answer = self.ask(f"/adapters/{name}/{file}", "PUT", (folder / file).read_bytes())
            assert answer.status == 204, answer.body

    def put_job(self, id: str, job: Job) -> Answer:
        """Queue a job."""
        return self.ask(f"/training/jobs/{id}", "PUT", job)

    def job(self, id: str) -> dict[str, Any]:
        """The state of a job."""
        found: dict[str, Any] = self.ask(f"/training/jobs/{id}").json()
        return found

    def served(self) -> list[str]:
        """The models that its only vLLM names: the base model, and adapters."""
        status = self.ask("/vllm/status").json()
        (replica,) = status["replicas"]
        shown = {"Authorization": f"Bearer {status['key'] or self.token}"}
        models = ask(f"http://127.0.0.1:{replica['port']}/v1/models", headers=shown).json()
        return [model["id"] for model in models["data"]]

    def wait_for(self, id: str, *states: str) -> dict[str, Any]:
        """The job, once it is in one of those states."""
        return eventually(lambda: self.job(id), lambda job: job["status"] in states)


def eventually(look: Callable[[], Any], holds: Callable[[Any], bool]) -> Any:
    """The first value of `look` that `holds` accepts."""
    end = time.monotonic() + PATIENCE
    while True:
        seen = look()
        if holds(seen):
            return seen
        assert time.monotonic() < end, f"it never came to that; last seen: {seen}"
        time.sleep(0.05)


def descendants(pid: int) -> set[int]:
    """The processes that a process has started, and those that these have."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, new = set(), [pid]
    while new:
        new = [child for parent in new for child in parents.get(parent, ())]
        found |= set(new)
    return found


def lora(rank: int = 4, seed: int = 0, width: int = 128, layers: int = 3) -> dict[str, np.ndarray]:
    """The weights of a LoRA for the tiny model: its queries and its values."""
    drawn = np.random.default_rng(seed)
    weights = {}
    for layer in range(layers):
        for module in ("q_proj", "v_proj"):
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            a, b = drawn.normal(size=(2, rank, width)).astype(np.float32) / 10
            weights |= {f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b.T.copy()}
    return weights


def config(rank: int = 4, model: str = MODEL, **others: Any) -> dict[str, Any]:
    """The configuration that peft writes beside the weights."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": model,
        "r": rank,
        "lora_alpha": 8,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ["q_proj", "v_proj"],
        **others,
    }


def write_adapter(
    folder: Path, weights: dict[str, np.ndarray], told: dict[str, Any] | None = None
) -> Path:
    """An adapter as peft saves one."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(told or config()))
    return folder


FAKE_VLLM = Path(__file__).parents[1] / "vllm" / "fake.py"


def fake_vllm(folder: Path) -> tuple[str, ...]:
    """Options for a server whose vLLM is a fake, which notes in `folder` how it was started."""
    folder.mkdir(exist_ok=True)
    command = f"{sys.executable} {FAKE_VLLM} --fake-folder {folder}"
    return "--vllm-command", command, "--vllm-port", str(free_ports(1))
