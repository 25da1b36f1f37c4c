"""A language-model server of a run's own, on this machine: `nip-fn train --serve`."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from nip_fn.config.hosting import is_hosted, server_url
from nip_fn.errors import Problem
from nip_fn.params.agent import AgentParameters
from nip_fn.params.run import HyperParameters
from nip_fn_adapters.experiments.outcomes import refuse
from nip_fn_adapters.experiments.watching import NOBODY, Watch

OWN_SERVER, LOG = "server", "server.log"  # in the run's folder
# By this Python rather than by the `nip-fn` script, which may be that of another environment.
COMMAND = "from nip_fn_cli.main import main; main()"
HERE = ("localhost", "127.0.0.1")
START_SECONDS = 120.0
FREE_SECONDS = 15.0  # in which the server of a run that was killed gives up its ports
POLL_SECONDS = 0.1


@contextmanager
def served_here(params: HyperParameters, run: Path, watch: Watch = NOBODY) -> Iterator[None]:
    """Run the server that the run's agents name until the block ends.

    Its adapters and jobs are in the run's folder.  Refuses if it cannot be started.
    """
    agent = _agent(params)
    limit = FREE_SECONDS if (run / OWN_SERVER).exists() else 0.0
    for field in ("language_model_server_port", "vllm_server_port"):
        _wait_until_free(field, getattr(agent, field), limit)
    log = run / LOG
    watch.tell(f"starting a language-model server at {server_url(agent)}, its log is {log}")
    reaper = _start(agent, params, run, log)
    try:
        _wait_until_there(reaper, agent, log)
        yield
    finally:
        assert reaper.stdin is not None
        reaper.stdin.close()  # the sign to end it
        reaper.wait()


def _agent(params: HyperParameters) -> AgentParameters:
    """One of the agents at the server that is to be started."""
    agents = {server_url(agent): agent for agent in params.agents if is_hosted(agent)}
    if len(agents) != 1:
        problem = (
            "`serve` starts one language-model server, and the agents are at "
            f"{', '.join(agents) or 'none'}"
        )
        refuse(Problem(problem, remedy="it goes with provider self-hosted"))
    (agent,) = agents.values()
    if urlsplit(agent.language_model_server_scheme_host).hostname not in HERE:
        problem = (
            f"`serve` starts a server on this machine, and the agents are at {server_url(agent)}"
        )
        refuse(Problem(problem, remedy="run nip-fn serve there instead"))
    return agent


def _start(
    agent: AgentParameters, params: HyperParameters, run: Path, log: Path
) -> "subprocess.Popen[bytes]":
    """The server, through `reaper`: it ends with this process, however that ends."""
    from nip_fn_adapters.processes import reaper
    from nip_fn_adapters.providers.api.endpoints import environment
    from nip_fn_adapters.providers.selfhosted.host import needs_at

    needs = needs_at(server_url(agent), params, run)
    with log.open("ab") as file:
        return subprocess.Popen(
            (
                *(sys.executable, "-m", reaper.__name__),
                *(sys.executable, "-c", COMMAND, "serve"),
                *("--model", agent.model_name, "--state", str(run / OWN_SERVER)),
                *("--max-loras", str(needs.max_loras)),
                *("--max-lora-rank", str(needs.max_lora_rank)),
                *("--port", str(agent.language_model_server_port)),
                *("--vllm-port", str(agent.vllm_server_port)),
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=file,
            # With the variables of .env, too: the server must have the same token as the run.
            env=environment(),
            start_new_session=True,  # Ctrl-C is for the run, which then ends it
        )


def _wait_until_free(field: str, port: int, limit: float) -> None:
    """Return once nobody listens at the port; refuse after `limit` seconds."""
    end = time.monotonic() + limit
    while _listens(port):
        if time.monotonic() >= end:
            remedy = (
                "leave out `serve` if a language-model server runs there, or choose another one "
                f"(agents._default.{field}=PORT)"
            )
            refuse(Problem(f"port {port} is taken", "`serve`", remedy, kind="system"))
        time.sleep(POLL_SECONDS)


def _wait_until_there(reaper: "subprocess.Popen[bytes]", agent: AgentParameters, log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while not _listens(agent.language_model_server_port):
        if reaper.poll() is not None or time.monotonic() >= end:
            lines = log.read_text("utf-8", errors="replace").strip().splitlines() or ["silently"]
            problem = f"nip-fn serve has not started: {lines[-1].strip()}"
            refuse(Problem(problem, remedy=f"see {log}", kind="adapter"))
        time.sleep(POLL_SECONDS)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0
