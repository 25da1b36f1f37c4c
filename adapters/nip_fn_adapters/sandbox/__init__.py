"""The sandbox: it runs untrusted programs, and reports how each run ended.

`open_sandbox` finds bubblewrap (https://github.com/containers/bubblewrap), which gives a program
namespaces of its own: no network, no processes or files but its own, an empty /tmp, and Python.
Inside, a harness (`harness`) forks a process for each input (`child`) under resource limits, and
reports how it ended; outside, `box` reads that report with care.

System calls are not filtered, so the kernel itself is as open to attack as to any program in
bubblewrap; memory that no limit counts (System V segments) is freed at the end of the call, and a
program is the first to be killed where the machine runs out of it.
"""

from nip_fn_adapters.sandbox.box import Sandbox, limited, open_sandbox

__all__ = ["Sandbox", "limited", "open_sandbox"]
