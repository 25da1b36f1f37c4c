"""A fake provider of models: OpenAI's HTTP interface on loopback, in a process of its own.

with Provider(latency=0.2, key="sk-test") as provider:
    client = openai.AsyncOpenAI(base_url=provider.url, api_key="sk-test", max_retries=0)

All settings are in `settings.py`, all faults in `faults.py`.
"""

import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from .faults import Faults
from .jobs import view
from .record import read_log, read_objects
from .settings import Settings, updated

__all__ = ["Provider"]

ROOT = Path(__file__).parents[2]


class Provider:
    """A provider that runs from `with` to the end of the block; it dies with this process.

    Its state lies in `folder`, or a temporary one, and survives `kill` and `restart`.
    """

    def __init__(self, folder: Path | None = None, **settings: Any) -> None:
        self._temporary = None if folder else tempfile.TemporaryDirectory(prefix="provider-")
        self.folder = folder or Path(self._temporary.name if self._temporary else "")
        self.settings = _checked(Settings(), settings)
        self.port = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """Its address; the same after a restart."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def pid(self) -> int | None:
        """The id of its process; None while it is dead."""
        alive = self._process is not None and self._process.poll() is None
        return self._process.pid if alive and self._process else None

    def __enter__(self) -> "Provider":
        self.restart()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()
        if self._temporary:
            self._temporary.cleanup()

    def kill(self) -> None:
        """End the process with SIGKILL: every connection breaks."""
        if self._process is None:
            return
        self._process.kill()
        self._process.communicate()
        self._process = None

    def restart(self, **changes: Any) -> None:
        """Start (again), at the same port; faults count from the beginning."""
        self.kill()
        self.settings = _checked(self.settings, changes)
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = msgspec.json.encode(self.settings).decode()
        command = [
            sys.executable,
            "-m",
            __name__,
            str(self.folder.resolve()),
            str(self.port),
            settings,
        ]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.kill()
            raise RuntimeError("the fake provider did not start; see its error above")
        self.port = int(line)

    def configure(self, **changes: Any) -> None:
        """Change settings while it runs; setting `faults` makes them count from the beginning."""
        settings = _checked(self.settings, changes)
        self._ask("settings", msgspec.json.encode(changes))
        self.settings = settings

    def reset(self, **settings: Any) -> None:
        """Make it as good as a new one with these settings, at the same port.

        Tests of a file share a process so: to start one takes most of a second.
        """
        self.settings = _checked(Settings(), settings)
        self._ask("reset", msgspec.json.encode(self.settings))

    def log(self) -> list[dict[str, Any]]:
        """Every request in the order in which they came; readable also while it is dead."""
        return read_log(self.folder)

    def counters(self) -> dict[str, Any]:
        """Totals since the folder was new; `by_status` has "None" for what was not answered."""
        return self._ask("counters", None)

    def jobs(self) -> list[dict[str, Any]]:
        """All fine-tuning jobs, oldest first, also those that vanished."""
        return [view(job) for job in read_objects(self.folder)[1].values()]

    def files(self) -> list[dict[str, Any]]:
        """All files that were not deleted, oldest first."""
        return list(read_objects(self.folder)[0].values())

    def _ask(self, what: str, body: bytes | None) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self.port}/control/{what}"
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
            return dict(msgspec.json.decode(answer.read()))


def _checked(settings: Settings, changes: dict[str, Any]) -> Settings:
    """The settings with changes; raises where the server would refuse them."""
    found = updated(settings, changes)
    Faults(found.faults)
    return found
