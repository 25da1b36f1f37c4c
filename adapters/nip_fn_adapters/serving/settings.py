"""The settings of a language-model server, and the vLLM and the ports that it uses."""

import os
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from returns.result import Failure, Result, Success

from nip_fn.errors import Problem
from nip_fn_adapters.serving.wire import RestartPolicy

VLLM_VARIABLE = "NIP_FN_VLLM"
VLLM_SERVER = "vllm.entrypoints.openai.api_server"
# vLLM's pins are not trl's, so one environment cannot hold both.
NO_VLLM = Problem(
    "no vLLM was found; it wants an environment of its own",
    remedy="python -m venv .venv-vllm && .venv-vllm/bin/pip install vllm",
    kind="adapter",
)


class ServerSettings(NamedTuple):
    """The settings that whoever starts the server chooses."""

    state: Path  # the folder of all that survives a restart
    model: str | None = None  # the only base model to serve; None: the first that is asked for
    # For which vLLM is started with that model, before any run has asked: those of a verifier and a
    # prover with the default rank.  More, and it has to be started again.
    max_loras: int = 2
    max_lora_rank: int = 64
    token: str | None = None  # that clients must show; None: only this machine is served
    host: str = "127.0.0.1"
    keep_adapters: int = 5  # retired adapters of each owner that stay on disk
    keep_serving: bool = True  # while a training runs; false: its memory is lent to the training
    parallel_jobs: int = 1
    max_json_bytes: int = 256 << 20
    max_upload_bytes: int = 4096 << 20


class FleetSettings(NamedTuple):
    """The settings of vLLM that do not depend on a run's needs.  Times are in seconds."""

    command: tuple[str, ...]  # starts vLLM's OpenAI server; options are appended
    folder: Path  # of its logs
    key: str = ""  # that vLLM asks for
    host: str = "127.0.0.1"
    port: int = 8000  # of the first replica; the others follow
    replicas: int | None = None  # None: one for every few GPUs that hold the model
    max_model_len: int | None = None  # tokens; None: the model's own limit
    local_only: bool = True  # nobody has set a token: clients are told the key, and must be here
    extra: tuple[str, ...] = ()  # the user's options for vLLM, which override ours
    start_limit: float = 900.0  # until a vLLM answers
    hang_limit: float = 300.0  # until a vLLM whose engine answers nothing is started again
    port_limit: float = 30.0  # until its port is free: the last server's vLLM may still end
    restarts: RestartPolicy = RestartPolicy()

    def log(self, port: int) -> Path:
        """The log of the replica on that port."""
        return self.folder / "logs" / f"vllm-{port}.log"


def find_vllm() -> Result[tuple[str, ...], Problem]:
    """The command that starts vLLM's OpenAI server, without options; or how to install it.

    The Python that $NIP_FN_VLLM names; that of `.venv-vllm`, in the working directory or beside
    the environment of this Python; or this Python itself.
    """
    named = os.environ.get(VLLM_VARIABLE)
    if named:
        if not Path(named).is_file():
            return Failure(
                Problem(
                    f"{VLLM_VARIABLE} names {named}, and there is no such Python",
                    remedy="set it to the path of the Python that has vLLM",
                    kind="adapter",
                )
            )
        return Success(_server_command(Path(named)))
    for folder in (Path(".venv-vllm"), Path(sys.prefix).parent / ".venv-vllm"):
        if (folder / "bin" / "python").is_file():
            return Success(_server_command(folder / "bin" / "python"))
    if find_spec("vllm") is None:
        return Failure(NO_VLLM)
    return Success(_server_command(Path(sys.executable)))


def _server_command(python: Path) -> tuple[str, ...]:
    return (str(python.absolute()), "-m", VLLM_SERVER)


def check_port(host: str, port: int) -> Result[None, Problem]:
    """Success if a program could listen there now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        # As servers do; without it, connections that were closed lately would hold the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return Failure(
                Problem(
                    f"port {port} of {host} cannot be used ({error.strerror})",
                    remedy="end the program that uses it, or choose another port",
                )
            )
    return Success(None)
