"""`nip-fn serve`: the language-model server, which runs vLLM and trainings on its machine."""

import os
import shlex
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from nip_fn_adapters.local.children import cores
from nip_fn_adapters.local.models import model_directory
from nip_fn_adapters.serving.gpus import visible_gpus
from nip_fn_adapters.serving.in_vllm.nip_fn_access import is_loopback
from nip_fn_adapters.serving.settings import FleetSettings, ServerSettings, find_vllm
from nip_fn_adapters.serving.training import TrainingSettings, run_training
from nip_fn_adapters.serving.wire import TOKEN_VARIABLE
from nip_fn_cli.exits import Exit, die, or_exit, say

if TYPE_CHECKING:
    from nip_fn_adapters.serving.fleet import Fleet

T = TypeVar("T")


class VllmOptions(NamedTuple):
    """The options that vLLM is started with."""

    command: str | None  # None: it is searched for
    arguments: str
    port: int
    replicas: int | None
    max_model_len: int | None
    start_limit: float


def serves_on(wanted: bool | None, cluster: str | None) -> bool:
    """True if vLLM keeps serving while a training runs.

    By default if neither has a GPU, or on a Ray cluster, where each has its own.
    """
    return (cluster is not None or not visible_gpus()) if wanted is None else wanted


def serve_command(
    settings: ServerSettings,
    vllm: VllmOptions,
    training: TrainingSettings,
    port: int,
    cluster: str | None,
) -> None:
    """Serve until SIGTERM or SIGINT; vLLM and trainings run here, or on a Ray cluster."""
    try:
        from nip_fn_adapters.serving import running
        from nip_fn_adapters.serving.service import Service
    except ModuleNotFoundError as error:
        die(Exit.USAGE, f'the server needs {error.name}: pip install "nip-fn[serve]"')
    settings = settings._replace(token=_token(settings.host), state=settings.state.absolute())
    command = _command(settings, vllm)
    # Trainings that run at one time share the cores, or they would wait for one another.
    training = training._replace(threads=max(1, cores() // settings.parallel_jobs))
    # Before anything is started: to load a model takes minutes, and a folder or a port that is in
    # use should be told at once.
    or_exit(running.lock(settings.state), Exit.RUN)
    bound = or_exit(running.bind(settings.host, port), Exit.SYSTEM)

    train = run_training if cluster is None else _join(cluster)

    def make_service() -> Service:
        fleet = None if command is None else _fleet(settings, vllm, command, cluster)
        return Service(settings, fleet, partial(train, settings=training))

    try:
        running.run(make_service, bound, partial(_greet, settings, vllm))
    except msgspec.DecodeError as error:
        die(Exit.RUN, f"{settings.state} cannot be read as a server's folder: {error}")


def _token(host: str) -> str | None:
    """The token that clients must show.  It is removed from the environment of child processes."""
    token = os.environ.pop(TOKEN_VARIABLE, "")
    if not token and not is_loopback(host):
        die(
            Exit.USAGE,
            f"a server that other machines reach (--host {host}) needs a token: set "
            f"{TOKEN_VARIABLE} to the same long random text here and where nip-fn train runs",
        )
    # An HTTP header could not carry anything else.
    if not token.isascii() or any(character.isspace() for character in token):
        die(Exit.USAGE, f"{TOKEN_VARIABLE} must consist of ASCII characters without spaces")
    return token or None


def _command(settings: ServerSettings, options: VllmOptions) -> tuple[str, ...] | None:
    """The command that starts vLLM; None if there is none, and no model to serve."""
    if settings.model is not None:
        folder = model_directory(settings.model)
        or_exit(folder.alt(lambda problem: problem.at("--model")), Exit.USAGE)
    if options.command is not None:
        return tuple(shlex.split(options.command))
    found = find_vllm()
    if settings.model is not None:
        return or_exit(found, Exit.ADAPTER)
    found.alt(lambda problem: say(f"nip-fn serve: this server can only train: {problem}"))
    return found.value_or(None)


def _join(cluster: str) -> "Callable[..., Awaitable[int]]":
    """A way to train on the Ray cluster at that address, which is joined now."""
    try:
        from nip_fn_adapters.serving import on_ray
    except ModuleNotFoundError as error:
        die(Exit.USAGE, f"--ray needs {error.name}: pip install 'nip-fn[ray]'")
    try:
        on_ray.connect(cluster)
    except (OSError, ValueError):  # refused, or no address
        remedy = "start one (ray start --head), or correct the address"
        die(Exit.SYSTEM, f"--ray: no Ray cluster answers at {cluster}; {remedy}")
    return on_ray.train_on_ray


def _fleet(
    settings: ServerSettings, options: VllmOptions, command: tuple[str, ...], cluster: str | None
) -> "Fleet":
    from nip_fn_adapters.serving.fleet import Fleet
    from nip_fn_adapters.serving.running import kept_key

    own = FleetSettings(
        command=command,
        folder=settings.state / "vllm",
        key=settings.token or kept_key(settings.state),
        host=settings.host,
        port=options.port,
        replicas=options.replicas,
        max_model_len=options.max_model_len,
        local_only=settings.token is None,
        extra=tuple(shlex.split(options.arguments)),
        start_limit=options.start_limit,
    )
    if cluster is None:
        return Fleet(own, model_directory)
    from nip_fn_adapters.serving.on_ray import RayCluster

    for_training = settings.parallel_jobs if settings.keep_serving else 0
    return Fleet(own, model_directory, RayCluster(own, for_training))


def _greet(settings: ServerSettings, options: VllmOptions, port: int) -> None:
    """Print the server's address on stdout, for programs, and a line for people."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    print(f"http://{host}:{port}", flush=True)
    model = settings.model or "the first model that is asked for"
    say(f"nip-fn serve: {model} on vLLM's port {options.port}; jobs and adapters: {settings.state}")
