"""Adapters on a server's disk: uploads that are never served do not stay for ever."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

from nip_fn_adapters.serving.adapter_store import FILES, MAX_UPLOADED, AdapterStore


async def content() -> AsyncIterator[bytes]:
    yield b"{}"


def upload(store: AdapterStore, folder: Path, *names: str) -> None:
    """Upload adapters, a second after one another."""

    async def put() -> None:
        for age, name in enumerate(reversed(names)):
            for file in FILES:
                (await store.put(name, file, content())).unwrap()
            os.utime(folder / "adapters" / name, (1e9 - age, 1e9 - age))

    asyncio.run(put())


def names(store: AdapterStore) -> set[str]:
    return {info.name for info in store.infos()}


def test_the_newest_uploads_stay_and_what_is_needed_served_or_trained_here(tmp_path: Path) -> None:
    store = AdapterStore(tmp_path, keep=1)
    uploads = [f"upload-{number}" for number in range(MAX_UPLOADED + 3)]
    upload(store, tmp_path, "needed", "trained", "served", "replaced", *uploads)
    store.assign("run", "replaced")
    store.assign("run", "served")
    for _ in range(2):
        store.prune({"needed"}, {"trained"})
        assert names(store) == {"needed", "trained", "served", "replaced", *uploads[3:]}
    assert store.ledger.retired == {"run": ("replaced",)}
