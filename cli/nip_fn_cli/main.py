"""The `nip-fn` command.  Each command imports its modules when it runs, so that help is instant."""

import shlex
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from returns.primitives.exceptions import UnwrapFailedError

from nip_fn_cli.commands import data as data_commands
from nip_fn_cli.shown.exits import Exit, die, die_of, say
from nip_fn_cli.shown.helping import Command, Group
from nip_fn_cli.shown.options import (
    BaseUrlOption,
    BatchOption,
    BudgetOption,
    DryRunOption,
    JsonOption,
    ModelOption,
    PricesOption,
    ProviderOption,
    RunsOption,
    SeedsOption,
    SetOption,
    SkipOption,
    TrustOption,
    listed,
    seeds_or_die,
)
from nip_fn_cli.shown.terminal import guard_streams

app = typer.Typer(
    name="nip-fn",
    cls=Group,
    rich_markup_mode=None,
    help="Train language models to play prover-verifier games, and replay every step of it.",
    no_args_is_help=True,
    # Typer's own tracebacks may show the values of variables, API keys among them.
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: "
    + ", ".join(f"{code.value} {code.name.lower()}" for code in Exit)
    + ". Results go to stdout, everything else to stderr.",
)
command = partial(app.command, cls=Command)

# The words by which help texts offer a reference (see nip_fn_adapters.extensions).
OWN = "your own as package.module:NAME or file.py:NAME"

app.add_typer(data_commands.data, name="data")


def _version(wanted: bool) -> None:
    if wanted:
        from nip_fn import __version__

        print(f"nip-fn {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options that come before the command."""


@command()
def train(
    config: Annotated[
        Path | None,
        typer.Argument(
            help="A .toml, .json or .yaml file; what it leaves out depends on the model (nip-fn "
            "params).  A configuration of the nip library is translated."
        ),
    ] = None,
    trainer: Annotated[
        str | None, typer.Option(help=f"The training method: malt, ei, or {OWN}.", metavar="NAME")
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            help="The game: nip, adp, consultancy, debate, mnip, merlin_arthur, solo_verifier, or "
            f"{OWN}.",
            metavar="NAME",
        ),
    ] = None,
    provider: ProviderOption = None,
    model: ModelOption = None,
    base_url: BaseUrlOption = None,
    batch: BatchOption = False,
    dataset: Annotated[
        str | None,
        typer.Option(
            help="The data set: builtin:tea, builtin:bug-hunt, builtin:python, hf:NAME, a .jsonl, "
            f".csv or .parquet file, the folder of a saved data set, or {OWN}.",
            metavar="DATA",
        ),
    ] = None,
    skip_bad_rows: SkipOption = False,
    seed: Annotated[int | None, typer.Option(help="The seed of all randomness.")] = None,
    seeds: SeedsOption = None,
    iterations: Annotated[
        int | None, typer.Option(help="The number of training iterations.")
    ] = None,
    set_: SetOption = None,
    run: Annotated[
        str | None,
        typer.Option(
            "--run", help="The run's name; made from its parameters if left out.", metavar="NAME"
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run of that name.")] = False,
    more_iterations: Annotated[
        int | None,
        typer.Option(help="With --resume: iterations to add to a run that is done.", min=1),
    ] = None,
    of: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Select and train again from the recorded replies of this run, with its "
            "parameters except those given here.",
            metavar="RUN",
        ),
    ] = None,
    iteration: Annotated[
        int | None,
        typer.Option(help="With --from: the iteration of that run, if not its last.", min=0),
    ] = None,
    dry_run: DryRunOption = False,
    rate: Annotated[
        float, typer.Option(help="Requests per second that --dry-run assumes.", min=0.001)
    ] = 10.0,
    budget: BudgetOption = None,
    prices: PricesOption = None,
    serve: Annotated[
        bool,
        typer.Option(
            "--serve", help="Start a language-model server here for as long as the run lasts."
        ),
    ] = False,
    track: Annotated[
        list[str] | None,
        typer.Option(
            help="Send metrics to wandb, tensorboard, trackio or mlflow; several, separated by "
            "commas.",
            metavar="TRACKER",
        ),
    ] = None,
    runs: RunsOption = Path("runs"),
    trust: TrustOption = False,
) -> None:
    """Train agents and record everything; print a table of the iterations at the end."""
    from nip_fn_cli.commands.train import train_command
    from nip_fn_cli.config import Flags
    from nip_fn_cli.money import money_or_die

    flags = Flags(
        config=config,
        trainer=trainer,
        protocol=protocol,
        provider=provider,
        model=model,
        base_url=base_url,
        # An option that was not given must not override the configuration with its false.
        batch=batch or None,
        dataset=dataset,
        skip_bad_rows=skip_bad_rows or None,
        seed=seed,
        iterations=iterations,
        sets=tuple(set_ or ()),
    )
    if seeds is not None:
        from nip_fn_cli.commands.sweep import Choice, train_seeds

        others = {"--resume": resume, "--from": of, "--serve": serve, "--track": track}
        for option in (option for option, given in {"--seed": seed, **others}.items() if given):
            die(Exit.USAGE, f"{option} is an option of a single run; leave out --seeds")
        choice = Choice(
            name=run,
            seeds=seeds_or_die(seeds),
            provider=provider,
            prices=prices,
            dry=dry_run,
        )
        train_seeds(flags, choice, money_or_die(budget, prices), runs)
        return
    train_command(
        flags,
        runs=runs,
        name=run,
        resumed=resume,
        more=more_iterations,
        budget=budget,
        prices=prices,
        dry=rate if dry_run else None,
        serve=serve,
        trackers=listed(track),
        forest=of,
        iteration=iteration,
    )


@command(name="eval")
def eval_(
    config: Annotated[
        Path | None,
        typer.Argument(help="A .toml or .json file, as for nip-fn train; nothing is trained."),
    ] = None,
    protocol: Annotated[
        list[str] | None,
        typer.Option(
            help="A game; may be repeated.  The default is nip, with solo_verifier to compare.",
            metavar="NAME",
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="A model for all agents; may be repeated.", metavar="NAME"),
    ] = None,
    verifier_model: Annotated[
        str | None, typer.Option(help="The model of the verifier.", metavar="NAME")
    ] = None,
    prover_model: Annotated[
        str | None, typer.Option(help="The model of all provers.", metavar="NAME")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="The temperature of all models.", min=0.0)
    ] = None,
    provider: ProviderOption = None,
    base_url: BaseUrlOption = None,
    batch: BatchOption = False,
    dataset: Annotated[
        str | None, typer.Option(help="The data set, as for nip-fn train.", metavar="DATA")
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="The rows to test on: all, train, validation, test, or another split that the "
            "data come in.  The default is their test split, or all rows of data without one.",
            metavar="NAME",
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="The most datapoints to test on.", min=1)
    ] = None,
    shuffle: Annotated[
        int | None,
        typer.Option(help="The seed of the datapoints' order, and so of those that --limit takes."),
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(help="The number of dialogues about each datapoint.", min=1)
    ] = None,
    skip_bad_rows: SkipOption = False,
    seed: Annotated[int | None, typer.Option(help="The seed of all randomness.")] = None,
    seeds: SeedsOption = None,
    set_: SetOption = None,
    budget: BudgetOption = None,
    prices: PricesOption = None,
    run: Annotated[
        str | None,
        typer.Option(
            "--run",
            help="A name for the runs; made from their parameters if left out.",
            metavar="NAME",
        ),
    ] = None,
    runs: RunsOption = Path("runs"),
    trust: TrustOption = False,
    of_run: Annotated[
        str | None,
        typer.Option(
            "--of",
            help="Test the models of every iteration of this run again, with its parameters except "
            "those given here.",
            metavar="RUN",
        ),
    ] = None,
    card: Annotated[
        bool,
        typer.Option(
            "--card",
            help="Print the oversight card: each protocol with its own, silent, random, honest and "
            "lying provers, and with messages about other datapoints.",
        ),
    ] = False,
    of: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="With --card: test the agents of a run as they are in the end, or after an "
            "iteration.",
            metavar="RUN[@N]",
        ),
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            help="With --card: also play with the provers of this run; may be repeated.",
            metavar="RUN[@N]",
        ),
    ] = None,
    relabel: Annotated[
        int | None,
        typer.Option(
            help="With --card --from: estimate how many of the run's preference labels are true, "
            "from this many fresh continuations of both replies of recorded pairs.",
            min=1,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Test protocols and models without training them.

    Prints how often the verifier is right, and on how many datapoints it always fails.  Each test
    is recorded as a run, for nip-fn replay.  The same command resumes a test that was stopped.
    """
    from nip_fn_cli.commands.card import CardChoice, card_command
    from nip_fn_cli.commands.eval import Choice, eval_command, eval_seeds
    from nip_fn_cli.commands.retest import retest_command
    from nip_fn_cli.config import Flags
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
    choice = Choice(
        protocols=tuple(protocol or ()),
        models=tuple(model or ()),
        verifier_model=verifier_model,
        prover_model=prover_model,
        split=split,
        limit=limit,
        shuffle=shuffle,
        repeats=repeats,
        temperature=temperature,
        name=run,
        json=json,
    )
    money = money_or_die(budget, prices)
    numbers = seeds_or_die(seeds)
    if numbers is not None:
        single = {"--seed": seed, "--card": card, "--of": of_run}
        for option in (option for option, given in single.items() if given):
            die(Exit.USAGE, f"{option} is an option of tests with one seed; leave out --seeds")
        eval_seeds(flags, choice, numbers, prices, money, runs)
        return
    if card and of_run:
        die(Exit.USAGE, "a card is about one iteration of a run: write --card --from RUN@N")
    if card:
        card_command(flags, choice, CardChoice(of, tuple(against or ()), relabel), money, runs)
        return
    given = {"--from": of, "--against": against, "--relabel": relabel}
    for option in (name for name, value in given.items() if value):
        die(Exit.USAGE, f"{option} is an option of the oversight card; add --card")
    if of_run:
        retest_command(flags, choice, of_run, money, runs)
        return
    eval_command(flags, choice, money, runs)


@command()
def sweep(
    study: Annotated[
        Path,
        typer.Argument(
            help="A .toml or .json file: a base configuration, and what varies in it; or a .yaml "
            "file of experiments of the nip library."
        ),
    ],
    seeds: SeedsOption = None,
    forest: Annotated[
        str | None,
        typer.Option(
            help="A run from whose recorded replies all cells select and train; they sample "
            "only their tests.",
            metavar="RUN",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            help="The most cells to run at a time.  The default is one, and with --ray as many as "
            "fit.",
            min=1,
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            help="Run the cells as tasks of the Ray cluster at this address; auto finds one, local "
            "starts one on this machine.",
            metavar="ADDRESS",
        ),
    ] = None,
    provider: ProviderOption = None,
    set_: SetOption = None,
    dry_run: DryRunOption = False,
    budget: Annotated[
        float | None,
        typer.Option(
            help="The most dollars that all cells together may spend.", min=0.0, metavar="DOLLARS"
        ),
    ] = None,
    prices: PricesOption = None,
    name: Annotated[
        str | None, typer.Option(help="A name for the study; that of its file if left out.")
    ] = None,
    studies: Annotated[
        Path, typer.Option("--studies", help="The folder that holds the studies.", metavar="FOLDER")
    ] = Path("studies"),
    json: JsonOption = False,
    trust: TrustOption = False,
) -> None:
    """Run all cells of a study, and print what differs between them.

    A study is a base configuration with axes along which it varies, and each cell is an ordinary
    run in STUDIES/NAME.  The same command resumes a study that was stopped.
    """
    from nip_fn_cli.commands.sweep import Choice, sweep_command
    from nip_fn_cli.money import money_or_die

    choice = Choice(
        name=name,
        seeds=seeds_or_die(seeds),
        forest=forest,
        sets=tuple(set_ or ()),
        provider=provider,
        jobs=jobs,
        ray=ray,
        prices=prices,
        dry=dry_run,
        json=json,
    )
    sweep_command(study, choice, money_or_die(budget, prices), studies)


@command()
def attack(
    run: Annotated[
        Path, typer.Argument(help="A run's folder, or its name; its verifier is attacked.")
    ],
    iteration: Annotated[
        int | None,
        typer.Option(help="Attack the models that were tested in this iteration, not the last."),
    ] = None,
    strategies: Annotated[
        str | None,
        typer.Option(
            help="The scripted provers, separated by commas; none for no scripts, or "
            f"{OWN}.  The default is all that there are for the data.",
            metavar="NAMES",
        ),
    ] = None,
    best_of: Annotated[
        str,
        typer.Option(
            help="Search for the best of N replies of the run's own provers, for each of these N; "
            "0 for no search.",
            metavar="N,N",
        ),
    ] = "1,4,16",
    starts: Annotated[
        int,
        typer.Option(
            help="The number of trainings of new provers, which start from the run's own and from "
            "the base model.",
            min=0,
        ),
    ] = 3,
    iterations: Annotated[
        int, typer.Option(help="The number of iterations of each of these trainings.", min=1)
    ] = 4,
    trainer: Annotated[
        str, typer.Option(help="The method of these trainings: malt or ei.", metavar="NAME")
    ] = "malt",
    games: Annotated[
        int,
        typer.Option(
            help="The number of games about each datapoint, and of continuations of each reply in "
            "a search.",
            min=1,
        ),
    ] = 8,
    datapoints: Annotated[
        int, typer.Option(help="The number of held-out datapoints.", min=1)
    ] = 100,
    seed: Annotated[
        int | None, typer.Option(help="The seed of all randomness; that of the run if left out.")
    ] = None,
    seeds: SeedsOption = None,
    set_: SetOption = None,
    dry_run: DryRunOption = False,
    budget: BudgetOption = None,
    prices: PricesOption = None,
    name: Annotated[
        str | None,
        typer.Option(help="A name for the attack; made from its options if left out."),
    ] = None,
    runs: RunsOption = Path("runs"),
    trust: TrustOption = False,
    json: JsonOption = False,
) -> None:
    """Attack the verifier of a run: which prover misleads it most, and how often?

    The verifier stays as it is.  Against it play scripted provers, the best of several replies of
    its own prover, and provers that are trained to mislead it.  Prints completeness and soundness
    error for each of them, and the dialogue of the worst case.  Each is recorded as a run, in
    RUN/attacks/NAME.  The same command resumes an attack that was stopped.
    """
    from nip_fn_cli.commands.attack import attack_command, choice_of
    from nip_fn_cli.money import money_or_die

    choice = choice_of(
        strategies,
        best_of,
        iteration=iteration,
        starts=starts,
        iterations=iterations,
        trainer=trainer,
        games=games,
        datapoints=datapoints,
        seed=seed,
        sets=tuple(set_ or ()),
        name=name,
        json=json,
        dry=dry_run,
    )
    numbers = seeds_or_die(seeds)
    if numbers is not None and seed is not None:
        die(Exit.USAGE, "--seed is an option of a single attack; leave out --seeds")
    attack_command(run, choice, numbers, money_or_die(budget, prices), runs)


@command()
def replay(
    checkpoint: Annotated[
        Path, typer.Argument(help="A run's checkpoint.msgpack, its folder, or its name.")
    ],
    until: Annotated[
        int | None, typer.Option(help="Replay only the first N events.", min=0, metavar="N")
    ] = None,
    transcript: Annotated[
        str | None, typer.Option(help="Print the dialogues about a datapoint.", metavar="DATAPOINT")
    ] = None,
    tree: Annotated[
        str | None, typer.Option(help="Print the trees about a datapoint.", metavar="DATAPOINT")
    ] = None,
    iteration: Annotated[
        int | None, typer.Option(help="With --transcript or --tree: print only this iteration.")
    ] = None,
    prompts: Annotated[
        bool,
        typer.Option("--prompts", help="With --transcript: also print what each model was shown."),
    ] = False,
    set_: SetOption = None,
    prices: PricesOption = None,
    json: JsonOption = False,
    runs: RunsOption = Path("runs"),
    trust: TrustOption = False,
) -> None:
    """Derive a run again from its recorded events, compare the digests, and print its results.

    Needs no model and no network.  With --set, compares the recorded selection with that of another
    method, threshold, backup or seed on the same replies.
    """
    from nip_fn_cli.commands.replay import Show, replay_command
    from nip_fn_cli.money import money_or_die

    show, money = Show(transcript, tree, iteration, prompts, json), money_or_die(None, prices)
    replay_command(
        checkpoint, until=until, sets=tuple(set_ or ()), show=show, money=money, runs=runs
    )


@command()
def ls(
    json: JsonOption = False,
    runs: RunsOption = Path("runs"),
) -> None:
    """List the runs with their states, accuracies and costs, the latest at the end."""
    from nip_fn_cli.commands.ls import ls_command

    ls_command(runs, json)


@command()
def show(
    run: Annotated[str, typer.Argument(help="A run's name, or its folder.")],
    wrong: Annotated[bool, typer.Option("--wrong", help="List games decided wrongly.")] = False,
    undecided: Annotated[bool, typer.Option("--undecided", help="List undecided games.")] = False,
    cut: Annotated[
        bool, typer.Option("--cut", help="List games with a reply cut at the token limit.")
    ] = False,
    sampled: Annotated[
        bool,
        typer.Option(
            "--sampled", help="Take games that were sampled for training, not those of the tests."
        ),
    ] = False,
    iteration: Annotated[
        int | None, typer.Option(help="The iteration of the games; the last one if left out.")
    ] = None,
    json: JsonOption = False,
    runs: RunsOption = Path("runs"),
    trust: TrustOption = False,
) -> None:
    """Show a run on one screen, or list its games that were decided wrongly, undecided or cut."""
    from nip_fn_cli.commands.show import show_command

    chosen = {"wrong": wrong, "undecided": undecided, "cut": cut}
    kinds = tuple(kind for kind, is_chosen in chosen.items() if is_chosen)
    show_command(run, kinds, "sample" if sampled else "test", iteration, json, runs)


@command()
def export(
    run: Annotated[str, typer.Argument(help="A run's name, or its folder.")],
    to: Annotated[
        list[str],
        typer.Option(
            help="The formats: inspect (logs for inspect view), trl or openai (training rows), "
            "csv or parquet (tables), arrays (npz), json or yaml (transcripts), hf (a repository "
            "of the Hugging Face hub), or a tracker (wandb, tensorboard, trackio, mlflow); "
            "several, separated by commas.",
            metavar="FORMAT",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="The folder to write to; RUN/export if left out.", metavar="FOLDER"
        ),
    ] = None,
    push: Annotated[
        str | None,
        typer.Option(
            help="With --to hf: also push it to this private repository (needs $HF_TOKEN).",
            metavar="ORG/NAME",
        ),
    ] = None,
    runs: RunsOption = Path("runs"),
    trust: TrustOption = False,
) -> None:
    """Write a run in the formats of other programs, and print the paths of the files."""
    from nip_fn_cli.commands.export import export_command

    export_command(run, listed(to), out, push, runs)


@command()
def pull(
    place: Annotated[
        str,
        typer.Argument(
            help="ORG/NAME, a repository of the Hugging Face hub that nip-fn export --to hf has "
            "pushed, or wandb:ENTITY/PROJECT/RUN, a run that --track wandb has kept."
        ),
    ],
    run: Annotated[
        str | None,
        typer.Option("--run", help="A new name for the run; its own if left out.", metavar="NAME"),
    ] = None,
    runs: RunsOption = Path("runs"),
    trust: TrustOption = False,
) -> None:
    """Download a shared run: its recording and its adapters.

    It is derived again, and refused if the result is not as recorded.  Other runs can start from
    its agents.
    """
    from nip_fn_cli.commands.pull import pull_command

    pull_command(place, run, runs)


class Pair(StrEnum):
    """The ways to pair the tests of two sides."""

    SEED = "seed"
    DATAPOINT = "datapoint"


@command()
def compare(
    first: Annotated[
        str, typer.Argument(help="The runs of one side: NAME, NAME@ITERATION, A,B,C, or 'malt-*'.")
    ],
    second: Annotated[str, typer.Argument(help="The runs of the other side.")],
    pair: Annotated[
        Pair | None,
        typer.Option(
            help="By seed, the n-th runs of both sides belong together; by datapoint, only the "
            "problems are the same.  The default is seed where both sides have the same seeds.",
            metavar="seed|datapoint",
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", help="Also write an HTML page that needs no other file.", metavar="FILE"
        ),
    ] = None,
    json: JsonOption = False,
    runs: RunsOption = Path("runs"),
    trust: TrustOption = False,
) -> None:
    """Compare the last tests of two runs, or of two sets of runs, problem by problem.

    Prints the difference with its interval, the problems that one side decides rightly more often,
    and the parameters that differ.  `compare RUN@0 RUN` tells what a training changed.
    """
    from nip_fn_cli.commands.compare import compare_command

    compare_command(first, second, pair.value if pair else None, json, html, runs)


@command()
def report(
    run: Annotated[
        list[Path], typer.Argument(help="A run's folder, its name, or its checkpoint.msgpack.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="The file to write, or with --split the folder.  The default is report.html, or "
            "report, beside the recording of a single run, or here.",
            metavar="FILE",
        ),
    ] = None,
    split: Annotated[
        bool,
        typer.Option("--split", help="Write an index, and all trees on pages of their own."),
    ] = False,
    prices: PricesOption = None,
    runs: RunsOption = Path("runs"),
    trust: TrustOption = False,
) -> None:
    """Write a run as an HTML page: its curves, trees, games, models and costs.

    The page needs no network and no script, and everything in it is derived from the recording.
    Several runs are shown one after the other, below a chart of all their accuracies.
    """
    from nip_fn_cli.commands.report import report_command
    from nip_fn_cli.money import money_or_die

    report_command(run, out, split=split, money=money_or_die(file=prices), runs=runs)


@command()
def view(
    run: Annotated[
        Path, typer.Argument(help="A run's folder, its name, or its checkpoint.msgpack.")
    ],
    port: Annotated[
        int, typer.Option(help="The port on this machine; 0 for any.", min=0, max=65535)
    ] = 8640,
    prices: PricesOption = None,
    runs: RunsOption = Path("runs"),
    trust: TrustOption = False,
) -> None:
    """Serve the report of a run to browsers on this machine, while the run goes on.

    The page follows the recording, and changes nothing.  Ctrl-C stops it.
    """
    from nip_fn_cli.commands.view import view_command
    from nip_fn_cli.money import money_or_die

    view_command(run, port, money=money_or_die(file=prices), runs=runs)


@command()
def serve(
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
    status: Annotated[
        str | None,
        typer.Option(
            help="Start nothing; print the state of the server at this URL: its vLLM, memory, "
            "trainings and adapters.",
            metavar="URL",
        ),
    ] = None,
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
    from nip_fn_adapters.serving.settings import FleetSettings, ServerSettings
    from nip_fn_adapters.serving.training import TrainingSettings
    from nip_fn_cli.commands.serve import serve_command

    if status is not None:
        from nip_fn_cli.shown.serving_status import status_command

        status_command(status)
        return
    settings = ServerSettings(
        state=state,
        model=model,
        max_loras=max_loras,
        max_lora_rank=max_lora_rank,
        host=host,
        keep_adapters=keep_adapters,
        parallel_jobs=parallel_jobs,
        max_upload_bytes=max_upload_mb << 20,
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
    training = TrainingSettings(accelerate_config, push_to_hub)
    serve_command(settings, vllm, training, port, ray, keep_serving)


@command()
def init(
    file: Annotated[Path, typer.Argument(help="The .toml file to write.")] = Path("config.toml"),
    trainer: Annotated[
        str | None, typer.Option(help="The training method, as for nip-fn train.", metavar="NAME")
    ] = None,
    protocol: Annotated[
        str | None, typer.Option(help="The game, as for nip-fn train.", metavar="NAME")
    ] = None,
    provider: ProviderOption = None,
    model: ModelOption = None,
    dataset: Annotated[
        str | None, typer.Option(help="The data set, as for nip-fn train.", metavar="DATA")
    ] = None,
    set_: SetOption = None,
    runs: RunsOption = Path("runs"),
) -> None:
    """Write a configuration with every parameter, its meaning, and the value that applies.

    The values are those for the model and the data that are chosen.
    """
    from nip_fn_cli.commands.init import init_command
    from nip_fn_cli.config import Flags

    flags = Flags(
        trainer=trainer,
        protocol=protocol,
        provider=provider,
        model=model,
        dataset=dataset,
        sets=tuple(set_ or ()),
    )
    init_command(file, flags, runs)


@command()
def params(
    search: Annotated[
        list[str] | None,
        typer.Argument(help="Words; only parameters with all of them are printed.", metavar="WORD"),
    ] = None,
    json_schema: Annotated[
        bool, typer.Option("--json-schema", help="Print a JSON Schema of a configuration instead.")
    ] = False,
) -> None:
    """Print parameters: address, meaning, type and default."""
    from nip_fn_cli.commands.params import params_command

    params_command(tuple(search or ()), json_schema=json_schema)


@command()
def doctor(
    model: Annotated[
        str | None,
        typer.Option(
            help="Also estimate the memory that a training of this model takes.", metavar="NAME"
        ),
    ] = None,
) -> None:
    """Print what is installed, what is missing, and the command that installs it."""
    from nip_fn_cli.commands.doctor import doctor_command

    doctor_command(model)


def main(arguments: list[str] | None = None) -> None:
    """Run the command with these arguments, or with those of the process.

    Ends with `SystemExit`.  Whatever goes wrong outside nip-fn is one line, not a traceback.
    """
    guard_streams()
    try:
        # Only these are caught: whatever else is raised is a bug, and its traceback is wanted.
        app(args=arguments, prog_name="nip-fn")
    except (OSError, UnwrapFailedError) as error:
        die_of(error)
    except SystemExit as end:
        # Typer has caught the interrupt itself, and says nothing.
        if end.__context__ and isinstance(end.__context__.__cause__, KeyboardInterrupt):
            say("nip-fn: interrupted")
        raise
