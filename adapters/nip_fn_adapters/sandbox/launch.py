"""The command lines that start the harness: inside bubblewrap, or with resource limits alone."""

import marshal
import os
import platform
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path
from typing import NamedTuple

PYTHON = str(Path(sys.executable).resolve())
DEVICES = ("null", "zero", "full", "random", "urandom")

# User ids that no distribution gives to anybody.
FIRST_SPARE_USER = 1_900_000_000
SPARE_USERS = 10_000_000

# Modules of the harness, each after those that it imports.
MODULES = ("literal", "child", "harness")
# They come through the standard input: so it does not matter where the package is installed, and
# no folder of the user has to be bound into the sandbox.
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
    # The kernel limits address space, not memory in use (see `child.limit`).
    "MALLOC_ARENA_MAX": "1",  # each arena of a thread takes 64 MB of address space
    "PATH": "/usr/bin:/bin",
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
}

# A program is the first to be killed when the whole machine runs out of memory.
DIE_FIRST = 'echo 1000 2>/dev/null >/proc/self/oom_score_adj; exec "$@"'


class Isolation(NamedTuple):
    """A way to start the harness."""

    isolated: bool  # by bubblewrap; otherwise there are resource limits alone
    changes_user: bool = False  # to one that nobody else is: for root only
    own_users: bool = False  # a user namespace of its own


LIMITS_ONLY = Isolation(isolated=False)


def ways_to_isolate() -> tuple[Isolation, ...]:
    """The ways to use bubblewrap that may work for this user, the best first.

    Root becomes another user, as the kernel does not hold root to a number of processes.  A root
    without the right to do so (in a container) needs a user namespace, as every other user does.
    """
    unprivileged = Isolation(isolated=True, own_users=True)
    privileged = Isolation(isolated=True, changes_user=True)
    return (privileged, unprivileged) if os.getuid() == 0 else (unprivileged,)


def harness_command(isolation: Isolation, files_mb: int) -> tuple[str, ...]:
    """The command line that starts the harness; inside, at most `files_mb` may be written."""
    whole = ["/bin/sh", "-c", DIE_FIRST, "sh"]
    if isolation.isolated:
        whole += _bubblewrap(isolation, files_mb)
    return (*whole, *START)


def _bubblewrap(isolation: Isolation, files_mb: int) -> list[str]:
    """The words of bubblewrap: a root of Python's own files, and an empty /tmp to write to."""
    # --as-pid-1: the first process of a namespace can kill everything else in it at once.
    words = ["bwrap", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    words += ["--unshare-cgroup-try", "--die-with-parent", "--new-session", "--as-pid-1"]
    if isolation.own_users:
        words += ["--unshare-user", *_no_more_users()]
    if isolation.changes_user:
        words += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    readable, links = _readable(), _links()
    # Made by name: a folder that bubblewrap makes on its way is open to its owner alone.
    inside = [*readable, *(path for path, _ in links), "/dev/null"]
    for folder in sorted({str(folder) for path in inside for folder in Path(path).parents} - {"/"}):
        words += ["--perms", "0755", "--dir", folder]
    for path in readable:
        words += ["--ro-bind", path, path]
    for path, target in links:
        words += ["--symlink", target, path]
    for device in DEVICES:
        words += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    words += ["--perms", "1777", "--size", str(files_mb << 20), "--tmpfs", "/tmp"]
    return [*words, "--symlink", "/tmp", "/dev/shm", "--remount-ro", "/", "--chdir", "/tmp"]


@cache
def _no_more_users() -> tuple[str, ...]:
    """The option that bars further user namespaces, where bubblewrap knows it (since 0.8)."""
    printed = subprocess.run(["bwrap", "--help"], capture_output=True, text=True, check=False)
    return ("--disable-userns",) if "--disable-userns" in printed.stdout else ()


@cache
def _readable() -> tuple[str, ...]:
    """The real paths of what Python needs to run, none inside another."""
    paths = sysconfig.get_paths(vars={"base": sys.base_prefix, "platbase": sys.base_prefix})
    paths_read = [PYTHON, paths["stdlib"], paths["platstdlib"]]
    if sys.base_prefix != "/usr":
        paths_read.append(f"{sys.base_prefix}/lib")
    paths_read += ["/usr/lib", "/usr/lib64", "/lib", "/lib64", "/nix/store"]
    paths_read += ["/etc/ld.so.cache", "/usr/share/zoneinfo"]
    real = sorted({os.path.realpath(path) for path in paths_read if os.path.exists(path)})
    return tuple(path for path in real if not any(path.startswith(f"{top}/") for top in real))


@cache
def _links() -> tuple[tuple[str, str], ...]:
    """The symbolic links among the usual folders of libraries: (path, target)."""
    usual = ("/lib", "/lib64", "/usr/lib64")
    return tuple((path, os.readlink(path)) for path in usual if os.path.islink(path))


@cache
def harness() -> bytes:
    """The names and the code of the harness's modules, in order, packed."""
    package = __name__.rpartition(".")[0]
    code = [(package, compile("", f"<{package}>", "exec"))]
    for name in MODULES:
        text = (Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8")
        code.append((f"{package}.{name}", compile(text, f"<{name}>", "exec")))
    return marshal.dumps(code)


def others_counted(isolation: Isolation) -> int:
    """An upper bound of the processes and threads that the kernel counts as a program's own."""
    version = tuple(int(part) for part in platform.release().split(".")[:2] if part.isdigit())
    # Since 5.14 Linux counts the processes of a user by user namespace.
    if isolation.changes_user or (isolation.own_users and version >= (5, 14)):
        return 1  # the harness
    try:  # no user has more than the whole machine
        return int(Path("/proc/loadavg").read_text().split()[3].split("/")[1])
    except OSError:
        return 4096
