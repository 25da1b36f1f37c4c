"""The Ray cluster that this process joins, for studies or for a language-model server."""

import socket

from returns.result import Failure, Result, Success

from nip_fn.errors import Problem

LOCAL = "local"  # the address of a cluster of this machine alone, for as long as the process lasts
THIS = "auto"  # that of a cluster that was started on this machine
ANSWER_SECONDS = 10.0


def join_cluster(address: str) -> Result[None, Problem]:
    """Success once this process has joined the cluster at that address; or why it cannot."""
    try:
        import ray
    except ImportError:
        remedy = "pip install 'nip-fn[ray]'"
        return Failure(Problem("Ray is not installed", "--ray", remedy, kind="system"))
    options = {"include_dashboard": False} if address == LOCAL else {}
    try:
        if address not in (LOCAL, THIS):
            # Ray itself asks an address at which nobody answers for minutes.
            host, _, port = address.removeprefix("ray://").rpartition(":")
            if not port.isdigit():
                raise ValueError("an address is HOST:PORT")
            socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS).close()
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level="error",
            namespace="nip-fn",
            **options,
        )
    except (OSError, ValueError, RuntimeError) as error:
        cause = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        remedy = f"start one with ray start --head, or give --ray {LOCAL} for this machine alone"
        problem = f"no Ray cluster answers at {address}: {cause}"
        return Failure(Problem(problem, "--ray", remedy, kind="system"))
    return Success(None)
