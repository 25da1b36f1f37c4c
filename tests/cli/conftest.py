"""Commands for tests: in this process, which is quick, or in a process of their own."""

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nip_fn_adapters.data.opening import CACHE_VARIABLE
from nip_fn_cli.main import main

from ..adapters.forked import forked_trainings
from ..registries import restored_registries

# Without it, code that nobody vouches for is not run at all; `make test` passes all the same.
needs_bubblewrap = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="bubblewrap is not installed (apt install bubblewrap)"
)

COMMAND = Path(sys.executable).parent / "nip-fn"

# A run of some hundreds of replies that trains twice, without a model.
SMALL = (
    "--dataset", "builtin:tea",
    "--provider", "dummy", "--seed", "5", "--iterations", "2",
    "--set", "rl.rollouts_per_iteration=12", "--set", "malt.num_responses_per_timestep=2",
    "--set", "nip_protocol.max_message_rounds=5", "--set", "dataset_options.max_test_size=6",
)  # fmt: skip

# Of the model that the dummy provider stands for on the lady's tea.
PRICES = """
[models."builtin:tea"]
prompt = 1.0
completion = 100.0

[fine_tuned."builtin:tea"]
prompt = 2.0
completion = 200.0
training = 5.0
"""

Finished = subprocess.CompletedProcess[str]
RunCli = Callable[..., Finished]


def plain_environment(folder: Path) -> dict[str, str]:
    """The variables of a command: no terminal, nothing of the developer's, `folder` as its home.

    Builtin data sets are laid out once for all tests of a worker: it takes half a second.
    """
    plain = {"PATH": os.environ["PATH"], "HOME": str(folder), "LANG": "C.UTF-8"}
    return {**plain, CACHE_VARIABLE: os.environ[CACHE_VARIABLE]}


def call_cli(
    folder: Path,
    *arguments: object,
    stream: Callable[[io.BytesIO, str], io.TextIOWrapper] = io.TextIOWrapper,
    **variables: str,
) -> Finished:
    """Run `nip-fn ARGUMENTS` in this process; `folder` is its working directory and its home.

    Tests ask for the fixture `run_cli`; this function is for fixtures of a wider scope.

    Args:
        folder: An existing folder.
        *arguments: The words of the command line after `nip-fn`; each is turned into a string.
        stream: Makes standard output and standard error: (bytes written, encoding) -> stream.
        **variables: Environment variables beside those of `plain_environment`.

    Returns:
        The exit code and what was written to standard output and standard error, as of a process.
        An error that would end a process with a traceback is raised, so that the test shows it.
    """
    stdout, stderr = (stream(io.BytesIO(), "utf-8") for _ in range(2))
    environment = {**plain_environment(folder), **variables}
    code: object = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in os.environ.keys() - environment.keys():
            patch.delenv(name)
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.setattr(sys, "stdin", io.StringIO())
        patch.setattr(sys, "stdout", stdout)
        patch.setattr(sys, "stderr", stderr)
        try:
            main(list(map(str, arguments)))
        except SystemExit as end:
            code = end.code
    texts = []
    for stream in (stdout, stderr):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
    return Finished(list(map(str, arguments)), code if isinstance(code, int) else 0, *texts)


@pytest.fixture
def run_cli(tmp_path: Path) -> RunCli:
    """`run_cli("train", "--seed", 5, OPENAI_API_KEY="k")` runs the command in this process.

    The same as `nip_fn` without the second that a new process costs: working directory and home
    are the test's `tmp_path`, the environment is plain, the return value has `returncode`,
    `stdout` and `stderr`.  Take `nip_fn` or `start` where signals, terminals, the exit of the
    interpreter, its string hashing or what it has imported are the subject of the test.
    """

    def run(*arguments: object, **variables: str) -> Finished:
        return call_cli(tmp_path, *arguments, **variables)

    return run


@pytest.fixture
def forked() -> Iterator[None]:
    """Commands of `run_cli` train in children that are forked from one that has torch loaded."""
    with forked_trainings():
        yield


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The plain environment of a test's commands."""
    return plain_environment(tmp_path)


@pytest.fixture
def nip_fn(tmp_path: Path, environment: dict[str, str]) -> RunCli:
    """`nip_fn("train", ...)` runs the command in a process of its own and waits for it."""

    def run(*arguments: object, **variables: str) -> Finished:
        return subprocess.run(
            [COMMAND, *map(str, arguments)],
            cwd=tmp_path,
            env={**environment, **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    return run


@pytest.fixture
def start(tmp_path: Path, environment: dict[str, str]) -> Callable[..., "subprocess.Popen[str]"]:
    """`start("train", ...)` starts the command in the same folder and returns at once."""

    def run(*arguments: object) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [COMMAND, *map(str, arguments)],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return run


@pytest.fixture(scope="module", autouse=True)
def _registries_of_a_module() -> Iterator[None]:
    """What the commands of a module's fixtures register is gone after the module."""
    with restored_registries():
        yield


@pytest.fixture(autouse=True)
def _registries() -> Iterator[None]:
    """What a command registers in this process is gone after its test."""
    with restored_registries():
        yield
