"""`nip-fn serve`: the language-model server, which runs vLLM and trainings on its machine."""

import os
import pwd
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from nip_fn_adapters.processes.cluster import join
from nip_fn_adapters.providers.local.children import cores
from nip_fn_adapters.providers.local.models import model_directory
from nip_fn_adapters.serving.gpus import visible_gpus
from nip_fn_adapters.serving.in_vllm.nip_fn_access import is_loopback
from nip_fn_adapters.serving.settings import FleetSettings, ServerSettings, find_vllm
from nip_fn_adapters.serving.training import TrainingSettings, run_training, spread
from nip_fn_adapters.serving.wire import TOKEN_VARIABLE
from nip_fn_cli.shown.exits import Exit, die, or_exit, say

if TYPE_CHECKING:
    from nip_fn_adapters.serving.fleet import Fleet

T = TypeVar("T")
PEOPLE = range(1000, 60000)  # their user ids; the system's own accounts have others


def serve_command(
    settings: ServerSettings,
    vllm: FleetSettings,
    training: TrainingSettings,
    port: int,
    cluster: str | None,
    keep_serving: bool | None,
) -> None:
    """Serve until SIGTERM or SIGINT; vLLM and trainings run here, or on a Ray cluster.

    Without a command for vLLM, it is searched for.  If not told whether to keep serving while a
    training runs, vLLM does where each has what it needs.
    """
    try:
        from nip_fn_adapters.serving import running
        from nip_fn_adapters.serving.service import Service
    except ModuleNotFoundError as error:
        die(Exit.USAGE, f'the server needs {error.name}: pip install "nip-fn[serve]"')
    settings = settings._replace(token=_token(settings.host), state=settings.state.absolute())
    command = _command(settings, vllm.command)
    # Trainings that run at one time share the cores, or they would wait for one another.
    training = training._replace(threads=max(1, cores() // settings.parallel_jobs))
    # Before anything is started: to load a model takes minutes, and a folder or a port that is in
    # use should be told at once.
    or_exit(running.lock(settings.state))
    bound = or_exit(running.bind(settings.host, port))

    train: Callable[..., Awaitable[int]] = run_training
    if cluster is None:
        keep_serving = not visible_gpus() if keep_serving is None else keep_serving
    else:
        training = or_exit(spread(training))
        or_exit(join(cluster))
        from nip_fn_adapters.serving.on_ray import keeps_serving
        from nip_fn_adapters.serving.training_on_ray import train_on_ray as train

        machines = settings.parallel_jobs * training.machines
        beside = or_exit(keeps_serving(keep_serving, machines, training.gpus))
        if keep_serving is None and not beside:
            say("nip-fn serve: no room for vLLM beside trainings on the cluster: they take turns")
        keep_serving = beside
    settings = settings._replace(keep_serving=keep_serving)

    def make_service() -> Service:
        fleet = None
        if command is not None:
            key = settings.token or running.kept_key(settings.state)
            own = vllm._replace(command=command, key=key, local_only=settings.token is None)
            fleet = _fleet(settings, own, training, cluster)
        return Service(settings, fleet, partial(train, settings=training))

    try:
        running.run(make_service, bound, partial(_greet, settings, vllm.port))
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


def _command(settings: ServerSettings, given: tuple[str, ...]) -> tuple[str, ...] | None:
    """The command that starts vLLM; None if there is none, and no model to serve."""
    if settings.model is not None:
        folder = model_directory(settings.model)
        or_exit(folder.alt(lambda problem: problem.at("--model")))
    if given:
        return given
    found = find_vllm()
    if settings.model is not None:
        return or_exit(found)
    found.alt(lambda problem: say(f"nip-fn serve: this server can only train: {problem}"))
    return found.value_or(None)


def _fleet(
    settings: ServerSettings, vllm: FleetSettings, training: TrainingSettings, cluster: str | None
) -> "Fleet":
    from nip_fn_adapters.serving.fleet import Fleet

    if cluster is None:
        return Fleet(vllm, model_directory)
    from nip_fn_adapters.serving.on_ray import RayCluster

    jobs = settings.parallel_jobs if settings.keep_serving else 0
    for_training = jobs * training.machines * training.gpus
    return Fleet(vllm, model_directory, RayCluster(vllm, for_training))


def other_users(accounts: Iterable[pwd.struct_passwd], user: int) -> list[str]:
    """The names of the people who have an account on this machine, but for that user."""
    return [
        account.pw_name
        for account in accounts
        if account.pw_uid in PEOPLE
        and account.pw_uid != user
        and not account.pw_shell.endswith(("/nologin", "/false"))
    ]


def _greet(settings: ServerSettings, vllm_port: int, port: int) -> None:
    """Print the server's address on stdout, for programs, and a line for people."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    print(f"http://{host}:{port}", flush=True)
    others = other_users(pwd.getpwall(), os.getuid())
    if settings.token is None and others:
        say(
            f"nip-fn serve: warning: all users of this machine may use this server ({others[0]} "
            f"is one of {len(others)} others); with {TOKEN_VARIABLE} set, only who knows it may"
        )
    model = settings.model or "the first model that is asked for"
    say(f"nip-fn serve: {model} on vLLM's port {vllm_port}; jobs and adapters: {settings.state}")
