"""How a language-model server is set up, and where its vLLM is found."""

import ipaddress
import os
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from returns.result import Failure, Result, Success

VLLM_VARIABLE = "NIP_FN_VLLM"
VLLM_SERVER = "vllm.entrypoints.openai.api_server"
INSTALL_VLLM = (
    "no vLLM was found; it wants an environment of its own: "
    "python -m venv .venv-vllm && .venv-vllm/bin/pip install vllm"
)


class ServerSettings(NamedTuple):
    """What whoever starts the server decides."""

    state: Path  # the folder of all that survives a restart
    model: str | None = None  # the only base model to be served; None: the first that is asked for
    token: str | None = None  # that clients must show; None: whoever can connect may do all
    host: str = "127.0.0.1"
    keep_adapters: int = 5  # that are not served any more, of each owner
    keep_serving: bool = True  # while a training runs; false: its memory is lent to the training
    parallel_jobs: int = 1
    max_json_bytes: int = 256 << 20
    max_upload_bytes: int = 4096 << 20


def find_vllm() -> Result[tuple[str, ...], str]:
    """The command that starts vLLM's OpenAI server, without options; or how to install it.

    The Python that $NIP_FN_VLLM names; that of `.venv-vllm`, in the working directory or beside
    the environment of this Python; or this Python itself.
    """
    named = os.environ.get(VLLM_VARIABLE)
    places = (Path(".venv-vllm"), Path(sys.prefix).parent / ".venv-vllm")
    found = [place / "bin" / "python" for place in places if not named]
    found = [python.absolute() for python in found if python.is_file()]
    if named:
        if not Path(named).is_file():
            return Failure(f"{VLLM_VARIABLE} names {named}, and there is no such Python")
        found = [Path(named).absolute()]
    if not found and find_spec("vllm") is None:
        return Failure(INSTALL_VLLM)
    return Success((str(found[0] if found else sys.executable), "-m", VLLM_SERVER))


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine can mean that host."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def check_port(host: str, port: int) -> None:
    """Raise `OSError` where no program can be reached through that port: another uses it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise OSError(
                f"port {port} of {host} cannot be used ({error.strerror}); "
                "end the program that uses it, or choose another port"
            ) from error
