"""Real Ray clusters on the loopback, of which nothing is left whatever ends the test."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

# Of every process that belongs to a cluster, by its own environment.
VARIABLES = ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_TMPDIR")
# Ray would wait 30 seconds for a node, and on a busy machine give up; its users wait longer.
NODE = {"node_ip_address": "127.0.0.1", "object_store_memory": 80 << 20, "wait": False}
# Ray's own periods are ten times as long, and its patience with an answer ten seconds: a node that
# is gone refuses the question at once, and one that is slow is not taken for it.
NOTICE = {"health_check_period_ms": 300, "health_check_initial_delay_ms": 300}
# Ray's own reaper needs a process group, which a test that leads a session cannot have.
REAPER = """
import os, pathlib, sys
sys.stdin.read()  # ends with the test, in whatever way
mark = f"RAY_TMPDIR={sys.argv[1]}".encode()
for process in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        if mark in (process / "environ").read_bytes().split(b"\\0"):
            os.kill(int(process.name), 9)
    except OSError:
        continue
"""


# For a test that joins its cluster itself: by then Ray may have been imported by another test, and
# would replace 127.0.0.1 by the machine's address in a network.
JOINED = {**NODE, "node_ip_address": "127.0.0.2"}


@contextmanager
def ray_cluster(node: Mapping[str, Any] = NODE) -> Iterator[Any]:
    """A cluster whose head has room for nothing, so that any node with work may be removed."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(dir="/tmp") as folder:
        reaper = subprocess.Popen((sys.executable, "-c", REAPER, folder), stdin=subprocess.PIPE)
        # Otherwise Ray takes "127.0.0.1" for the address of a network card.
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        patch.setenv("RAY_TMPDIR", folder)
        from ray.cluster_utils import Cluster

        head = {**node, "num_cpus": 0, "include_dashboard": False, "_system_config": NOTICE}
        made = Cluster(initialize_head=True, head_node_args=head)
        try:
            yield made
        finally:
            made.shutdown()
            reaper.communicate()
