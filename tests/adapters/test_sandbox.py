"""Whatever a program does, it ends as a result, touches nothing, and leaves nothing behind."""

import asyncio
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from returns.result import Failure, Success

from nip_fn.code.programs import Limits, Program, RunResult
from nip_fn.errors import Problem
from nip_fn_adapters.sandbox import Sandbox, launch, limited, open_sandbox
from nip_fn_adapters.sandbox import box as box_module
from nip_fn_adapters.sandbox.box import _isolated, _parse

from .hostile import (
    AT_THE_END,
    ATTACKS,
    CALLER,
    COUNTING,
    DAEMON,
    ENDLESS,
    FILLING,
    FORGER,
    GREEDY,
    VALUES,
)

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="bubblewrap needs Linux"
)

QUICK = {"seconds": 0.5, "total_seconds": 20.0, "memory_mb": 256, "processes": 8, "files_mb": 4}
PATIENT = QUICK | {"seconds": 20.0}
LONGEST_CALL = 10.0
SECRET = "a-secret-that-must-not-be-seen"

Runs = tuple[RunResult, ...]


def run_on(
    box: Sandbox, code: str, *inputs: str, function: str | None = "f", **limits: float
) -> Runs:
    program = Program(code=code, function=function, inputs=inputs or ("[]",))
    runs = asyncio.run(box(program, Limits(**(QUICK | limits)))).unwrap()
    assert len(runs) == len(program.inputs)
    return runs


@pytest.fixture
def box() -> Sandbox:
    match open_sandbox():
        case Success(sandbox):
            return sandbox
        case Failure(problem):
            pytest.skip(str(problem))
    raise AssertionError


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Every orphan becomes a child of the tests' process, which must have none."""
    subreaper, libc = 36, ctypes.CDLL(None)
    libc.prctl(subreaper, 1, 0, 0, 0)
    before = set(children())
    yield
    wait_until(lambda: set(children()) <= before)
    libc.prctl(subreaper, 0, 0, 0, 0)
    assert not list(Path(tempfile.gettempdir()).glob(f"nip-fn-{os.getpid()}-*"))


def children(parent: int | None = None) -> Iterator[int]:
    """The processes that are children of one, by default of this one."""
    parent = parent or os.getpid()
    for folder in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            words = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(words[1]) == parent:
                if (
                    words[0] == "Z" and parent == os.getpid()
                ):  # an orphan that we adopted and that has ended
                    os.waitpid(int(folder.name), os.WNOHANG)
                yield int(folder.name)


def wait_until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("None", "None"),
        ("[True, 1, -2.5, 'a\\n', b'x']", "[True, 1, -2.5, 'a\\n', b'x']"),
        ("(1,), ()", "((1,), ())"),
        ("{'b': [1], 'a': {}}", "{'b': [1], 'a': {}}"),
        ("{3, 1, 2}, set(), frozenset({'b', 'a'})", "({1, 2, 3}, set(), {'a', 'b'})"),
        ("float('inf'), -float('inf'), 0.1 + 0.2", "(1e999, -1e999, 0.30000000000000004)"),
        ("7 ** 1000", str(7**1000)),
        ("Pair(1, 'x')", "(1, 'x')"),
        ("collections.OrderedDict(a=1)", "{'a': 1}"),
        ("collections.Counter('aab')", "{'a': 2, 'b': 1}"),
        ("collections.defaultdict(list, {1: [2]})", "{1: [2]}"),
        ("Liar(3), Text('t'), Many([1, 2]), Color.RED", "(3, 't', [1, 2], 1)"),
        ("(i for i in [1])", "<generator>"),
        ("[range(3), {}.keys(), f, Odd()]", "[<range>, <dict_keys>, <function>, <Odd>]"),
        ("'\\ud800'", "'\\ud800'"),
    ],
)  # fmt: skip
def test_values_come_back_as_literals(box: Sandbox, code: str, text: str) -> None:
    assert run_on(box, VALUES, repr([code]), **PATIENT) == (RunResult("returned", text),)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("[][0]", "IndexError: list index out of range"),
        ("10 ** 5000", "ValueError: Exceeds the limit (4300 digits)"),
        ("loop()", "RecursionError: "),
        ("exit()", "SystemExit"),
        ("f(1, 2)", "TypeError: f() takes 1 positional"),
        ("eval('(' * 300)", "SyntaxError: "),
    ],
)
def test_errors_come_back_in_words(box: Sandbox, code: str, text: str) -> None:
    (ran,) = run_on(box, VALUES, repr([code]), **PATIENT)
    assert ran.ending == "raised"
    assert ran.text.startswith(text)
    assert len(ran.text) <= 500


def test_each_input_meets_the_code_afresh(box: Sandbox) -> None:
    code = "seen = []\ndef f(x):\n    print('noise')\n    seen.append(x)\n    return seen"
    assert [ran.text for ran in run_on(box, code, "[1]", "[2]", **PATIENT)] == ["[1]", "[2]"]
    method = "class Solution:\n    def f(self, x, y):\n        return x + y"
    assert run_on(box, method, "[1, 2]", **PATIENT) == (RunResult("returned", "3"),)
    assert run_on(box, "g = 1", **PATIENT)[0].text.startswith("NameError: no function 'f'")
    assert [r.text[:11] for r in run_on(box, "def f(", "[]", "[]", **PATIENT)] == [
        "SyntaxError"
    ] * 2
    fixed = "def f(): return [hash('abc'), list({'a', 'b', 'c', 'd'}).index('a')]"
    assert len({run_on(box, fixed, **PATIENT) for _ in range(3)}) == 1


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("print(int(input()) + int(input()))", RunResult("returned", "7\n")),
        ("import sys; print(len(sys.stdin.read())); sys.exit(0)", RunResult("returned", "4\n")),
        ("print('a'); exit()", RunResult("returned", "a\n")),
        ("assert __name__ == '__main__'", RunResult("returned", "")),
        ("print('a'); raise SystemExit(3)", RunResult("raised", "SystemExit: 3")),
        ("import os; os.write(1, b'\\xff')", RunResult("returned", "�")),
        ("import atexit; atexit.register(print, 'last')", RunResult("returned", "last\n")),
        ("input(); input(); input()", RunResult("raised", "EOFError: EOF when reading a line")),
    ],
)  # fmt: skip
def test_scripts_read_and_print(box: Sandbox, code: str, expected: RunResult) -> None:
    assert run_on(box, code, "3\n4\n", function=None, **PATIENT) == (expected,)


def test_what_does_not_end_is_ended(box: Sandbox) -> None:
    kinds = ["plain", "deaf", "closed", "huge", "asleep", "forks"]
    *runs, bomb = run_on(box, ENDLESS, *(repr([kind]) for kind in (*kinds, "threads")), seconds=0.2)
    endings = {kind: ran.ending for kind, ran in zip(kinds, runs, strict=True)}
    assert endings == dict.fromkeys(kinds, "timeout")
    assert bomb.ending in ("timeout", "memory")
    runs = run_on(box, AT_THE_END, "thread", "atexit", "neither", function=None)
    assert [ran.ending for ran in runs] == ["timeout", "timeout", "returned"]
    at_import = run_on(box, "while True: pass\ndef f(): pass", "[]", "[]", total_seconds=0.7)
    assert [ran.ending for ran in at_import] == ["timeout"] * 2


WAYS_TO_END = {
    "list": "memory", "bytes": "memory", "doubling": "memory", "print": "output",
    "errors": "output", "value": "output", "shared": "output", "exit": "died", "killed": "died",
    "segfault": "died", "deep": "raised", "nested": "raised", "repr": "raised",
    "pickle": "raised", "message": "raised", "hostile": "raised",
}  # fmt: skip


def test_what_takes_too_much_is_stopped(box: Sandbox) -> None:
    inputs = [repr([kind]) for kind in (*WAYS_TO_END, "bottomless")]
    *runs, bottomless = run_on(box, GREEDY, *inputs, seconds=2.0)
    assert dict(zip(WAYS_TO_END, (ran.ending for ran in runs), strict=True)) == WAYS_TO_END
    assert all(len(ran.text) <= 500 for ran in runs)
    # Where memory ends within its own C code, Python sometimes raises a SystemError instead.
    lost = bottomless.ending == "raised" and bottomless.text.startswith("SystemError")
    assert lost or bottomless.ending in ("memory", "died", "timeout")
    script = run_on(box, "while True: print('x' * 9999)", "", function=None)
    assert script == (RunResult("output"),)


def test_processes_and_threads_are_counted(box: Sandbox) -> None:
    runs = [run_on(box, COUNTING, function=what, seconds=5.0) for what in ("forks", "threads")]
    assert runs == [(RunResult("returned", "7"),)] * 2


def test_a_daemon_does_not_outlive_its_run(box: Sandbox) -> None:
    for sandbox in (box, limited()):
        (ran,) = run_on(sandbox, DAEMON, **PATIENT)  # the rest is nothing_left_behind's to see
        assert ran.ending == "returned"


def test_a_run_cannot_speak_for_another(box: Sandbox) -> None:
    runs = run_on(box, FORGER, "[0]", "[1]", "[0]", seconds=2.0)
    assert runs[0] == runs[2] == RunResult("returned", "'true'")


@pytest.fixture
def exposed() -> Iterator[Path]:
    """A folder that every user may read and write, with a secret in it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        path.chmod(0o777)
        (path / "secret").write_text(SECRET)
        (path / "secret").chmod(0o666)
        yield path


class Heard:
    """Listeners of all kinds, which must hear nothing."""

    def __init__(self, folder: Path) -> None:
        self.signals: list[int] = []
        self.name = f"nip-fn-test-{os.getpid()}"
        self.path = str(folder / "socket")
        unix, inet = socket.AF_UNIX, socket.AF_INET
        stream, datagram = socket.SOCK_STREAM, socket.SOCK_DGRAM
        self.tcp = self._listen(inet, stream, ("127.0.0.1", 0))
        self.udp = self._listen(inet, datagram, ("127.0.0.1", 0))
        self._others = [
            self._listen(unix, stream, f"\0{self.name}"),
            self._listen(unix, datagram, f"\0{self.name}-d"),
            self._listen(unix, stream, self.path),
        ]
        os.chmod(self.path, 0o777)
        self._before = {n: signal.signal(n, self._note) for n in (signal.SIGURG, signal.SIGIO)}

    def _listen(self, family: int, kind: int, address: object) -> socket.socket:
        listener = socket.socket(family, kind)
        listener.bind(address)
        if kind == socket.SOCK_STREAM:
            listener.listen()
        listener.setblocking(False)
        return listener

    def _note(self, number: int, frame: object) -> None:
        self.signals.append(number)

    def close(self) -> list[str]:
        """Stop listening; what was heard."""
        heard = [f"signal {number}" for number in self.signals]
        listeners, self._others = (self.tcp, self.udp, *self._others), []
        for listener in listeners:
            if listener.fileno() < 0:
                continue
            with suppress(BlockingIOError), listener:
                stream = listener.type == socket.SOCK_STREAM
                heard.append(_accepted(listener) if stream else str(listener.recv(9)))
        for number, handler in self._before.items():
            signal.signal(number, handler)
        return heard


def _accepted(listener: socket.socket) -> str:
    connection, address = listener.accept()
    connection.close()
    return f"a connection from {address}"


@pytest.fixture
def heard(exposed: Path) -> Iterator[Heard]:
    listeners = Heard(exposed)
    yield listeners
    listeners.close()


def attacks(exposed: Path, heard: Heard) -> list[tuple[str, str | int]]:
    """Each of which returns only where it got through."""
    secret, me, root = str(exposed / "secret"), os.getpid(), Path(__file__).parents[2]
    return [
        *[("read", path) for path in (secret, "/etc/passwd", __file__, f"/proc/{me}/maps")],
        *[("list", str(path)) for path in (exposed, root, f"/proc/{me}/fd")],
        ("read", str(root / "pyproject.toml")),
        *[(how, secret) for how in ("write", "mode", "cut", "link", "remove")],
        ("create", str(exposed)),
        ("create", os.path.dirname(os.__file__)),
        ("environ", SECRET),
        ("own environ", SECRET),
        ("tcp", heard.tcp.getsockname()[1]),
        ("udp", heard.udp.getsockname()[1]),
        ("abstract", heard.name),
        ("file socket", heard.path),
        ("pair", f"{heard.name}-d"),
        *[(how, me) for how in ("signal", "signal queue", "signal owner", "ptrace")],
        *[(how, os.getppid()) for how in ("signal", "ptrace")],
        ("run", "/bin/true"),
        ("dumpable", 0),
        ("namespaces", 0x10000000),
        ("chroot", "/"),
        ("hidden memory", 0),
        ("user", 1),
        ("limits of", 0),
        ("limits of", me),
    ]


# What a program may do inside its namespaces, where nobody hears it.
INSIDE = ("udp", "dumpable", "namespaces", "hidden memory", "limits of")


def test_no_attack_gets_out(
    box: Sandbox, exposed: Path, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDBOX_SECRET", SECRET)
    tried = attacks(exposed, heard)
    runs = run_on(box, ATTACKS, *(repr(list(attack)) for attack in tried), seconds=3.0)
    through = {how for (how, _), ran in zip(tried, runs, strict=True) if ran.ending != "raised"}
    assert through <= set(INSIDE)
    assert SECRET not in str(runs)
    assert heard.close() == []
    assert (exposed / "secret").read_text() == SECRET
    assert (exposed / "secret").stat().st_mode & 0o777 == 0o666
    assert sorted(path.name for path in exposed.iterdir()) == ["secret", "socket"]


def test_the_same_attacks_get_out_where_nothing_isolates(exposed: Path, heard: Heard) -> None:
    tried = [
        (how, x)
        for how, x in attacks(exposed, heard)
        if how in ("tcp", "udp", "abstract", "file socket", "pair", "run", "write", "mode")
        or x == str(exposed / "secret")
    ]
    runs = run_on(limited(), ATTACKS, *(repr(list(a)) for a in tried), **PATIENT)
    through = {how for (how, _), ran in zip(tried, runs, strict=True) if ran.ending == "returned"}
    assert through >= {"tcp", "udp", "abstract", "file socket", "pair", "run", "read", "write"}
    assert len(heard.close()) >= 5


def test_files_are_bounded_and_gone_at_the_next_input(box: Sandbox) -> None:
    runs = run_on(box, FILLING, "['.']", "['.']", "['/dev/shm']", "['.']", seconds=2.0)
    assert runs == (RunResult("returned", "([], True, True)"),) * 4


def test_many_calls_at_once(box: Sandbox) -> None:
    async def all_of_them() -> list[object]:
        code, limits = "def f(x):\n    return x * x", Limits(**(PATIENT | {"total_seconds": 60.0}))
        return await asyncio.gather(
            *(box(Program(code, "f", (f"[{n}]", "[0]")), limits) for n in range(16))
        )

    expected = [
        Success((RunResult("returned", str(n * n)), RunResult("returned", "0"))) for n in range(16)
    ]
    assert asyncio.run(all_of_them()) == expected


def test_a_cancelled_call_ends_its_program(box: Sandbox) -> None:
    async def cancel(sandbox: Sandbox) -> None:
        program = Program("import time\ndef f():\n    time.sleep(99)", "f", ("[]",))
        call = asyncio.create_task(sandbox(program, Limits(seconds=90.0)))
        while not list(children()):
            await asyncio.sleep(0.01)
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call

    for sandbox in (box, limited()):
        asyncio.run(cancel(sandbox))  # the rest is nothing_left_behind's to see


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_program_dies_with_its_caller(box: Sandbox, how: signal.Signals) -> None:
    command = [sys.executable, "-c", CALLER]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=quiet) as caller:
        assert caller.stdout
        assert caller.stdout.readline() == b"ready\n"
        wait_until(lambda: bool(list(children(caller.pid))))
        caller.send_signal(how)
        caller.wait(LONGEST_CALL)  # the rest is nothing_left_behind's to see


def test_a_sandbox_that_breaks_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program("def f(): pass", "f", ("[]",))
    for command, line in (
        (("/bin/sh", "-c", "echo no room >&2"), "does not work: no room"),
        (("/bin/true",), "does not work: it ended without a word"),
        (("/no/such/python",), "does not work: "),
    ):
        monkeypatch.setattr(launch, "START", command)
        assert line in str(asyncio.run(limited()(program, Limits())).failure())


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Problem]]:
    """Opens a sandbox under the conditions that a test sets, which nobody else shall remember."""
    _isolated.cache_clear()

    def refused() -> Problem:
        assert open_sandbox(unsafe=True).unwrap().isolated is False
        return open_sandbox().failure()

    yield refused
    _isolated.cache_clear()


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("no bwrap", "is not installed; install bubblewrap (apt install bubblewrap, or dnf "),
        ("no namespaces", "does not work here: "),
        ("macOS", "bubblewrap needs Linux; use Linux"),
    ],
)
def test_without_bubblewrap_it_is_refused_in_a_line_that_helps(
    where: str, words: str, refusal: Callable[[], Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    if where == "no bwrap":
        monkeypatch.setenv("PATH", "/nowhere")
    if where == "no namespaces":
        if shutil.which("bwrap") is None:
            pytest.skip("bubblewrap is not installed (apt install bubblewrap)")
        monkeypatch.setattr(launch, "START", ("/bin/false",))
    if where == "macOS":
        monkeypatch.setattr(box_module.sys, "platform", "darwin")
    told = str(refusal())
    assert words in told
    assert "--unsafe" in told
    assert "\n" not in told


def test_a_sandbox_that_only_limits_says_so() -> None:
    assert "your rights" in limited().name


@pytest.mark.parametrize(
    ("output", "runs"),
    [
        (b"returned 2\n42raised 0\n", [RunResult("returned", "42"), RunResult("raised")]),
        (b"returned 2\n42returned 9\n1", [RunResult("returned", "42")]),
        (b"passed 1\n1", []),
        (b"returned -1\n1", []),
        (b"returned 99999999999999999999\n1", []),
        (b"\xff\xfe", []),
    ],
)
def test_what_the_harness_says_is_read_with_care(output: bytes, runs: list[RunResult]) -> None:
    assert _parse(output) == runs


@pytest.mark.parametrize("give_up", [False, True])
def test_after_a_test_out_of_time_the_later_ones_are_run_or_given_up(
    box: Sandbox, give_up: bool
) -> None:
    code = "def f(n):\n    while n == 1:\n        pass\n    return n"
    runs = run_on(box, code, "[0]", "[1]", "[2]", "[1]", "[3]", give_up=give_up)
    later = (
        [RunResult("timeout")] * 3
        if give_up
        else [RunResult("returned", "2"), RunResult("timeout"), runs[4]]
    )
    assert list(runs) == [RunResult("returned", "0"), RunResult("timeout"), *later]
    assert (runs[4] == RunResult("returned", "3")) is not give_up
