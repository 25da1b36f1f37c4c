"""The adapters on a server's disk, and for whom they are served.

STATE/served.json       for whom what is served, and what has been
STATE/adapters/NAME/    an adapter: `adapter_config.json` and `adapter_model.safetensors`
STATE/uploads/          what is not an adapter yet, or not any more
"""

import asyncio
import filecmp
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import get_args

import msgspec
from msgspec.structs import replace
from returns.result import Failure, Result, Success

from nip_fn_adapters.serving.wire import AdapterFile, AdapterInfo, Needs, Refusal
from nip_fn_adapters.store import replace_file, sync_path

FILES: tuple[AdapterFile, ...] = get_args(AdapterFile)


class Ledger(msgspec.Struct, frozen=True):
    """What is to be served again after a restart of the server."""

    needs: Needs | None = None  # what vLLM was last started for
    is_started: bool = False  # it has not been stopped since
    owners: dict[str, str] = {}  # the adapter that each is served
    retired: dict[str, tuple[str, ...]] = {}  # what each was served before, oldest first


class AdapterStore:
    """All adapters.  Names are checked by the caller: they are parts of paths."""

    def __init__(self, state: Path, keep: int) -> None:
        """Find the adapters again, `keep` of each owner's beside the one that is served."""
        self._file, self._keep = state / "served.json", keep
        self._adapters, self._uploads = state / "adapters", state / "uploads"
        self._taking_in = asyncio.Lock()
        shutil.rmtree(self._uploads, ignore_errors=True)
        for folder in (self._adapters, self._uploads):
            folder.mkdir(parents=True, exist_ok=True)
        self.ledger = Ledger()
        if self._file.exists():
            self.ledger = msgspec.json.decode(self._file.read_bytes(), type=Ledger)

    def note(self, ledger: Ledger) -> None:
        """Write down what is served; it is so after a restart, too."""
        replace_file(self._file, msgspec.json.encode(ledger))
        self.ledger = ledger

    def folder(self, name: str) -> Path | None:
        """Where the adapter lies; None where there is none of that name."""
        path = self._adapters / name
        return path if path.is_dir() else None

    def loras(self) -> dict[str, Path]:
        """The folders of all that is served, by name."""
        return {
            name: folder
            for name in sorted(set(self.ledger.owners.values()))
            if (folder := self.folder(name)) is not None
        }

    def infos(self) -> tuple[AdapterInfo, ...]:
        """All adapters, sorted by name."""
        paths = sorted(path for path in self._adapters.iterdir() if path.is_dir())
        return tuple(map(self._info, paths))

    def _info(self, path: Path) -> AdapterInfo:
        owners = tuple(sorted(o for o, name in self.ledger.owners.items() if name == path.name))
        has_been = any(path.name in names for names in self.ledger.retired.values())
        size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
        return AdapterInfo(path.name, size, owners, retired=has_been and not owners)

    async def put(
        self, name: str, file: AdapterFile, content: AsyncIterator[bytes]
    ) -> Result[None, Refusal]:
        """Take in a file; the adapter is there once both are.  What is there stays as it is."""
        descriptor, written = tempfile.mkstemp(prefix=".", dir=self._uploads)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                async for part in content:
                    stream.write(part)
            async with self._taking_in:
                return await asyncio.to_thread(self._take_in, name, file, Path(written))
        finally:
            Path(written).unlink(missing_ok=True)

    def _take_in(self, name: str, file: AdapterFile, written: Path) -> Result[None, Refusal]:
        there = self._adapters / name
        if there.exists():
            if (there / file).is_file() and filecmp.cmp(there / file, written, shallow=False):
                return Success(None)
            return Failure(
                Refusal(409, f"there is another adapter {name}; publish this under a new name")
            )
        unfinished = self._uploads / name
        unfinished.mkdir(exist_ok=True)
        sync_path(written)
        written.rename(unfinished / file)
        if all((unfinished / one).is_file() for one in FILES):
            sync_path(unfinished)
            unfinished.rename(there)
            sync_path(self._adapters)
        return Success(None)

    def remove(self, name: str) -> None:
        """Delete an adapter; it is gone at once, or still there whole."""
        bin = Path(tempfile.mkdtemp(prefix=".", dir=self._uploads))
        (self._adapters / name).rename(bin / name)
        sync_path(self._adapters)
        shutil.rmtree(bin)

    def give(self, owner: str, name: str) -> str | None:
        """Note that the owner is served the adapter; what nobody is served any more is returned."""
        before = self.ledger.owners.get(owner)
        owners = {**self.ledger.owners, owner: name}
        others = [n for n in self.ledger.retired.get(owner, ()) if n not in (before, name)]
        if before is not None and before != name:
            others.append(before)
        retired = {**self.ledger.retired, owner: tuple(others)}
        self.note(replace(self.ledger, owners=owners, retired=retired))
        return None if before in owners.values() else before

    def retire(self, owners: Collection[str]) -> None:
        """Note that these owners are not served any more."""
        kept = {o: name for o, name in self.ledger.owners.items() if o not in owners}
        retired = dict(self.ledger.retired)
        for owner in owners:
            last = self.ledger.owners[owner]
            retired[owner] = (*(one for one in retired.get(owner, ()) if one != last), last)
        self.note(replace(self.ledger, owners=kept, retired=retired))

    def prune(self, needed: Collection[str]) -> None:
        """Delete what has been served, but for the newest of each owner and what is `needed`."""
        retired = self.ledger.retired
        newest = {n for names in retired.values() for n in names[max(0, len(names) - self._keep) :]}
        gone = {name for names in retired.values() for name in names}
        gone -= {*newest, *needed, *self.ledger.owners.values()}
        for name in sorted(gone):
            if self.folder(name) is not None:
                self.remove(name)
        if gone:
            left = {o: tuple(n for n in names if n not in gone) for o, names in retired.items()}
            self.note(replace(self.ledger, retired=left))
