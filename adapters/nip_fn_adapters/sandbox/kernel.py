"""What Python's library does not reach in Linux: namespaces, capabilities, Landlock, filters.

Runs inside the sandbox: the standard library only.  Every function raises OSError where the
kernel refuses.
"""

import ctypes
import os
from collections.abc import Iterable

CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUTS = 0x20000, 0x08000000, 0x04000000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 0x1000, 0x4000, 0x40000
MNT_DETACH = 2
READ_ONLY, NO_SETUID, NO_DEVICES = 1, 2, 4  # MOUNT_ATTR_*

READ_FILE, WRITE_FILE, READ_DIR = 1 << 2, 1 << 1, 1 << 3  # of Landlock

_MOUNT_SETATTR, _LANDLOCK = 442, 444  # the same on all machines; 445 and 446 follow
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_KEEPCAPS = 1, 4, 8
_PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 22, 24, 36, 38
_AT_RECURSIVE = 0x8000
_AT_FDCWD = -100

_libc = ctypes.CDLL(None, use_errno=True)


def _check(returned: int, what: str) -> int:
    if returned < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return returned


def _call(what: str, number: int, *arguments: object) -> int:
    wide = [ctypes.c_long(item) if isinstance(item, int) else item for item in arguments]
    return _check(int(_libc.syscall(ctypes.c_long(number), *wide)), what)


def _prctl(what: str, option: int, *arguments: object) -> None:
    wide = [ctypes.c_ulong(item) if isinstance(item, int) else item for item in arguments]
    zeros = [ctypes.c_ulong(0)] * (4 - len(wide))
    _check(int(_libc.prctl(option, *wide, *zeros)), what)


def die_with_parent() -> None:
    """Be killed when the thread that started this process ends."""
    _prctl("parent-death signal", _PR_SET_PDEATHSIG, 9)


def adopt_orphans() -> None:
    """Become the parent of descendants whose parents die."""
    _prctl("subreaper", _PR_SET_SUBREAPER, 1)


def hide() -> None:
    """Let no process of the same user look into this one, or its descendants."""
    _prctl("dumpable", _PR_SET_DUMPABLE, 0)


def no_new_privileges() -> None:
    """Let no program that is executed from here on gain privileges."""
    _prctl("no_new_privs", _PR_SET_NO_NEW_PRIVS, 1)


def keep_capabilities() -> None:
    """Let them survive a change of user."""
    _prctl("keep capabilities", _PR_SET_KEEPCAPS, 1)


def drop_bounding() -> None:
    """Let no executed program have any capability."""
    for capability in range(64):
        try:
            _prctl("bounding set", _PR_CAPBSET_DROP, capability)
        except OSError:  # the kernel knows no higher one
            return


def set_capabilities(*kept: int) -> None:
    """Give up all capabilities but these; 2 is to read all files."""
    bits = sum(1 << capability for capability in kept)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)(bits, bits, 0, 0, 0, 0)
    _check(int(_libc.capset(header, data)), "capabilities")


def install_filter(program: bytes) -> None:
    """Run a seccomp filter on all system calls from here on."""
    code = ctypes.create_string_buffer(program, len(program))

    class Filter(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))

    packed = Filter(len(program) // 8, ctypes.addressof(code))
    _prctl("seccomp filter", _PR_SET_SECCOMP, 2, ctypes.byref(packed))


def unshare(flags: int) -> None:
    """Move into new namespaces."""
    _check(int(_libc.unshare(flags)), "new namespaces")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2)."""
    texts = [text.encode() or None for text in (source, target, kind)]
    done = _libc.mount(*texts, ctypes.c_ulong(flags), data.encode() or None)
    _check(int(done), f"mounting {target}")


def restrict_mount(target: str, attributes: int, recursive: bool = True) -> None:
    """Make a mount, and what is mounted below it, read-only or the like."""
    wanted = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    path = ctypes.c_char_p(target.encode())
    what = f"restricting {target}"
    _call(what, _MOUNT_SETATTR, _AT_FDCWD, path, flags, wanted, ctypes.sizeof(wanted))


def pivot_root(root: str) -> None:
    """Make a mount the root, and let go of the old one."""
    os.chdir(root)
    _check(int(_libc.pivot_root(b".", b".")), "pivot_root")
    _check(int(_libc.umount2(b".", MNT_DETACH)), "unmounting the old root")
    os.chdir("/")


def landlock_version() -> int:
    """The kernel's Landlock interface; 0: none."""
    try:
        return _call("Landlock", _LANDLOCK, None, 0, 1)
    except OSError:
        return 0


def landlock_rules(readable: Iterable[str], writable: Iterable[str]) -> int:
    """A descriptor of rules that allow only to read and write what lies at these paths."""
    version = landlock_version()
    files = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)) - 1
    handled = (ctypes.c_uint64 * 3)(files, 3, 3)  # files; TCP; abstract sockets and signals
    size = 8 if version < 4 else 16 if version < 6 else 24
    rules = _call("Landlock", _LANDLOCK, handled, size, 0)
    for paths, access in ((readable, READ_FILE | READ_DIR), (writable, READ_FILE | WRITE_FILE)):
        for path in paths:
            _allow(rules, path, access)
    return rules


def _allow(rules: int, path: str, access: int) -> None:
    class Beneath(ctypes.Structure):
        _pack_ = 1
        _fields_ = (("access", ctypes.c_uint64), ("parent", ctypes.c_int32))

    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not os.path.isdir(path):
            access &= ~READ_DIR
        rule = Beneath(access, descriptor)
        _call("Landlock rule", _LANDLOCK + 1, rules, 1, ctypes.byref(rule), 0)
    finally:
        os.close(descriptor)


def landlock_restrict(rules: int) -> None:
    """Obey these rules from here on."""
    _call("Landlock", _LANDLOCK + 2, rules, 0)
