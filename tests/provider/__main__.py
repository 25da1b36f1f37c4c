"""`python -m tests.provider FOLDER [PORT] [SETTINGS]`: serve until the standard input ends."""

import asyncio
import os
import sys
from pathlib import Path

import msgspec

from .server import serve
from .settings import Settings


async def _until_input_ends(port: int) -> None:
    print(port, flush=True)
    ended = asyncio.Event()

    def look() -> None:
        if not os.read(0, 4096):
            ended.set()

    asyncio.get_running_loop().add_reader(0, look)
    await ended.wait()
    os._exit(0)  # at once, whatever is still being answered


if __name__ == "__main__":
    folder, port, settings = (*sys.argv[1:], "0", "{}")[:3] if len(sys.argv) < 4 else sys.argv[1:4]
    decoded = msgspec.json.decode(settings, type=Settings)
    asyncio.run(serve(Path(folder), decoded, int(port), _until_input_ends))
