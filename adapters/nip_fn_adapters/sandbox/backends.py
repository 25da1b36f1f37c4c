"""What can confine a program here: ways to start the harness, strongest first."""

import itertools
import os
import platform
import shutil
import sys
import sysconfig
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple


class Level(IntEnum):
    """How well a program is confined; each level holds what the lower ones hold."""

    LIMITS = 0
    """Time, memory, output, processes; it can read, write and send what you can."""

    FILTER = 1
    """No network, no other processes, no signals to them; it can read and write your files."""

    LANDLOCK = 2
    """It reads nothing but Python's own files, and writes none at all."""

    NAMESPACES = 3
    """It sees no process, user, network or file but its own: an empty /tmp, and Python."""


class Backend(NamedTuple):
    """A way to start the harness."""

    name: str
    level: Level
    advice: str  # what would make it work


BACKENDS = (
    Backend("bubblewrap", Level.NAMESPACES, "apt install bubblewrap"),
    Backend("namespaces", Level.NAMESPACES, "allow user namespaces"),
    Backend("landlock", Level.LANDLOCK, "Linux 5.13 or later with Landlock"),
    Backend("filter", Level.FILTER, "Linux on x86_64 or aarch64"),
    Backend("limits", Level.LIMITS, "a POSIX system"),
)

PYTHON = str(Path(sys.executable).resolve())
DEVICES = ("null", "zero", "full", "random", "urandom")
SPARE_USERS = (1_900_000_000, 60_000)  # the first of 10^7, or of 5000 where ids are few

# Modules of the harness in the order in which they are needed.
MODULES = ("literal", "child", "kernel", "seccomp", "walls", "harness")
BOOT = """\
import marshal, sys, types
for name, code in marshal.load(sys.stdin.buffer):
    module = sys.modules[name] = types.ModuleType(name)
    exec(code, module.__dict__)
module.main(marshal.load(sys.stdin.buffer))
"""
# No site-packages, nothing written, no folder of the user on the path.
START = (PYTHON, "-s", "-S", "-B", "-P", "-c", BOOT)

ENVIRONMENT = {
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "MALLOC_ARENA_MAX": "1",  # each arena of a thread takes 64 MB of address space
    "PATH": "/usr/bin:/bin",
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
}

DIE_FIRST = 'echo 1000 2>/dev/null >/proc/self/oom_score_adj; exec "$@"'

_counter = itertools.count()


def command(backend: Backend, files_mb: int) -> tuple[str, ...]:
    """The command line that starts Python behind the backend's walls."""
    if backend.name != "bubblewrap":
        return START
    whole = shutil.which("bwrap") or "bwrap"
    spaces = ["pid", "net", "ipc", "uts", *["user"] * (not _can_be_another())]
    arguments = [f"--unshare-{space}" for space in spaces]
    arguments += ["--unshare-cgroup-try", "--die-with-parent", "--new-session", "--as-pid-1"]
    if _can_be_another():
        for capability in ("SETUID", "SETGID", "SETPCAP"):
            arguments += ["--cap-add", f"CAP_{capability}"]
    for folder in _folders():
        arguments += ["--perms", "0755", "--dir", folder]
    for path in readable():
        arguments += ["--ro-bind", path, path]
    for path, target in links():
        arguments += ["--symlink", target, path]
    for device in DEVICES:
        arguments += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    arguments += ["--perms", "1777", "--size", str(files_mb << 20), "--tmpfs", "/tmp"]
    arguments += ["--symlink", "/tmp", "/dev/shm", "--remount-ro", "/"]
    return ("/bin/sh", "-c", DIE_FIRST, "sh", whole, *arguments, "--chdir", "/tmp", *START)


def job(backend: Backend, scratch: str, spare: int) -> dict[str, Any]:
    """What the harness must know of its walls."""
    return {
        "walls": backend.name,
        "readable": readable(),
        "links": links(),
        "scratch": scratch,
        "spare": spare,
        "read_all": _hidden_from_others(),
        "own_count": backend.level == Level.NAMESPACES and _kernel() >= (5, 14),
    }


def spare_user() -> int:
    """A user id that nobody else has, as far as one can tell; 0: we cannot be another user."""
    if not _can_be_another():
        return 0
    number = os.getpid() % 10_000 * 1000 + next(_counter) % 1000
    return SPARE_USERS[0] + number if _mapped(SPARE_USERS[0]) else SPARE_USERS[1] + number % 5000


@cache
def _can_be_another() -> bool:
    """Whether we are root, with the right to change user, where there are other users."""
    if os.getuid() != 0:
        return False
    if not sys.platform.startswith("linux"):
        return True
    words = Path("/proc/self/status").read_text().partition("CapEff:")[2].split()
    changes_user = int(words[0], 16) >> 6 & 3 == 3  # CAP_SETGID and CAP_SETUID
    return changes_user and _mapped(SPARE_USERS[1])


def _mapped(user: int) -> bool:
    """Whether this container has such a user id."""
    try:
        lines = Path("/proc/self/uid_map").read_text().splitlines()
    except OSError:
        return True
    spans = [[int(word) for word in line.split()] for line in lines]
    return any(first <= user < first + size for first, _, size in spans)


def _kernel() -> tuple[int, ...]:
    """The first two numbers of its version."""
    numbers = platform.release().split("-")[0].split(".")[:2]
    return tuple(int(number) for number in numbers if number.isdigit())


@cache
def readable() -> tuple[str, ...]:
    """What Python needs to run: real paths, none inside another."""
    paths = sysconfig.get_paths(vars={"base": sys.base_prefix, "platbase": sys.base_prefix})
    wanted = [PYTHON, paths["stdlib"], paths["platstdlib"]]
    if sys.base_prefix != "/usr":
        wanted.append(f"{sys.base_prefix}/lib")
    wanted += ["/usr/lib", "/usr/lib64", "/lib", "/lib64", "/nix/store"]
    wanted += ["/etc/ld.so.cache", "/usr/share/zoneinfo"]
    real = sorted({os.path.realpath(path) for path in wanted if os.path.exists(path)})
    return tuple(path for path in real if not any(_inside(path, other) for other in real))


def _folders() -> list[str]:
    """What must be there for the readable paths, the links and the devices to lie in."""
    paths = [*readable(), *(path for path, _ in links()), "/dev/null"]
    return sorted({str(folder) for path in paths for folder in Path(path).parents} - {"/"})


def _inside(path: str, other: str) -> bool:
    return path.startswith(f"{other}/")


@cache
def links() -> tuple[tuple[str, str], ...]:
    """The symbolic links among the usual folders of libraries: (path, target)."""
    usual = ("/lib", "/lib64", "/usr/lib64")
    return tuple((path, os.readlink(path)) for path in usual if os.path.islink(path))


@cache
def _hidden_from_others() -> bool:
    """Whether Python lies where only its owner may look."""
    return any(
        not folder.stat().st_mode & 0o001 for path in readable() for folder in Path(path).parents
    )


def modules() -> list[tuple[str, Any]]:
    """The harness: names of modules and their code, in order."""
    package = __name__.rpartition(".")[0]
    empty = (package, compile("", f"<{package}>", "exec"))
    code = [(f"{package}.{name}", compile(_source(name), f"<{name}>", "exec")) for name in MODULES]
    return [empty, *code]


def _source(name: str) -> str:
    return (Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8")
