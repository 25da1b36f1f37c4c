"""`nip-fn serve`: the language-model server, which owns vLLM and trainings on its machine."""

import os
import shlex
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from returns.result import Failure

from nip_fn_adapters.local.children import cores
from nip_fn_adapters.local.models import model_directory
from nip_fn_adapters.serving.gpus import visible_gpus
from nip_fn_adapters.serving.settings import ServerSettings, find_vllm, is_loopback
from nip_fn_adapters.serving.training import TrainingSettings, run_training
from nip_fn_adapters.serving.wire import TOKEN_VARIABLE
from nip_fn_cli.exits import Exit, die, say

if TYPE_CHECKING:
    from nip_fn_adapters.serving.fleet import Fleet


class VllmOptions(NamedTuple):
    """How vLLM is to be started."""

    command: str | None  # None: it is looked for
    arguments: str
    port: int
    replicas: int
    max_model_len: int | None
    start_limit: float


def serves_on(wanted: bool | None) -> bool:
    """Whether vLLM goes on while a training runs; None: where neither needs a GPU."""
    return not visible_gpus() if wanted is None else wanted


def serve_command(
    settings: ServerSettings, vllm: VllmOptions, training: TrainingSettings, port: int
) -> None:
    """Serve until SIGTERM or SIGINT."""
    try:
        from nip_fn_adapters.serving import running
        from nip_fn_adapters.serving.service import Service
    except ModuleNotFoundError as error:
        die(Exit.USAGE, f'the server needs {error.name}: pip install "nip-fn[serve]"')
    settings = settings._replace(token=_token(settings.host), state=settings.state.absolute())
    command = _command(settings, vllm)
    training = training._replace(threads=max(1, cores() // settings.parallel_jobs))
    held = running.hold(settings.state)
    if isinstance(held, Failure):
        die(Exit.RUN, held.failure())
    bound = running.listen(settings.host, port)
    if isinstance(bound, Failure):
        die(Exit.SYSTEM, bound.failure())

    def make_service() -> Service:
        fleet = None if command is None else _fleet(settings, vllm, command)
        return Service(settings, fleet, partial(run_training, settings=training))

    try:
        running.run(make_service, bound.unwrap(), partial(_greet, settings, vllm))
    except msgspec.DecodeError as error:
        die(Exit.RUN, f"{settings.state} cannot be read as a server's folder: {error}")


def _token(host: str) -> str | None:
    """What clients must show.  It is taken out of the environment, which children inherit."""
    token = os.environ.pop(TOKEN_VARIABLE, "")
    if not token and not is_loopback(host):
        die(
            Exit.USAGE,
            f"beyond this machine (--host {host}) the server wants a token: set {TOKEN_VARIABLE} "
            "to the same long random text here and where nip-fn train runs",
        )
    if not token.isascii() or any(character.isspace() for character in token):
        die(Exit.USAGE, f"{TOKEN_VARIABLE} must be of ASCII characters without spaces")
    return token or None


def _command(settings: ServerSettings, options: VllmOptions) -> tuple[str, ...] | None:
    """What starts vLLM; None where there is none, and none is needed at once."""
    if settings.model is not None:
        folder = model_directory(settings.model)
        if isinstance(folder, Failure):
            die(Exit.USAGE, f"--model: {folder.failure()}")
    if options.command is not None:
        return tuple(shlex.split(options.command))
    found = find_vllm()
    if isinstance(found, Failure):
        if settings.model is not None:
            die(Exit.ADAPTER, found.failure())
        say(f"nip-fn serve: this server can only train: {found.failure()}")
    return found.value_or(None)


def _fleet(settings: ServerSettings, options: VllmOptions, command: tuple[str, ...]) -> "Fleet":
    from nip_fn_adapters.serving.fleet import Fleet, FleetSettings

    return Fleet(
        FleetSettings(
            command=command,
            folder=settings.state / "vllm",
            host=settings.host,
            port=options.port,
            replicas=options.replicas,
            max_model_len=options.max_model_len,
            api_key=settings.token,
            extra=tuple(shlex.split(options.arguments)),
            start_limit=options.start_limit,
        ),
        model_directory,
    )


def _greet(settings: ServerSettings, options: VllmOptions, port: int) -> None:
    """Say where the server is; the first line on stdout is its address, for programs."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    print(f"http://{host}:{port}", flush=True)
    model = settings.model or "the model that is first asked for"
    say(f"nip-fn serve: {model} on vLLM's port {options.port}; jobs and adapters: {settings.state}")
