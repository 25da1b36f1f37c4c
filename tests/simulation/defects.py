"""Plant small defects in the adapters, one at a time: which law breaks, after how many schedules?

python -m tests.simulation.defects --seeds 1000

Each defect is a piece of source and what is written in its place, in a process of its own.
"""

import argparse
import importlib.util
import logging
import subprocess
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

ADAPTERS = Path(__file__).parents[2] / "adapters" / "nip_fn_adapters"


class Defect(NamedTuple):
    """A defect, as a person would describe it."""

    name: str
    file: str  # below the adapters
    before: str
    after: str

    @property
    def module(self) -> str:
        """The module that has it."""
        return "nip_fn_adapters." + self.file.removesuffix(".py").replace("/", ".")


INTERPRETER, STORE, DURABLE = "interpreter.py", "recording/store.py", "durable.py"
API, BUDGET, NOTE = "providers/api/", "costs/budget.py", "costs/note.py"

DEFECTS = (
    # the interpreter
    Defect(
        "an intent is not synced",
        INTERPRETER,
        "            self._world.store.sync()  # before anything is paid",
        "            pass",
    ),
    Defect("a resumed state brings no effects", INTERPRETER, "if not loop.effects:", "if False:"),
    Defect(
        "effects of a resumed state are carried out twice",
        INTERPRETER,
        "loop.effects.extend(pending(loop.state))",
        "loop.effects.extend(2 * tuple(pending(loop.state)))",
    ),
    Defect("siblings of a missing reply are dropped", INTERPRETER, "if not came:", "if missing:"),
    Defect(
        "replies under way are not waited for",
        INTERPRETER,
        "problems += await self._drain(problems)",
        "problems += []",
    ),
    Defect("requests that wait are sent after a stop", INTERPRETER, "self._world.drain()", "pass"),
    Defect(
        "waves are not synced",
        INTERPRETER,
        "await asyncio.to_thread(self._world.store.sync)",
        "await asyncio.sleep(0)",
    ),
    Defect(
        "the end of a session is not synced",
        INTERPRETER,
        "            self._world.store.sync()\n        if not syncing",
        "        if not syncing",
    ),
    Defect(
        "a failed training is skipped",
        INTERPRETER,
        'if policy == "skip":',
        'if policy in ("skip", "retry"):',
    ),
    Defect(
        "of the answers that have come one is taken",
        INTERPRETER,
        "problems += self._accept(self._answered.get_nowait())",
        "self._answered.get_nowait()",
    ),
    # the store
    Defect("a torn frame is not cut off", STORE, "if recording.torn:", "if False:"),
    Defect(
        "what is read at a resume is not synced",
        STORE,
        "        store.sync()\n    return Success(Reopened",
        "    return Success(Reopened",
    ),
    Defect(
        "a resumed recording is not locked",
        STORE,
        "fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "pass",
    ),
    Defect(
        "a store that fails keeps its lock",
        STORE,
        "    except BaseException:\n        store.close()\n",
        "    except BaseException:\n",
    ),
    Defect(
        "the names of folders are not synced",
        DURABLE,
        "        sync_path(folder)",
        "        pass",
    ),
    Defect(
        "the content of a note is not synced",
        DURABLE,
        "            os.fsync(file.fileno())",
        "            pass",
    ),
    Defect("the name of a note is not synced", DURABLE, "    sync_path(path.parent)", "    pass"),
    # the sampler
    Defect(
        "a whole request is sent again for a missing sibling",
        API + "sampler.py",
        "keys=query.keys[len(completions) :]",
        "keys=query.keys",
    ),
    Defect(
        "an answer that was lost counts as unpaid",
        API + "sampler.py",
        "return None if retries.may_be_billed(answer, seconds, shortest) else Tokens()",
        "return Tokens()",
    ),
    Defect("a stop leaves the queue open", API + "sampler.py", "self._queue.close()", "pass"),
    Defect(
        "a permit is given back only after success",
        API + "sampler.py",
        "                self._queue.release(permit)\n            if not",
        "                pass\n            if not",
    ),
    Defect("the queue has no timer", API + "admission.py", "if seconds < inf:", "if False:"),
    Defect(
        "choices are taken as they come",
        API + "replies.py",
        "choices = sorted(body.choices, key=lambda choice: choice.index or 0)",
        "choices = body.choices",
    ),
    Defect(
        "more choices than were requested are taken",
        API + "replies.py",
        "whole[:most]",
        "whole",
    ),
    Defect(
        "an answer without choices is a bug",
        API + "replies.py",
        "    if not body.choices:",
        "    if False:",
    ),
    Defect(
        "a redirection leads elsewhere",
        API + "clients.py",
        "stays = url.origin() == before.origin()",
        "stays = True",
    ),
    Defect(
        "a server's words show the key",
        API + "problems.py",
        '    text = text.replace(key, "***")',
        "    return text",
    ),
    # the budget
    Defect("nothing is noted before it is sent", BUDGET, "if lost > self._noted:", "if False:"),
    Defect("the note is not synced", BUDGET, "sync=self.limit < inf)", "sync=False)"),
    Defect(
        "lost answers cost nothing",
        BUDGET,
        "self.spent += spent\n",
        "self.spent += 0.0 if lost else spent\n",
    ),
    Defect(
        "reservations are unbounded",
        BUDGET,
        "return most <= available and (alone or in_bounds)",
        "return alone or in_bounds",
    ),
    Defect(
        "the note of earlier sessions is not counted",
        BUDGET,
        "limit, recorded + lost, lost",
        "limit, recorded, lost",
    ),
    Defect(
        "work that is over counts as under way",
        BUDGET,
        "self._under_way -= 1",
        "self._under_way -= 0",
    ),
    Defect(
        "a note begins empty", NOTE, "replace_file(file, text)\n            return", "file.touch()"
    ),
    # trainings
    Defect(
        "a job is created before it is noted",
        API + "tuner.py",
        "        self._note(file)\n        try:",
        "        try:",
    ),
    Defect(
        "a job is not looked for",
        API + "tuner.py",
        "job = await self._find(note)",
        "job = None",
    ),
    Defect(
        "a list is looked at once",
        API + "uploads.py",
        "if listed or clock.wall() >= until:",
        "if True:",
    ),
    Defect(
        "the identity is drawn in each session",
        API + "ledger.py",
        "if not file.exists():",
        "if True:",
    ),
    Defect(
        "a model is used before it is served",
        API + "publisher.py",
        "if is_served.value_or(True):",
        "if True:",
    ),
    Defect(
        "a failure that may have created a job drops its note",
        API + "tuner.py",
        "if refusal.status_code < 500 and refusal.status_code not in (408, 409):",
        "if True:",
    ),
    # batches
    Defect(
        "noted batches are not looked at",
        API + "batches.py",
        "        for note in self._notes():\n            ids",
        "        for note in ():\n            ids",
    ),
    Defect(
        "a batch is not looked for",
        API + "batches.py",
        "batch = batch or await self._find(client, note)",
        "batch = batch",
    ),
    Defect(
        "rows that failed stay in their batch",
        API + "batches.py",
        "if name in wave and name not in note.failed]",
        "if name in wave]",
    ),
    Defect(
        "the time of a batch is not noted",
        API + "batches.py",
        "self._write(replace(note, asked=clock.wall(), id=None))",
        "pass",
    ),
    Defect(
        "an answer that is null is a batch",
        API + "batches.py",
        '    text_of(batch, "status")\n',
        "",
    ),
    Defect(
        "an answer that is null is a list",
        API + "publisher.py",
        "each(client.models.list())",
        "client.models.list()",
    ),
    # the language-model server and its clients
    Defect(
        "an accepted job is kept in memory",
        "serving/queue.py",
        "self._record(Ticket(job_id, number, digest, needs))",
        "self._tickets[job_id] = Ticket(job_id, number, digest, needs)",
    ),
    Defect(
        "a training that has ended is done again",
        "serving/queue.py",
        "        tuned = finished(files, job)\n        if tuned is None:\n            # The child",
        "        tuned = None\n        if tuned is None:\n            # The child",
    ),
    Defect(
        "the queue does not notice a new job",
        "serving/queue.py",
        "            self._changed.set()\n        return Success(self.info(job_id))",
        "        return Success(self.info(job_id))",
    ),
    Defect(
        "lent memory is not given back",
        "serving/service.py",
        "                await self._fleet.wake()\n",
        "",
    ),
    Defect(
        "a vLLM that is started again has no adapters",
        "serving/fleet.py",
        "return {name: folder for name, folder in self._loras.items() if folder.is_dir()}",
        "return {}",
    ),
    Defect(
        "adapters that vLLM has lost are not noticed",
        "serving/fleet.py",
        "await _all(replica.look() for replica in self._replicas)",
        "pass",
    ),
    Defect(
        "a vLLM that has crashed stays away",
        "serving/replica.py",
        "            await asyncio.sleep(pause)\n",
        "            return\n",
    ),
    Defect(
        "a vLLM that hangs is not noticed",
        "serving/replica.py",
        "if is_alive is None and self._awake.is_set():",
        "if False:",
    ),
    Defect(
        "an adapter that the server lacks is not sent",
        "providers/selfhosted/host.py",
        "await bind_async(await self.send((adapter,)), lambda nothing: call())",
        "await call()",
    ),
    Defect(
        "the start of a training is not sent",
        "providers/selfhosted/tuner.py",
        "if adapters else Success(None)",
        "if False else Success(None)",
    ),
)


class _Loader(SourceFileLoader):
    """Loads a module with a defect."""

    def __init__(self, defect: Defect) -> None:
        super().__init__(defect.module, str(ADAPTERS / defect.file))
        self._defect = defect

    def get_code(self, fullname: str) -> CodeType:
        return compile(planted(self._defect), self.path, "exec")


class _Finder:
    def __init__(self, defect: Defect) -> None:
        self._defect = defect

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self._defect.module:
            return None
        file = ADAPTERS / self._defect.file
        return importlib.util.spec_from_file_location(name, file, loader=_Loader(self._defect))


def planted(defect: Defect) -> str:
    """The source of its module with the defect; raises `ValueError` if it has no place there."""
    source = (ADAPTERS / defect.file).read_text()
    if source.count(defect.before) != 1:
        raise ValueError(f"{defect.name}: {defect.before!r} is {source.count(defect.before)} times")
    return source.replace(defect.before, defect.after)


def _judge(number: int, seeds: range) -> str:
    """The first seed under which a law breaks with that defect, and the law."""
    sys.meta_path.insert(0, _Finder(DEFECTS[number]))  # type: ignore[arg-type]
    from .world import play

    logging.disable(logging.CRITICAL)
    for seed in seeds:
        if broken := play(seed).broken:
            return f"{seed}\t{broken[0][0]}"
    return "\t"


def judge(defect: Defect, seeds: range) -> tuple[str, str]:
    """The first of the seeds under which a law breaks with a defect, and the law; or "", ""."""
    numbers = (str(DEFECTS.index(defect)), str(seeds.start), str(len(seeds)))
    command = (sys.executable, "-m", "tests.simulation.defects", "--judge", *numbers)
    finished = subprocess.run(command, capture_output=True, text=True)
    if finished.returncode:
        return "", finished.stderr.splitlines()[-1]
    seed, law = finished.stdout.splitlines()[-1].split("\t")
    return seed, law


def main() -> None:
    """Print a line for each defect: schedules until it was caught, the law, the defect."""
    parser = argparse.ArgumentParser(description="Plant defects in the simulated world.")
    parser.add_argument("--seeds", type=int, default=1000, help="most schedules of each")
    parser.add_argument("--judge", type=int, nargs=3, help="a defect, the first seed, their number")
    options = parser.parse_args()
    if options.judge is not None:
        number, first, count = options.judge
        print(_judge(number, range(first, first + count)))
        return
    caught = 0
    for defect in DEFECTS:
        seed, law = judge(defect, range(options.seeds))
        caught += bool(seed)
        print(
            f"{int(seed) + 1 if seed else '-':>5}  {law or 'not caught':42}  {defect.name}",
            flush=True,
        )
    print(f"{caught} of {len(DEFECTS)} caught")


if __name__ == "__main__":
    main()
