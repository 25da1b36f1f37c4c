"""The `nip-fn` command.  Every command imports what it needs when it runs, so help is instant."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from nip_fn_cli import data_commands
from nip_fn_cli.exits import Exit, say
from nip_fn_cli.options import (
    BaseUrlOption,
    BatchOption,
    BudgetOption,
    ModelOption,
    PricesOption,
    ProviderOption,
    RunsOption,
    SetOption,
    SkipOption,
)

app = typer.Typer(
    name="nip-fn",
    help="Train language models to play prover-verifier games, and replay every step of it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    epilog="Exit codes: "
    + ", ".join(f"{code.value} {code.name.lower()}" for code in Exit)
    + ". Results go to stdout, everything else to stderr.",
)

app.add_typer(data_commands.data, name="data")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"nip-fn {version('nip-fn')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options that come before the command."""


@app.command()
def train(
    config: Annotated[
        Path | None,
        typer.Argument(
            help="A .toml or .json file; what it leaves out keeps the embedded default.  "
            "A configuration that the nip library saved is read, too."
        ),
    ] = None,
    trainer: Annotated[str | None, typer.Option(help="How to train: malt or ei.")] = None,
    protocol: Annotated[
        str | None,
        typer.Option(help="The game: nip, adp, debate, mnip, merlin_arthur or solo_verifier."),
    ] = None,
    provider: ProviderOption = None,
    model: ModelOption = None,
    base_url: BaseUrlOption = None,
    batch: BatchOption = False,
    dataset: Annotated[
        str | None,
        typer.Option(
            help="builtin:arithmetic, builtin:python, hf:NAME, or a .jsonl, .csv or .parquet file "
            "or a directory that a data set was saved to."
        ),
    ] = None,
    skip_bad_rows: SkipOption = False,
    seed: Annotated[int | None, typer.Option(help="The root of all randomness.")] = None,
    iterations: Annotated[int | None, typer.Option(help="How many trainings.")] = None,
    set_: SetOption = None,
    run: Annotated[
        str | None, typer.Option("--run", help="The run's name; one is made up if left out.")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Go on with the run of that name.")] = False,
    more_iterations: Annotated[
        int | None,
        typer.Option(help="With --resume: so many more, after a run that is done.", min=1),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be asked for, and its price.")
    ] = False,
    rate: Annotated[
        float, typer.Option(help="Requests a second that --dry-run counts with.", min=0.001)
    ] = 10.0,
    budget: BudgetOption = None,
    prices: PricesOption = None,
    serve: Annotated[
        bool,
        typer.Option("--serve", help="With a language-model server here, as long as the run."),
    ] = False,
    runs: RunsOption = Path("runs"),
) -> None:
    """Train, recording everything; at the end, print what came of it."""
    from nip_fn_cli.config import Flags
    from nip_fn_cli.money import money_or_die
    from nip_fn_cli.train import train_command

    flags = Flags(
        config=config,
        trainer=trainer,
        protocol=protocol,
        provider=provider,
        model=model,
        base_url=base_url,
        batch=batch or None,
        dataset=dataset,
        skip_bad_rows=skip_bad_rows or None,
        seed=seed,
        iterations=iterations,
        sets=tuple(set_ or ()),
    )
    train_command(
        flags,
        runs=runs,
        name=run,
        resume=resume,
        more=more_iterations,
        money=money_or_die(budget, prices),
        dry=rate if dry_run else None,
        serve=serve,
    )


@app.command(name="eval")
def eval_(
    config: Annotated[
        Path | None, typer.Argument(help="As for nip-fn train; nothing is trained.")
    ] = None,
    protocol: Annotated[
        list[str] | None,
        typer.Option(help="A game; may be repeated.  Left out: nip, and solo_verifier to compare."),
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="A model for all agents; may be repeated.")
    ] = None,
    provider: ProviderOption = None,
    base_url: BaseUrlOption = None,
    batch: BatchOption = False,
    dataset: Annotated[str | None, typer.Option(help="As for nip-fn train.")] = None,
    split: Annotated[str | None, typer.Option(help="validation or test.")] = None,
    repeats: Annotated[
        int | None, typer.Option(help="Dialogues about each datapoint.", min=1)
    ] = None,
    skip_bad_rows: SkipOption = False,
    seed: Annotated[int | None, typer.Option(help="The root of all randomness.")] = None,
    set_: SetOption = None,
    budget: BudgetOption = None,
    prices: PricesOption = None,
    run: Annotated[
        str | None, typer.Option("--run", help="A name for the runs; made up if left out.")
    ] = None,
    runs: RunsOption = Path("runs"),
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Test protocols and models without training: how often the verifier is right, or always fails.

    Every test is recorded as a run, for nip-fn replay; the same command goes on where an earlier
    one was stopped.
    """
    from nip_fn_cli.config import Flags
    from nip_fn_cli.eval import Choice, eval_command
    from nip_fn_cli.money import money_or_die

    flags = Flags(
        config=config,
        provider=provider,
        base_url=base_url,
        batch=batch or None,
        dataset=dataset,
        skip_bad_rows=skip_bad_rows or None,
        seed=seed,
        sets=tuple(set_ or ()),
    )
    choice = Choice(tuple(protocol or ()), tuple(model or ()), split, repeats, run, json)
    eval_command(flags, choice, money_or_die(budget, prices), runs)


@app.command()
def replay(
    checkpoint: Annotated[Path, typer.Argument(help="A run's checkpoint.msgpack, or its folder.")],
    until: Annotated[
        int | None, typer.Option(help="Only the first N events.", min=0, metavar="N")
    ] = None,
    transcript: Annotated[
        str | None, typer.Option(help="Print the dialogues about a datapoint.", metavar="DATAPOINT")
    ] = None,
    tree: Annotated[
        str | None, typer.Option(help="Print the trees about a datapoint.", metavar="DATAPOINT")
    ] = None,
    iteration: Annotated[
        int | None, typer.Option(help="Only that iteration of --transcript and --tree.")
    ] = None,
    set_: SetOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Derive a run again from its recorded events, compare, and show what it came to.

    Needs no model and no network.  With --set, answers what would have been selected from the same
    replies under another selection, threshold, backup or seed, beside what was.
    """
    from nip_fn_cli.replay import Show, replay_command

    show = Show(transcript, tree, iteration, json)
    replay_command(checkpoint, until=until, sets=tuple(set_ or ()), show=show)


@app.command()
def cancel(
    run: Annotated[Path, typer.Argument(help="The run's folder.", metavar="RUN")],
) -> None:
    """Cancel the fine-tuning jobs that a run has under way at a provider.

    Resuming the run goes on without what they would have trained.
    """
    from nip_fn_cli.cancel import cancel_command

    cancel_command(run)


@app.command()
def serve(
    model: Annotated[
        str | None,
        typer.Option(
            help="The only base model to serve: a folder, ORG/NAME of the Hugging Face hub, or "
            "builtin:tiny.  Left out: the first that a run asks for, but no folder.",
            metavar="NAME",
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(help="Where to listen; beyond this machine only with $NIP_FN_SERVER_TOKEN."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Of this server.", min=0, max=65535)] = 5000,
    vllm_port: Annotated[
        int, typer.Option(help="Of vLLM; replicas have the ports after it.", min=1, max=65535)
    ] = 8000,
    replicas: Annotated[int, typer.Option(help="How many vLLMs share the requests.", min=1)] = 1,
    vllm_command: Annotated[
        str | None,
        typer.Option(
            help="What starts vLLM's OpenAI server; found by itself in .venv-vllm or where "
            "$NIP_FN_VLLM names its Python.",
            metavar="COMMAND",
        ),
    ] = None,
    vllm_args: Annotated[
        str, typer.Option(help="More options for vLLM, in one text; they win.", metavar="OPTIONS")
    ] = "",
    max_model_len: Annotated[
        int | None, typer.Option(help="Tokens of a prompt and its reply; as the model.", min=1)
    ] = None,
    state: Annotated[
        Path, typer.Option(help="The folder of all adapters and jobs; it survives restarts.")
    ] = Path("server"),
    keep_adapters: Annotated[
        int,
        typer.Option(help="Of each group, that stay on disk after they were replaced.", min=0),
    ] = 5,
    keep_serving: Annotated[
        bool | None,
        typer.Option(
            "--keep-serving/--no-keep-serving",
            help="While a training runs.  Left out: not with a GPU, whose memory is lent to it.",
        ),
    ] = None,
    parallel_jobs: Annotated[int, typer.Option(help="Trainings at once.", min=1)] = 1,
    accelerate_config: Annotated[
        Path | None,
        typer.Option(
            help="Of accelerate, for several GPUs or machines.", metavar="FILE", exists=True
        ),
    ] = None,
    max_upload_mb: Annotated[
        int, typer.Option(help="Of a file of an adapter that a client sends.", min=1)
    ] = 4096,
    push_to_hub: Annotated[
        str | None,
        typer.Option(help="Also push what is trained to the hub ($HF_TOKEN).", metavar="NAMESPACE"),
    ] = None,
    start_limit: Annotated[
        float, typer.Option(help="Seconds that vLLM may take to start.", min=1.0)
    ] = 900.0,
) -> None:
    """Serve and train models for runs with --provider self-hosted, on the machine with the GPU.

    Ctrl-C ends it with all that it has started; started again, it goes on.
    """
    from nip_fn_adapters.serving.settings import ServerSettings
    from nip_fn_adapters.serving.training import TrainingSettings
    from nip_fn_cli.serve import VllmOptions, serve_command, serves_on

    settings = ServerSettings(
        state=state,
        model=model,
        host=host,
        keep_adapters=keep_adapters,
        keep_serving=serves_on(keep_serving),
        parallel_jobs=parallel_jobs,
        max_upload_bytes=max_upload_mb << 20,
    )
    vllm = VllmOptions(vllm_command, vllm_args, vllm_port, replicas, max_model_len, start_limit)
    serve_command(settings, vllm, TrainingSettings(accelerate_config, push_to_hub), port)


@app.command()
def params(
    json_schema: Annotated[
        bool, typer.Option("--json-schema", help="Print a JSON Schema of a configuration instead.")
    ] = False,
) -> None:
    """Print every parameter: its address, what it means, its type and its default."""
    from nip_fn_cli.params import params_command

    params_command(json_schema=json_schema)


@app.command()
def doctor() -> None:
    """Say what is installed, what is missing, and which command mends it."""
    from nip_fn_cli.doctor import doctor_command

    doctor_command()


def main(arguments: list[str] | None = None) -> None:
    """Run the command with these arguments, or with those of the process.

    Ends with `SystemExit`.  Whatever goes wrong outside nip-fn is one line, not a traceback.
    """
    try:
        app(args=arguments, prog_name="nip-fn")
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        say(f"nip-fn: {where}{error.strerror or error}")
        sys.exit(int(Exit.SYSTEM))
    except KeyboardInterrupt:
        say("nip-fn: interrupted")
        sys.exit(int(Exit.INTERRUPTED))
