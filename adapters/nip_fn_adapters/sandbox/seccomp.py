"""The system calls that a program may make, as a filter the kernel runs.

Runs inside the sandbox: the standard library and its neighbours only.
"""

import errno
import os
import struct
from collections.abc import Iterable, Iterator

# Numbers on (x86_64, aarch64); None where the call does not exist.
Numbers = tuple[int | None, int | None]

# Doors out of a process that no calculation needs: the network, other processes, the kernel's
# inner parts, and memory that no limit counts.
CLOSED: dict[str, Numbers] = {
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201),
    "accept": (43, 202), "accept4": (288, 242), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424), "kcmp": (312, 272), "process_madvise": (440, 440),
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "move_mount": (429, 429),
    "open_tree": (428, 428), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "keyctl": (250, 219),
    "add_key": (248, 217), "request_key": (249, 218), "memfd_create": (319, 279),
    "memfd_secret": (447, 447), "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195),
    "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180),
    "open_by_handle_at": (304, 265), "fanotify_init": (300, 262), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224),
    "swapoff": (168, 225), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "clock_adjtime": (305, 266), "adjtimex": (159, 171), "sethostname": (170, 161),
    "setdomainname": (171, 162), "acct": (163, 89), "quotactl": (179, 60),
    "quotactl_fd": (443, 443), "syslog": (103, 116), "iopl": (172, None), "ioperm": (173, None),
    "personality": (135, 92), "modify_ldt": (154, None), "uselib": (134, None),
}  # fmt: skip

# What Landlock does not look at, for want of namespaces: marks on files that exist, and nuisances
# to processes of the same user.
CLOSED_AT_HOME: dict[str, Numbers] = {
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None),
    "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "truncate": (76, 45), "flock": (73, 32), "inotify_init": (253, None),
    "inotify_init1": (294, 26), "tkill": (200, 130), "pidfd_open": (434, 434),
    "setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118), "sched_setattr": (314, 274), "sched_setaffinity": (203, 122),
    "migrate_pages": (256, 238), "move_pages": (279, 239), "execve": (59, 221),
    "execveat": (322, 281),
}  # fmt: skip

FORKS: dict[str, Numbers] = {"fork": (57, None), "vfork": (58, None)}
SIGNALS: dict[str, Numbers] = {
    "kill": (62, 129), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
}  # fmt: skip
CLONE, CLONE3, PRCTL = (56, 220), (435, 435), (157, 167)
PRLIMIT, FCNTL, IOCTL, SOCKETPAIR = (302, 261), (72, 25), (16, 29), (53, 199)

ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column, AUDIT_ARCH
LAST_KNOWN = 462  # calls with higher numbers did not exist when this was written

ALLOW, KILL, ERROR = 0x7FFF0000, 0x80000000, 0x00050000
LOAD, EQUAL, ABOVE, ANY_BIT, AND, RETURN = 0x20, 0x15, 0x25, 0x45, 0x54, 0x06

NEW_NAMESPACES = 0x7E020000
CLONE_THREAD = 0x10000
SOCK_STREAM = 1
SET_OWNER = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX: signals by way of a file
SET_OWNER_BY_IOCTL = (0x8901, 0x8902, 0x5412)  # FIOSETOWN, SIOCSPGRP; TIOCSTI types on a terminal
PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4

OWN_PID = 0x6E697066  # stands for the process's own id until that is known

Code = list[tuple[int, int, int, int]]  # operation, jump if true, jump if false, operand


def known() -> bool:
    """Whether there is a filter for this machine."""
    return os.uname().machine in ARCHITECTURES


def filter_for(alone: bool) -> bytes:
    """The filter for a program that is `alone` in its namespaces, or not.

    Where it is not, it may start threads but no processes, and signal only itself: `for_process`.
    """
    column, architecture = ARCHITECTURES[os.uname().machine]
    code: Code = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, architecture), _end(KILL), (LOAD, 0, 0, 0)]
    code += [(ABOVE, 0, 1, LAST_KNOWN), _fail(errno.ENOSYS)]
    for numbers, block in _rules(alone):
        if numbers[column] is not None:
            code += [(EQUAL, 0, len(block), numbers[column] or 0), *block]
    code.append(_end(ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def for_process(program: bytes, pid: int) -> bytes:
    """The filter with the id of the process that is to obey it."""
    return program.replace(struct.pack("=I", OWN_PID), struct.pack("=I", pid))


def _rules(alone: bool) -> Iterator[tuple[Numbers, Code]]:
    """Calls, and what is done about each: blocks that end in a verdict."""
    for numbers in CLOSED.values():
        yield numbers, [_fail(errno.EPERM)]
    yield CLONE3, [_fail(errno.ENOSYS)]  # its flags cannot be read here; libraries then use clone
    yield PRLIMIT, _only(0, [0])
    yield SOCKETPAIR, [_argument(1), (AND, 0, 0, 0xF), *_if_equal([SOCK_STREAM], _end(ALLOW))]
    yield FCNTL, _never(1, SET_OWNER)
    yield IOCTL, _never(1, SET_OWNER_BY_IOCTL)
    yield PRCTL, _never(0, (PR_SET_PDEATHSIG, PR_SET_DUMPABLE))
    namespaces: Code = [_argument(0), (ANY_BIT, 0, 1, NEW_NAMESPACES), _fail(errno.EPERM)]
    if alone:
        yield CLONE, [*namespaces, _end(ALLOW)]
        return
    thread: Code = [(ANY_BIT, 1, 0, CLONE_THREAD), _fail(errno.EAGAIN), _end(ALLOW)]
    yield CLONE, [*namespaces, *thread]
    for numbers in FORKS.values():
        yield numbers, [_fail(errno.EAGAIN)]
    for numbers in SIGNALS.values():
        yield numbers, _only(0, [OWN_PID])
    for numbers in CLOSED_AT_HOME.values():
        yield numbers, [_fail(errno.EPERM)]


def _end(verdict: int) -> tuple[int, int, int, int]:
    return (RETURN, 0, 0, verdict)


def _fail(number: int) -> tuple[int, int, int, int]:
    return _end(ERROR | number)


def _argument(index: int) -> tuple[int, int, int, int]:
    """Load the lower half of an argument; both machines are little-endian."""
    return (LOAD, 0, 0, 16 + 8 * index)


def _if_equal(values: Iterable[int], verdict: tuple[int, int, int, int]) -> Code:
    """The verdict for these values of what is loaded; not permitted otherwise."""
    code: Code = []
    for value in values:
        code += [(EQUAL, 0, 1, value), verdict]
    return [*code, _fail(errno.EPERM)]


def _only(index: int, values: Iterable[int]) -> Code:
    return [_argument(index), *_if_equal(values, _end(ALLOW))]


def _never(index: int, values: Iterable[int]) -> Code:
    return [_argument(index), *_if_equal(values, _fail(errno.EPERM))[:-1], _end(ALLOW)]
