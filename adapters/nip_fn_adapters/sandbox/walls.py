"""Walls that a process builds around itself, by way of the kernel alone.

Runs inside the sandbox: the standard library and its neighbours only.
"""

import os
import signal
from collections.abc import Sequence
from contextlib import suppress

from nip_fn_adapters.sandbox import kernel

DEVICES = ("null", "zero", "full", "random", "urandom")
CAP_READ_ALL = 2  # CAP_DAC_READ_SEARCH
MOST_FILES = 4096


def enter_namespaces(
    readable: Sequence[str], links: Sequence[tuple[str, str]], files_mb: int, own_users: bool
) -> None:
    """Go on as the first process of new namespaces, where only these paths are to be seen.

    With links of (path, target) among them; `own_users` adds a namespace of users.

    The process that called waits for the end, and ends alike.
    """
    user, group = os.getuid(), os.getgid()
    spaces = kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET
    spaces |= kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    kernel.unshare(spaces | kernel.CLONE_NEWUSER if own_users else spaces)
    if own_users:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")
    _go_on_in_a_child()
    _change_root(readable, links, files_mb)


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _go_on_in_a_child() -> None:
    child = os.fork()
    if child == 0:
        kernel.die_with_parent()
        return
    os.closerange(0, 3)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _, status = os.waitpid(child, 0)
    os._exit(abs(os.waitstatus_to_exitcode(status)))


def _change_root(readable: Sequence[str], links: Sequence[tuple[str, str]], files_mb: int) -> None:
    """See nothing but the readable paths, five devices, and an empty /tmp of some megabytes."""
    root, locked = "/tmp", kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    _mount_sources(root, readable)
    for path, target in links:
        os.makedirs(os.path.dirname(root + path), exist_ok=True)
        os.symlink(target, root + path)
    os.makedirs(f"{root}/tmp", exist_ok=True)
    room = f"size={files_mb}m,nr_inodes={MOST_FILES},mode=1777"
    kernel.mount("tmpfs", f"{root}/tmp", "tmpfs", locked, room)
    os.symlink("/tmp", f"{root}/dev/shm")
    kernel.pivot_root(root)
    kernel.restrict_mount("/", kernel.READ_ONLY | kernel.NO_SETUID, recursive=False)


def _mount_sources(root: str, readable: Sequence[str]) -> None:
    """A new, small file system at `root`, with the sources bound into it.

    They are opened first: the new file system may cover some of them.
    """
    devices = [f"/dev/{name}" for name in DEVICES]
    opened = {path: os.open(path, os.O_PATH) for path in (*readable, *devices)}
    folders = {path: os.path.isdir(path) for path in opened}
    data = f"size=1m,nr_inodes={MOST_FILES},mode=755"
    kernel.mount("tmpfs", root, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, data)
    for path, descriptor in opened.items():
        target = root + path
        os.makedirs(target if folders[path] else os.path.dirname(target), exist_ok=True)
        if not folders[path]:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o444))
        source = f"/proc/self/fd/{descriptor}"
        kernel.mount(source, target, flags=kernel.MS_BIND | kernel.MS_REC)
        os.close(descriptor)
        device = 0 if path in devices else kernel.NO_DEVICES
        kernel.restrict_mount(target, kernel.READ_ONLY | kernel.NO_SETUID | device)


def give_up_privileges(spare: int, read_all: bool) -> None:
    """Have no capability, for good; `read_all` keeps that of reading all files.

    Root becomes the user `spare`, unless that is 0: the kernel does not hold root to a number of
    processes.
    """
    with suppress(OSError):  # where we have no right to, there is nothing to drop
        kernel.drop_bounding()
    if spare:
        if read_all:
            kernel.keep_capabilities()
        os.setgroups([])
        os.setresgid(spare, spare, spare)
        os.setresuid(spare, spare, spare)
    kernel.no_new_privileges()
    kernel.set_capabilities(*[CAP_READ_ALL] * (read_all and spare != 0))
    kernel.hide()


def die_first() -> None:
    """Be the first to be killed where the whole machine runs out of memory."""
    with suppress(OSError):
        _write("/proc/self/oom_score_adj", "1000")
