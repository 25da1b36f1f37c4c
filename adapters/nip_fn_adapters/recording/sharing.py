"""Runs that are shared: as a folder of the Hugging Face hub's form, pushed there, and pulled again.

What is pulled is a run like any other: it is replayed, shown, and agents go on from its adapters.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

from returns.result import Failure, Result, Success

from nip_fn import __version__
from nip_fn.config.toml import to_toml
from nip_fn.errors import Problem, one_line
from nip_fn.export.card import PLACE, model_card
from nip_fn_adapters.recording.exports import to_csv, to_parquet, to_trl
from nip_fn_adapters.recording.runs import Run, load_run
from nip_fn_adapters.recording.store import CHECKPOINT, below

ADAPTERS = "adapters"
WANDB = "wandb:"

# Of a repository only what a run consists of; of weights only safetensors, since other formats may
# run code when they are read.
FILES = (
    *(CHECKPOINT, "config.toml", "metrics.jsonl"),
    *(f"{ADAPTERS}/*/*.{kind}" for kind in ("safetensors", "json", "jinja", "txt", "model")),
)
# A token on the disk is nobody's business here.
_TOKEN = "HF_TOKEN"


def to_hf(run: Run, folder: Path, repository: str = PLACE) -> Iterator[Path]:
    """The run as a repository of the Hugging Face hub: recording, adapters, tables and a card."""
    home = run.path.parent
    yield Path(shutil.copyfile(run.path, below(folder, CHECKPOINT)))
    config = below(folder, "config.toml")
    config.write_text(to_toml(run.params), encoding="utf-8")
    yield config
    for group in run.state.groups:
        for adapter in group.lineage:
            trained = below(home, ADAPTERS, adapter.name)
            if trained.is_dir():  # an API keeps its own
                target = below(folder, ADAPTERS, adapter.name)
                yield Path(shutil.copytree(trained, target, dirs_exist_ok=True))
    data = below(folder, "data")
    data.mkdir(exist_ok=True)
    yield from (to_parquet if find_spec("pyarrow") else to_csv)(run, data)
    yield from to_trl(run, data)
    card = model_card(home.resolve().name, run.replayed, version=__version__, repository=repository)
    readme = below(folder, "README.md")
    readme.write_text(card, encoding="utf-8")
    yield readme


def push(folder: Path, repository: str) -> Result[str, Problem]:
    """The address of the repository ORG/NAME, to which a folder was pushed.

    The repository is private until its owner publishes it: a recording holds all of the data.
    """
    if not find_spec("huggingface_hub"):
        return Failure(_needs_hub(f"--push {repository}"))
    from huggingface_hub import HfApi

    api = HfApi(token=os.environ.get(_TOKEN) or False)
    try:
        api.create_repo(repository, private=True, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository,
            folder_path=folder,
            commit_message=f"Push a run of nip-fn {__version__}",
        )
    except Exception as error:  # of names, HTTP, the hub's own transport, and files
        remedy = f"set {_TOKEN} to a token that may write there, and repeat the command"
        return Failure(Problem(one_line(error), f"--push {repository}", remedy, kind="adapter"))
    return Success(str(commit.commit_url))


def pull(address: str, folder: Path) -> Result[Run, Problem]:
    """The run at ORG/NAME of the hub, or at wandb:ENTITY/PROJECT/RUN, downloaded into a new folder.

    A failure, also of a run that cannot be derived as it was recorded, leaves no folder behind.
    """
    beside = folder.with_name(f".{folder.name}-unfinished")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    download = _from_wandb if address.startswith(WANDB) else _from_hub
    try:
        pulled = download(address, beside).bind(lambda _: load_run(beside)).bind(_as_recorded)
        if isinstance(pulled, Failure):
            problem: Problem = pulled.failure()
            return Failure(problem.at(address).of("adapter"))
        os.replace(beside, folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return load_run(folder)


def _as_recorded(run: Run) -> Result[Run, Problem]:
    if run.faults:
        remedy = "ask its owner for a whole copy"
        return Failure(Problem(f"it is not the run that was recorded: {run.faults[0]}", "", remedy))
    return Success(run)


def _from_hub(repository: str, folder: Path) -> Result[None, Problem]:
    if not find_spec("huggingface_hub"):
        return Failure(_needs_hub(""))
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars, logging

    disable_progress_bars()
    logging.set_verbosity_error()  # what is missing is told below
    try:
        snapshot_download(
            repository,
            local_dir=folder,
            allow_patterns=list(FILES),
            token=os.environ.get(_TOKEN) or False,
        )
    except Exception as error:  # as in `push`
        remedy = f"correct the name, or set {_TOKEN} if it is private"
        return Failure(Problem(f"cannot be downloaded: {one_line(error)}", "", remedy))
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # the library's own notes
    if (folder / CHECKPOINT).is_file():
        return Success(None)
    remedy = "pull a repository that nip-fn export --to hf has written"
    return Failure(Problem(f"has no {CHECKPOINT}", "", remedy))


def _from_wandb(address: str, folder: Path) -> Result[None, Problem]:
    """Download the artifacts that the tracker has kept: the recording, and each adapter."""
    match = re.fullmatch(r"wandb:([\w.-]+/[\w.-]+)/([\w.-]+)", address)
    if match is None:
        return Failure(Problem("is no run", "", "write it as wandb:ENTITY/PROJECT/RUN"))
    if not find_spec("wandb"):
        return Failure(Problem("wandb is not installed", "", "pip install wandb"))
    import wandb

    project, run_id = match.groups()
    try:
        fetch: Callable[[str], object] = wandb.Api().artifact
        fetch(f"{project}/{run_id}-recording:latest").download(root=str(folder))  # type: ignore[attr-defined]
        derived = load_run(folder)
        if isinstance(derived, Failure):
            return Failure(derived.failure())
        for group in derived.unwrap().state.groups:
            for adapter in group.lineage:
                root = str(below(folder, ADAPTERS, adapter.name))
                fetch(f"{project}/{adapter.name}:latest").download(root=root)  # type: ignore[attr-defined]
    except Exception as error:  # of somebody else's program
        remedy = "log in (wandb login), and name a run that was tracked to its end"
        return Failure(Problem(f"cannot be downloaded: {one_line(error)}", "", remedy))
    return Success(None)


def _needs_hub(where: str) -> Problem:
    return Problem("needs huggingface_hub", where, 'pip install "nip-fn[data]"', kind="adapter")
