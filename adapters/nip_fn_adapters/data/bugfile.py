"""An append-only file of solutions that can be resumed after a crash.

Beside the rows lies a journal: a line for the options of the command, then one for each reply of a
model as soon as it comes, for it may be paid for, and one for each right solution that is finished,
with the length of the file after it.  The journal is removed when all is done.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace
from returns.result import Failure, Result, Success

from nip_fn.code.solutions import LabelledSolution, write_row
from nip_fn.errors import Problem
from nip_fn.game.reply import Completion
from nip_fn.keys import Key
from nip_fn.run.ports import Sampler, Unanswered
from nip_fn.run.request import Request
from nip_fn_adapters.data.bugmaking import Ask


class Entry(msgspec.Struct, frozen=True, tag="done"):
    """The outcome of one right solution."""

    id: str
    size: int  # of the file of rows, when it was done with
    bugs: tuple[str, ...]  # the model that wrote each of them
    tried: int
    problem: str


class Kept(msgspec.Struct, frozen=True, tag="reply"):
    """A model's reply, and the key that it was asked for with."""

    key: Key
    reply: Completion


_LINE = msgspec.json.Decoder(Entry | Kept)


class BugFile:
    """An open file of solutions and its journal."""

    def __init__(self, path: Path, lines: Sequence[Entry | Kept]) -> None:
        """Continue after these lines of the journal."""
        self.entries = [line for line in lines if isinstance(line, Entry)]
        self.replies = {line.key: line.reply for line in lines if isinstance(line, Kept)}
        self._rows = path.open("ab")
        self._journal = journal_of(path).open("ab")

    def add(self, rows: tuple[LabelledSolution, ...], entry: Entry) -> None:
        """Write the rows of a right solution, then its entry in the journal."""
        for row in rows:
            # Rows first, then their size in the journal: what a crash leaves beyond that size is
            # cut off.
            self._rows.write(msgspec.json.encode(write_row(row)) + b"\n")
        self._rows.flush()
        os.fsync(self._rows.fileno())
        sized = replace(entry, size=self._rows.tell())
        self._note(sized)
        self.entries.append(sized)

    def remembered(self, sampler: Sampler) -> Ask:
        """The sampler, called for missing replies only; its replies go to the journal."""

        async def ask(request: Request) -> Result[tuple[Completion, ...], Problem]:
            missing = tuple(key for key in request.keys if key not in self.replies)
            if not missing:
                return Success(tuple(self.replies[key] for key in request.keys))
            answer = await sampler(replace(request, keys=missing))
            return answer.bind(lambda places: self._keep(request, missing, places))

        return ask

    def _keep(
        self, request: Request, missing: Sequence[Key], answers: Sequence[Completion | Unanswered]
    ) -> Result[tuple[Completion, ...], Problem]:
        """Add the new replies to the journal; all requested replies, or why some are missing."""
        for key, answer in zip(missing, answers, strict=True):
            if isinstance(answer, Completion):
                self._note(Kept(key, answer))
                self.replies[key] = answer
        for answer in answers:
            if isinstance(answer, Unanswered):
                return Failure(Problem(answer.problem))
        return Success(tuple(self.replies[key] for key in request.keys))

    def _note(self, line: Entry | Kept) -> None:
        self._journal.write(msgspec.json.encode(line) + b"\n")
        self._journal.flush()

    def finish(self) -> None:
        """Remove the journal: the file is complete."""
        journal_of(Path(self._rows.name)).unlink()

    def close(self) -> None:
        """Write no more."""
        self._rows.close()
        self._journal.close()


def journal_of(path: Path) -> Path:
    """The path of a file's journal."""
    return path.with_name(f"{path.name}.journal")


def open_bug_file(path: Path, options: Mapping[str, Any]) -> Result[BugFile, Problem]:
    """A new file, or one that the same command began."""
    journal = journal_of(path)
    if not journal.exists():
        if path.exists():
            remedy = "choose another --out, or remove it"
            return Failure(Problem("exists already", str(path), remedy))
        path.parent.mkdir(parents=True, exist_ok=True)
        journal.write_bytes(msgspec.json.encode(options) + b"\n")
        return Success(BugFile(path, ()))
    read = journal.read_bytes().splitlines(keepends=True)
    lines = [line for line in read if line.endswith(b"\n")]  # the last one may be torn
    if not lines or msgspec.json.decode(lines[0]) != msgspec.json.decode(
        msgspec.json.encode(options)
    ):
        remedy = f"give the same, or remove it and {journal}"
        return Failure(Problem("was begun with other options", str(path), remedy))
    noted = [_LINE.decode(line) for line in lines[1:]]
    os.truncate(journal, sum(map(len, lines)))
    path.touch()
    os.truncate(path, max((line.size for line in noted if isinstance(line, Entry)), default=0))
    return Success(BugFile(path, noted))
