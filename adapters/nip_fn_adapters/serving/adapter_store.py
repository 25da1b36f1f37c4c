"""The adapters on a server's disk, and the owners that they are served for.

STATE/served.json       which adapter each owner is served, and those it was served before
STATE/adapters/NAME/    an adapter: `adapter_config.json` and `adapter_model.safetensors`
STATE/uploads/          uploads that are not complete, and adapters that are being deleted
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

from nip_fn_adapters.durable import make_folder, replace_file, sync_path
from nip_fn_adapters.serving.wire import AdapterFile, AdapterInfo, Needs, Refusal

# Adapters that were uploaded and not served: their clients send them again if they need to.
MAX_UPLOADED = 20
FILES: tuple[AdapterFile, ...] = get_args(AdapterFile)


class Ledger(msgspec.Struct, frozen=True):
    """The state that a restarted server continues from."""

    needs: Needs | None = None  # what vLLM was last started for
    is_started: bool = False  # it has not been stopped since
    owners: dict[str, str] = {}  # the adapter that each owner is served
    retired: dict[str, tuple[str, ...]] = {}  # those that each was served before, oldest first


class AdapterStore:
    """All adapters.  Names are checked by the caller: they are parts of paths."""

    def __init__(self, state: Path, keep: int) -> None:
        """Read the state; `keep`: retired adapters of each owner that stay on disk."""
        self._file, self._keep = state / "served.json", keep
        self._adapters, self._uploads = state / "adapters", state / "uploads"
        self._adding = asyncio.Lock()
        # Clients send whole files again, so what the last server left unfinished is of no use.
        shutil.rmtree(self._uploads, ignore_errors=True)
        for folder in (self._adapters, self._uploads):
            make_folder(folder)
        self.ledger = Ledger()
        if self._file.exists():
            self.ledger = msgspec.json.decode(self._file.read_bytes(), type=Ledger)

    def record(self, ledger: Ledger) -> None:
        """Write down what is served; a restarted server reads it."""
        replace_file(self._file, msgspec.json.encode(ledger))
        self.ledger = ledger

    def folder(self, name: str) -> Path | None:
        """The folder of an adapter; None if there is no adapter of that name."""
        path = self._adapters / name
        return path if path.is_dir() else None

    def file(self, name: str, file: AdapterFile) -> Result[Path, Refusal]:
        """The path of one of an adapter's files; 404 if there is no such adapter."""
        path = self._adapters / name / file
        missing = Refusal(f"there is no adapter {name} on this server", status=404)
        return Success(path) if path.is_file() else Failure(missing)

    def served(self) -> dict[str, Path]:
        """The folders of all adapters that are served, by name."""
        return {
            name: folder
            for name in sorted(set(self.ledger.owners.values()))
            if (folder := self.folder(name)) is not None
        }

    def infos(self) -> tuple[AdapterInfo, ...]:
        """All adapters, sorted by name."""
        replaced = {name for names in self.ledger.retired.values() for name in names}
        infos = []
        for path in sorted(path for path in self._adapters.iterdir() if path.is_dir()):
            owners = tuple(sorted(o for o, name in self.ledger.owners.items() if name == path.name))
            size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
            infos.append(AdapterInfo(path.name, size, owners, path.name in replaced and not owners))
        return tuple(infos)

    async def put(
        self, name: str, file: AdapterFile, content: AsyncIterator[bytes]
    ) -> Result[None, Refusal]:
        """Store a file; the adapter exists once both are there, and never changes afterwards."""
        descriptor, written = tempfile.mkstemp(prefix=".", dir=self._uploads)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                async for part in content:
                    stream.write(part)
            # One at a time, or two uploads could complete one adapter twice; in a thread, because
            # comparing and syncing gigabytes would hold up every other request.
            async with self._adding:
                return await asyncio.to_thread(self._add, name, file, Path(written))
        finally:
            Path(written).unlink(missing_ok=True)

    def _add(self, name: str, file: AdapterFile, written: Path) -> Result[None, Refusal]:
        adapter = self._adapters / name
        if adapter.exists():
            # A client that lost the answer sends the same file again.
            if (adapter / file).is_file() and filecmp.cmp(adapter / file, written, shallow=False):
                return Success(None)
            return Failure(
                Refusal(
                    f"there is another adapter {name}",
                    remedy="publish this under a new name",
                    status=409,
                )
            )
        # An adapter appears by a rename, once both of its files are on the disk.
        unfinished = self._uploads / name
        unfinished.mkdir(exist_ok=True)
        sync_path(written)
        written.rename(unfinished / file)
        if all((unfinished / part).is_file() for part in FILES):
            sync_path(unfinished)
            unfinished.rename(adapter)
            sync_path(self._adapters)
        return Success(None)

    def remove(self, name: str) -> None:
        """Delete an adapter; after a crash it is there whole, or not at all."""
        # Renamed first: a crash in the middle of the deletion would leave half an adapter.
        trash = Path(tempfile.mkdtemp(prefix=".", dir=self._uploads))
        (self._adapters / name).rename(trash / name)
        sync_path(self._adapters)
        shutil.rmtree(trash)

    def assign(self, owner: str, name: str) -> str | None:
        """Record that the owner is served the adapter.

        Returns the adapter that it was served before, if no other owner is served that.
        """
        before = self.ledger.owners.get(owner)
        owners = {**self.ledger.owners, owner: name}
        # What was replaced now becomes the newest of the retired ones, even if it had been retired
        # before; and what is served again is no longer among them.
        retired_names = [n for n in self.ledger.retired.get(owner, ()) if n not in (before, name)]
        if before is not None and before != name:
            retired_names.append(before)
        retired = {**self.ledger.retired, owner: tuple(retired_names)}
        self.record(replace(self.ledger, owners=owners, retired=retired))
        return None if before in owners.values() else before

    def retire(self, owners: Collection[str]) -> None:
        """Record that these owners are not served any more."""
        kept = {o: name for o, name in self.ledger.owners.items() if o not in owners}
        retired = dict(self.ledger.retired)
        for owner in owners:
            last = self.ledger.owners[owner]
            retired[owner] = (*(name for name in retired.get(owner, ()) if name != last), last)
        self.record(replace(self.ledger, owners=kept, retired=retired))

    def prune(self, needed: Collection[str], trained: Collection[str]) -> None:
        """Delete the retired adapters but the newest of each owner, and the oldest uploads.

        Args:
            needed: Adapters that stay, whatever they are.
            trained: Those that were trained here: of one that waits to be served there may be no
                other copy.
        """
        retired = self.ledger.retired
        newest = {n for names in retired.values() for n in names[max(0, len(names) - self._keep) :]}
        replaced = {name for names in retired.values() for name in names}
        stay = {*needed, *self.ledger.owners.values()}
        gone = replaced - newest - stay
        # Newest first: those that were uploaded and have not been served.
        used = stay | replaced | {*trained}
        uploaded = [path for path in self._adapters.iterdir() if path.name not in used]
        uploaded.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        gone.update(path.name for path in uploaded[MAX_UPLOADED:])
        for name in sorted(gone):
            if self.folder(name) is not None:
                self.remove(name)
        if gone & replaced:
            remaining = {
                o: tuple(n for n in names if n not in gone) for o, names in retired.items()
            }
            self.record(replace(self.ledger, retired=remaining))
