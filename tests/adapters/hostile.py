"""Programs that a sandbox must withstand."""

# Values that lie about themselves.
VALUES = """
import collections, enum
from typing import List, NamedTuple
class Pair(NamedTuple):
    a: int
    b: str
class Liar(int):
    __repr__ = __str__ = lambda self: "42"
    __eq__ = lambda self, other: True
    __hash__ = int.__hash__
class Text(str):
    __repr__ = lambda self: "42"
    __class__ = int
class Many(list):
    __iter__ = lambda self: iter([42])
    __len__ = lambda self: 7
class Color(enum.IntEnum):
    RED = 1
class Odd:
    __class__ = list
    __repr__ = lambda self: "[]"
def loop():
    x = []
    x.append(x)
    return x
def f(code):
    return eval(code)
"""

# Ways not to end.
ENDLESS = """
import os, signal, threading, time
def f(kind):
    if kind == "deaf":
        for number in range(1, 65):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
    if kind == "closed":
        os.closerange(0, 256)
    if kind == "huge":
        return len(str(10 ** 10 ** 8))
    if kind == "asleep":
        time.sleep(1000)
    if kind == "threads":
        while True:
            try:
                threading.Thread(target=time.sleep, args=(99,)).start()
            except RuntimeError:
                pass
    if kind == "forks":
        while True:
            try:
                os.fork()
            except OSError:
                pass
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass
"""

# Scripts that do not end at their end.
AT_THE_END = """
import atexit, sys, threading, time
how = input()
if how == "thread":
    threading.Thread(target=time.sleep, args=(99,)).start()
elif how == "atexit":
    atexit.register(time.sleep, 99)
else:
    print(how)
"""

# Ways to take too much.
GREEDY = """
import ctypes, os, pickle, sys
def deep(n):
    return deep(n + 1) + 1
def nest(n):
    x = []
    for _ in range(n):
        x = [x]
    return x
def f(kind):
    match kind:
        case "list": return [0] * 10 ** 9
        case "bytes": return len(bytearray(10 ** 10))
        case "doubling":
            x = "ab"
            while True:
                x += x
        case "print":
            while True: print("x" * 10_000)
        case "errors":
            while True: os.write(2, b"x" * 10_000)
        case "value": return "x" * 10 ** 7
        case "shared":
            x = []
            for _ in range(60): x = [x, x]
            return x
        case "exit": os._exit(0)
        case "killed": os.kill(os.getpid(), 9)
        case "segfault": ctypes.string_at(0)
        case "deep": return deep(0)
        case "nested": return nest(10 ** 5)
        case "repr": return repr(nest(10 ** 5))
        case "pickle": return len(pickle.dumps(nest(10 ** 5)))
        case "message": raise ValueError("x" * 10 ** 7)
        case "hostile": raise Hostile
        case "bottomless":
            sys.setrecursionlimit(10 ** 9)
            return deep(0)
class Hostile(BaseException):
    def __str__(self):
        raise MemoryError
"""

# Count what can be started.
COUNTING = """
import os, threading, time
def forks():
    for count in range(1000):
        try:
            if os.fork() == 0:
                time.sleep(99)
        except OSError:
            return count
def threads():
    threading.stack_size(1 << 16)
    for count in range(1000):
        try:
            threading.Thread(target=time.sleep, args=(99,)).start()
        except RuntimeError:
            return count
"""

# Leaves a process that hides from its parent.
DAEMON = """
import os, signal, time
def f():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(99)
        os._exit(0)
    return 1
"""

# Speaks in the harness's name, and attacks it.
FORGER = """
import builtins, gc, os, signal, sys
def f(attack):
    if not attack:
        return "true"
    forged = b"returned 8\\n'forged'" * 9
    for name in ("harness", "child", "literal"):
        module = sys.modules.get("nip_fn_adapters.sandbox." + name)
        for key in list(vars(module or sys)):
            if key.startswith("_") and not key.startswith("__"):
                setattr(module or sys, key, lambda *a, **k: ("returned", "'forged'"))
    for thing in gc.get_objects():
        if type(thing).__name__ == "Harness":
            thing.run_all = thing._attempt = None
    builtins.repr = lambda x: "'forged'"
    frame = sys._getframe()
    while frame:
        frame.f_locals.update(text="'forged'", ending="returned")
        frame = frame.f_back
    for target in (os.getppid(), 1):
        for number in (signal.SIGKILL, signal.SIGINT, signal.SIGSTOP, signal.SIGTERM):
            try:
                os.kill(target, number)
            except OSError:
                pass
    for process in ("self", os.getppid(), 1):
        for descriptor in range(30):
            try:
                with open(f"/proc/{process}/fd/{descriptor}", "wb", buffering=0) as file:
                    file.write(forged)
            except (OSError, ValueError):
                pass
    for descriptor in range(3, 256):
        try:
            os.write(descriptor, forged)
        except OSError:
            pass
    os.closerange(0, 256)
    os._exit = lambda code: None
    return "attacked"
"""

# Ways out, each of which raises where it is barred.
ATTACKS = """
import ctypes, glob, os, resource, signal, socket, subprocess
def connect(family, kind, address):
    with socket.socket(family, kind) as s:
        s.settimeout(1)
        s.connect(address)
        s.sendall(b"hello")
def send_from_a_pair(address):
    for s in socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM):
        s.sendto(b"hello", address)
def owner(pid):
    import fcntl
    reader, writer = os.pipe()
    fcntl.fcntl(reader, fcntl.F_SETOWN, pid)
    fcntl.fcntl(reader, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    os.write(writer, b"x")
def f(attack, x):
    match attack:
        case "read": return open(x).read()
        case "list": return os.listdir(x)
        case "write": open(x, "a").write("!")
        case "create": open(x + "/new", "w").write("!")
        case "remove": os.unlink(x)
        case "mode": os.chmod(x, 0o600)
        case "cut": os.truncate(x, 0)
        case "link": os.link(x, "stolen")
        case "environ":
            assert any(x.encode() in open(name, "rb").read() for name in environs())
        case "own environ": assert x in str(dict(os.environ))
        case "tcp": connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", x))
        case "udp": connect(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", x))
        case "abstract": connect(socket.AF_UNIX, socket.SOCK_STREAM, "\\0" + x)
        case "file socket": connect(socket.AF_UNIX, socket.SOCK_STREAM, x)
        case "pair": send_from_a_pair("\\0" + x)
        case "signal": os.kill(x, signal.SIGURG)
        case "signal queue": signal.pidfd_send_signal(os.pidfd_open(x), signal.SIGURG)
        case "signal owner": owner(x)
        case "ptrace": call("ptrace", 16, x, 0, 0)
        case "dumpable": call("prctl", 4, 1, 0, 0)
        case "namespaces": call("unshare", x)
        case "chroot": os.chroot(x)
        case "hidden memory": os.memfd_create("x")
        case "user": os.setuid(x)
        case "limits of": resource.prlimit(x or os.getppid(), resource.RLIMIT_CPU, (1, 1))
        case "run": subprocess.run([x], check=True)
    return "it worked"
def environs():
    for name in glob.glob("/proc/[0-9]*/environ"):
        try:
            open(name, "rb").close()
            yield name
        except OSError:
            pass
def call(name, *arguments):
    if getattr(ctypes.CDLL(None), name)(*map(ctypes.c_long, arguments)):
        raise OSError("no")
"""

# Fills the disk.
FILLING = """
import os
def fill(where):
    megabytes = 0
    try:
        for number in range(1000):
            with open(f"{where}/{number}", "wb", buffering=0) as file:
                megabytes += file.write(b"x" * (1 << 20)) / (1 << 20)
    except OSError:
        return megabytes <= 4
def f(where):
    before = os.listdir(where)
    return before, fill(where), len(os.listdir(where)) > 2
"""

# Our side: a process that runs a sleeping program.
CALLER = """
import asyncio
from nip_fn.code.programs import Limits, Program
from nip_fn_adapters.sandbox import open_sandbox
box = open_sandbox().unwrap()
program = Program("import time\\ndef f():\\n    time.sleep(99)", "f", ("[]",))
print("ready", flush=True)
asyncio.run(box(program, Limits(seconds=90.0)))
"""
