"""The files of a training job: its description, its progress and its result.

RUN/jobs/NAME/job.msgpack    the job, written before the training begins
RUN/jobs/NAME/log.txt        the output of the training
RUN/jobs/NAME/progress.json  its progress
RUN/jobs/NAME/failure.txt    the reason why it ended too early, in one line
RUN/jobs/NAME/result.json    its result, written last
RUN/adapters/ADAPTER/        the adapter, a LoRA or a whole model: safetensors and configuration
"""

import re
import signal
from hashlib import blake2b
from pathlib import Path

import msgspec

from nip_fn.run.ports import Tuned
from nip_fn.training.canary import Score
from nip_fn.training.tuning import Job
from nip_fn_adapters.durable import make_folder, replace_file
from nip_fn_adapters.processes.endings import exit_reason, signal_reason


class JobResult(msgspec.Struct, frozen=True):
    """The result of a training, with the hash of the job that it is of."""

    job_hash: str
    adapter: str | None  # its name; None: the training diverged
    report: tuple[tuple[str, float], ...]  # finite numbers only
    scores: tuple[Score, ...] = ()  # of the job's probes
    problem: str = ""  # why there is no adapter


class JobFiles(msgspec.Struct, frozen=True):
    """The paths of a job's files."""

    run: Path
    name: str  # of the job's folder; the adapter is named after the job itself

    @property
    def folder(self) -> Path:
        """The job's own folder."""
        return self.run / "jobs" / self.name

    @property
    def adapters(self) -> Path:
        """The folder of all adapters of the run."""
        return self.run / "adapters"

    @property
    def unfinished(self) -> Path:
        """The folder that an adapter is written to before it gets its name."""
        return self.folder / "unfinished"

    @property
    def log(self) -> Path:
        """The output of the training."""
        return self.folder / "log.txt"

    @property
    def progress(self) -> Path:
        """The file of the training's progress."""
        return self.folder / "progress.json"

    @property
    def failure(self) -> Path:
        """The reason why the training ended too early, if it could write one."""
        return self.folder / "failure.txt"


def job_hash(job: Job) -> str:
    """A hash of all that defines the training (16 hexadecimal digits)."""
    return blake2b(msgspec.msgpack.encode(job), digest_size=8).hexdigest()


def write_job(files: JobFiles, job: Job) -> None:
    """Write the job down for the child."""
    make_folder(files.folder, levels=2)
    make_folder(files.adapters)
    replace_file(files.folder / "job.msgpack", msgspec.msgpack.encode(job))


def read_job(files: JobFiles) -> Job:
    """The job that `write_job` wrote."""
    return msgspec.msgpack.decode((files.folder / "job.msgpack").read_bytes(), type=Job)


def write_result(files: JobFiles, result: JobResult) -> None:
    """Write the result down; from here on the job is not done again."""
    replace_file(files.folder / "result.json", msgspec.json.encode(result))


def failure_reason(files: JobFiles, code: int) -> str:
    """The reason why a training ended with that exit code, in one line."""
    printed = files.log.read_text("utf-8", errors="replace").splitlines()
    line = next((line.strip() for line in reversed(printed) if re.search(r"\w", line)), "")
    killed = re.search(r"\bSIG[A-Z]+\b", line)  # a launcher says so of its worker
    if killed and killed[0] in signal.Signals.__members__:
        return signal_reason(signal.Signals[killed[0]])
    if code > 0 and files.failure.exists():
        return files.failure.read_text("utf-8")
    return exit_reason(code, "\n".join(printed))


def finished(files: JobFiles, job: Job) -> Tuned | None:
    """The result of an earlier try of this very job; None if no try has ended."""
    try:
        data = (files.folder / "result.json").read_bytes()
        result = msgspec.json.decode(data, type=JobResult)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    if result.job_hash != job_hash(job):
        return None
    # A result is of no use without its adapter, which may have been deleted since.
    if result.adapter is not None and not (files.adapters / result.adapter).is_dir():
        return None
    return Tuned(result.adapter, result.report, result.scores, result.problem)
