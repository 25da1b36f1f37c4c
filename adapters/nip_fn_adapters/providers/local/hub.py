"""The Hugging Face hub: models are downloaded from it, and adapters pushed to it.

`python -m nip_fn_adapters.providers.local.hub FOLDER NAMESPACE` pushes an adapter.
"""

import os
import re
import sys
from pathlib import Path

import msgspec
from returns.result import Failure, Result, Success

from nip_fn.errors import Problem, one_line
from nip_fn_adapters.decoding import UNREADABLE
from nip_fn_adapters.providers.local.children import die_with_parent

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
# The files of a model; of weights only safetensors, since other formats may run code when read.
FILES = (
    *("config.json", "generation_config.json", "chat_template.*", "tokenizer*", "*.model"),
    *("special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt"),
    *("model.safetensors", "model-*.safetensors", "model.safetensors.index.json"),
)
IN_FOLDERS = "*/*"
NAME_LIMIT = 96  # of the hub, in characters


def hub_model(name: str) -> Result[Path, Problem]:
    """The folder of the model ORG/NAME in the hub's cache, downloaded if it is not whole there.

    Nothing is downloaded if $HF_HUB_OFFLINE is set.  The only token that is used is $HF_TOKEN.
    """
    try:
        from huggingface_hub import constants
        from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
    except ModuleNotFoundError:
        return Failure(
            Problem(
                f"{name} is no folder, and models of the Hugging Face hub need huggingface_hub",
                remedy='pip install "nip-fn[local]"',
            )
        )
    try:
        # The cache first: a look at the hub takes time at every start, and fails without a network.
        cached = _snapshot(name, local_files_only=True)
        fault = _fault(cached)
        if not fault:
            return Success(cached)
    except LocalEntryNotFoundError:
        fault = "it is not there"
    except HFValidationError as error:
        message = f"{name} is no folder, and cannot be on the hub: {one_line(error)}"
        return Failure(Problem(message, remedy="correct the name"))
    if constants.HF_HUB_OFFLINE:
        return Failure(
            Problem(
                f"{name} cannot be loaded from the Hugging Face hub's cache: {fault}",
                remedy="download it once without HF_HUB_OFFLINE",
            )
        )
    return _download(name)


def _download(name: str) -> Result[Path, Problem]:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        folder = _snapshot(name, local_files_only=False)
    except GatedRepoError:
        remedy = "accept its terms on the Hugging Face hub, and set HF_TOKEN"
        return Failure(Problem(f"{name} is gated", remedy=remedy))
    except RepositoryNotFoundError:
        return Failure(
            Problem(
                f"{name} is neither a folder nor a model of the Hugging Face hub",
                remedy="correct the name, or set HF_TOKEN if it is private",
            )
        )
    except Exception as error:  # of names, HTTP, the hub's own transport, and files
        message = f"{name} cannot be downloaded from the Hugging Face hub: {one_line(error)}"
        return Failure(Problem(message))
    fault = _fault(folder)
    if fault:
        return Failure(Problem(f"{name} of the Hugging Face hub is of no use: {fault}"))
    return Success(folder)


def _snapshot(name: str, *, local_files_only: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    return Path(
        snapshot_download(
            name,
            local_files_only=local_files_only,
            allow_patterns=list(FILES),
            ignore_patterns=IN_FOLDERS,
            # With None, the library would send the token that it finds on the disk.
            token=os.environ.get("HF_TOKEN") or False,
        )
    )


def _fault(folder: Path) -> str:
    """The reason why no model can be loaded from the folder; "" if one can."""
    index = folder / "model.safetensors.index.json"
    if not (folder / "config.json").is_file():
        return "it has no config.json"
    if (folder / "model.safetensors").is_file():
        return ""
    if not index.is_file():
        return "it has no weights as safetensors, and others may hold code"
    try:
        shards = set(msgspec.json.decode(index.read_bytes(), type=_Index).weight_map.values())
    except UNREADABLE as error:
        return f"its {index.name} cannot be read ({one_line(error)})"
    missing = sorted(shard for shard in shards if not (folder / shard).is_file())
    return f"{missing[0]} is missing" if missing else ""


class _Index(msgspec.Struct):
    weight_map: dict[str, str]  # the file of each weight


def repository(namespace: str, adapter: str) -> str:
    """The repository that an adapter is pushed to.

    A long name is cut at its head, since the hash at its end tells it apart.

    >>> repository("me", "run--verifier-3-0123abcd")
    'me/run-verifier-3-0123abcd'
    """
    name = re.sub(r"([-.])[-.]+", r"\1", adapter)[-(NAME_LIMIT - len(namespace) - 1) :]
    return f"{namespace}/{name.lstrip('-.')}"


def main() -> None:
    """Push the adapter in a folder to a private repository, and print one line about it."""
    folder, namespace = Path(sys.argv[1]), sys.argv[2]
    die_with_parent()
    from huggingface_hub import HfApi

    name = repository(namespace, folder.name)
    api = HfApi(token=os.environ.get("HF_TOKEN") or False)
    try:
        # Private, since an adapter may give away what it was trained on.
        api.create_repo(name, private=True, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, commit_message="Push a trained adapter")
    except Exception as error:  # as in `_download`
        sys.exit(f"warning: {folder.name} was not pushed to {name}: {one_line(error)}")
    print(f"pushed {folder.name} to {name}")


if __name__ == "__main__":
    main()
