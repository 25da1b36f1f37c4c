"""`nip-fn serve`: the language-model server, which runs vLLM and trainings on its machine."""

import os
import pwd
import shlex
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
import typer

from nip_fn_adapters.processes.cluster import join_cluster
from nip_fn_adapters.providers.local.children import cores
from nip_fn_adapters.providers.local.models import model_directory
from nip_fn_adapters.serving.gpus import visible_gpus
from nip_fn_adapters.serving.in_vllm.nip_fn_access import is_loopback
from nip_fn_adapters.serving.settings import FleetSettings, ServerSettings, find_vllm
from nip_fn_adapters.serving.training import TrainingSettings, over_machines, run_training
from nip_fn_adapters.serving.wire import TOKEN_VARIABLE
from nip_fn_cli.shown.exits import Exit, die, or_exit, say

if TYPE_CHECKING:
    from nip_fn_adapters.serving.fleet import Fleet

T = TypeVar("T")
PEOPLE = range(1000, 60000)  # their user ids; the system's own accounts have others


def serve_command(
    model: Annotated[
        str | None,
        typer.Option(
            help="The only base model to serve: a folder, ORG/NAME of the Hugging Face hub, or "
            "builtin:tea.  The default is the first hub model that a run asks for.",
            metavar="NAME",
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            help="The address to listen at; one that other machines reach needs "
            "$NIP_FN_SERVER_TOKEN.",
            metavar="ADDRESS",
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port of this server.", min=0, max=65535)] = 5000,
    vllm_port: Annotated[
        int,
        typer.Option(help="The port of vLLM; replicas use the ports after it.", min=1, max=65535),
    ] = 8000,
    replicas: Annotated[
        int | None,
        typer.Option(
            help="The number of vLLM processes.  The default is one for each GPU that holds the "
            "model, or for every few of them that hold it together.",
            min=1,
        ),
    ] = None,
    vllm_command: Annotated[
        str | None,
        typer.Option(
            help="The command that starts vLLM's OpenAI server.  The default is the one in "
            ".venv-vllm, or of the Python that $NIP_FN_VLLM names.",
            metavar="COMMAND",
        ),
    ] = None,
    vllm_args: Annotated[
        str,
        typer.Option(
            help="Further options for vLLM, as one word of the shell; they override those of "
            "nip-fn.",
            metavar="OPTIONS",
        ),
    ] = "",
    max_model_len: Annotated[
        int | None,
        typer.Option(
            help="The most tokens of a prompt and its reply; the model's own limit by default.",
            min=1,
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            help="Run vLLM and trainings on the nodes of the Ray cluster at this address, or of "
            "one that was started here (auto).",
            metavar="ADDRESS",
        ),
    ] = None,
    max_loras: Annotated[
        int,
        typer.Option(
            help="The number of adapters for which vLLM is started with --model: one for each "
            "group that is trained at a time.  For a run that needs more, vLLM is restarted.",
            min=1,
            max=64,
        ),
    ] = 2,
    max_lora_rank: Annotated[
        int, typer.Option(help="The highest rank of these adapters.", min=1, max=512)
    ] = 64,
    state: Annotated[
        Path,
        typer.Option(
            help="The folder of adapters and jobs; kept between restarts.", metavar="FOLDER"
        ),
    ] = Path("server"),
    keep_adapters: Annotated[
        int,
        typer.Option(help="The number of replaced adapters of each group to keep on disk.", min=0),
    ] = 5,
    keep_serving: Annotated[
        bool | None,
        typer.Option(
            "--keep-serving/--no-keep-serving",
            help="Serve while a training runs.  The default is yes without a GPU, and on a Ray "
            "cluster with room for both; otherwise no: the training needs the GPU's memory.",
        ),
    ] = None,
    parallel_jobs: Annotated[
        int, typer.Option(help="The number of trainings to run at once.", min=1)
    ] = 1,
    accelerate_config: Annotated[
        Path | None,
        typer.Option(
            help="A configuration file of accelerate, for several GPUs or machines.",
            metavar="FILE",
            exists=True,
        ),
    ] = None,
    max_upload_mb: Annotated[
        int, typer.Option(help="The most megabytes of a file that a client uploads.", min=1)
    ] = 4096,
    push_to_hub: Annotated[
        str | None,
        typer.Option(
            help="Push trained adapters to this namespace of the hub, too (needs $HF_TOKEN).",
            metavar="NAMESPACE",
        ),
    ] = None,
    start_limit: Annotated[
        float, typer.Option(help="The time to wait for vLLM to start.", min=1.0, metavar="SECONDS")
    ] = 900.0,
) -> None:
    """Serve and train models for runs with --provider self-hosted, on the machine with the GPU.

    Ctrl-C stops it and every process that it started; when it is started again, it continues.
    """
    settings = ServerSettings(
        state=state.absolute(),
        model=model,
        max_loras=max_loras,
        max_lora_rank=max_lora_rank,
        host=host,
        keep_adapters=keep_adapters,
        parallel_jobs=parallel_jobs,
        max_upload_bytes=max_upload_mb << 20,
        token=_token(host),
    )
    vllm = FleetSettings(
        command=tuple(shlex.split(vllm_command or "")),
        folder=state.absolute() / "vllm",
        host=host,
        port=vllm_port,
        replicas=replicas,
        max_model_len=max_model_len,
        extra=tuple(shlex.split(vllm_args)),
        start_limit=start_limit,
    )
    # Trainings that run at one time share the cores, or they would wait for one another.
    threads = max(1, cores() // parallel_jobs)
    training = TrainingSettings(accelerate_config, push_to_hub, threads=threads)
    _serve(settings, vllm, training, port, ray, keep_serving)


def _serve(
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
    command = _command(settings, vllm.command)
    # Before anything is started: to load a model takes minutes, and a folder or a port that is in
    # use should be told at once.
    or_exit(running.lock(settings.state))
    bound = or_exit(running.bind(settings.host, port))

    train: Callable[..., Awaitable[int]] = run_training
    if cluster is None:
        keep_serving = not visible_gpus() if keep_serving is None else keep_serving
    else:
        training = or_exit(over_machines(training))
        or_exit(join_cluster(cluster))
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
            vllm_settings = vllm._replace(
                command=command, key=key, local_only=settings.token is None
            )
            fleet = _fleet(settings, vllm_settings, training, cluster)
        return Service(settings, fleet, partial(train, settings=training))

    try:
        running.run_service(make_service, bound, partial(_greet, settings, vllm.port))
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


def _command(settings: ServerSettings, chosen: tuple[str, ...]) -> tuple[str, ...] | None:
    """The command that starts vLLM; None if there is none, and no model to serve."""
    if settings.model is not None:
        folder = model_directory(settings.model)
        or_exit(folder.alt(lambda problem: problem.at("--model")))
    if chosen:
        return chosen
    installed = find_vllm()
    if settings.model is not None:
        return or_exit(installed)
    installed.alt(lambda problem: say(f"nip-fn serve: this server can only train: {problem}"))
    return installed.value_or(None)


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
    users = other_users(pwd.getpwall(), os.getuid())
    if settings.token is None and users:
        say(
            f"nip-fn serve: warning: all users of this machine may use this server ({users[0]} "
            f"is one of {len(users)} others); with {TOKEN_VARIABLE} set, only who knows it may"
        )
    model = settings.model or "the first model that is asked for"
    say(f"nip-fn serve: {model} on vLLM's port {vllm_port}; jobs and adapters: {settings.state}")
