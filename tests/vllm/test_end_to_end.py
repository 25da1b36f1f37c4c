"""`nip-fn serve` with the real vLLM, and runs that are sampled and trained there."""

import json
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from nip_fn.game.verdict import find_decision
from nip_fn.run.events import Event, JobCreated, JobFinished, Published, RunStarted
from nip_fn.training.canary import canary_metrics
from nip_fn_adapters.recording import store
from nip_fn_adapters.recording.store import CHECKPOINT
from nip_fn_cli.shown.exits import Exit

from ..adapters.fleets import free_ports
from ..adapters.rescoring import rescored
from ..adapters.serving import Server
from ..cli.conftest import COMMAND, Finished
from ..core.games import one_by_one

MODEL = "builtin:tea"
SMALL = (
    "--dataset", "builtin:tea",
    "--provider", "self-hosted", "--model", MODEL, "--seed", "5",
    "--set", "rl.rollouts_per_iteration=12", "--set", "dataset_options.max_test_size=30",
    "--set", "malt.num_responses_per_timestep=3", "--set", "malt.pair_selection_method=interval",
    "--set", "agents.verifier.opponent_scripts=[]",
)  # fmt: skip
MOST_NATS = 1e-4  # between the float32 of vLLM and of torch; 7e-6 at most were measured
MOST_SECONDS = 900.0  # for what takes minutes where the machine has nothing else to do


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    port = free_ports(2)
    ports = ("--port", str(port), "--vllm-port", str(port + 1))
    state = tmp_path_factory.mktemp("server") / "state"
    with Server(state, "--model", MODEL, *ports) as started:
        yield started


def options(server: Server) -> tuple[str, ...]:
    """The options of a run that is to use the server."""
    return options_of(int(server.url.rpartition(":")[2]))


def options_of(port: int) -> tuple[str, ...]:
    """The same, by the server's port; vLLM's is the next."""
    agent = "agents._default."
    return (
        *("--set", f"{agent}language_model_server_port={port}"),
        *("--set", f"{agent}vllm_server_port={port + 1}"),
    )


def vllm(server: Server) -> psutil.Process:
    """The process that serves the models."""
    assert server.process is not None
    below = psutil.Process(server.process.pid).children(recursive=True)
    of_vllm = [one for one in below if "vllm.entrypoints.openai.api_server" in one.cmdline()]
    [served] = [one for one in of_vllm if "nip_fn_adapters.processes.reaper" not in one.cmdline()]
    return served


def ask(server: Server, path: str) -> Any:
    """The answer of the server."""
    return server.ask(path).json()


def start(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    """Start `nip-fn` in a folder."""
    return subprocess.Popen(
        [COMMAND, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def train(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    """Start the run `a` in a folder, or go on with it."""
    return start(folder, "train", *arguments, "--run", "a")


def ended(process: "subprocess.Popen[str]") -> Finished:
    """The process when it has ended."""
    out, err = process.communicate(timeout=MOST_SECONDS)
    return Finished(process.args, process.returncode, out, err)


def until(holds: Callable[[], object], what: str) -> None:
    """Return once that holds."""
    deadline = time.monotonic() + MOST_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.05)


def events(folder: Path) -> tuple[Event, ...]:
    """The events that the run has recorded."""
    recording = store.read_recording(folder / "runs" / "a" / CHECKPOINT)
    return recording.map(lambda one: one.events).value_or(())  # () while there is no file


def some(kind: type[Event], recorded: Sequence[Event]) -> list[Any]:
    """The events of a kind."""
    return [event for event in recorded if isinstance(event, kind)]


def replays(folder: Path, digest_of: str) -> None:
    """The replay agrees, and prints what the run printed."""
    replayed = ended(start(folder, "replay", "runs/a"))
    assert replayed.returncode == 0, replayed.stderr
    [digest] = [line for line in digest_of.splitlines() if line.startswith("digest")]
    assert f"{digest} (all recorded digests match)" in replayed.stdout.splitlines()


def test_two_iterations_of_malt(server: Server, tmp_path: Path) -> None:
    done = ended(
        train(tmp_path, "--trainer", "malt", "--iterations", "2", *SMALL, *options(server))
    )
    assert done.returncode == 0, done.stderr
    replays(tmp_path, done.stdout)
    recorded = events(tmp_path)
    replies, finished = one_by_one(recorded), some(JobFinished, recorded)
    published = some(Published, recorded)
    # Siblings come from one request.
    requests = Counter(reply.completion.request_id for reply in replies)
    assert max(requests.values()) == 3
    # Every training left an adapter that is served, and scored there as it was where it was
    # trained, or the run would have stopped; that is not what the base model would have scored.
    # Trainings end, and adapters are published, in any order.
    jobs_by_adapter = {job.adapter: job for job in finished}
    assert jobs_by_adapter.keys() == {one.adapter for one in published}
    assert len(published) == len(jobs_by_adapter) == 4
    for one in published:
        job = jobs_by_adapter[one.adapter]
        assert one.scores
        measures = dict(canary_metrics(job.scores, one.scores))
        assert measures["canary_shift"] > 100 * measures["canary_gap"]
        assert one.dtype == "float32"
    # Each group samples from its own last adapter.
    agents = [agent.name for agent in some(RunStarted, recorded)[0].params.agents]
    last = {one.group: one.adapter for one in published}
    at_end = recorded[recorded.index(published[-1]) :]
    for reply in one_by_one(at_end):
        assert reply.completion.model == last[agents[reply.agent]]
    assert {reply.agent for reply in one_by_one(at_end)} == {0, 1}
    assert last.keys() == {"prover", "verifier"}
    # Every recorded token is the one that was drawn, with the probability that its model gave it.
    policies = list(rescored(tmp_path / "runs" / "a"))
    assert {policy.adapter for policy in policies} == {None, *jobs_by_adapter}
    for policy in policies:
        assert np.abs(policy.packed).max() < MOST_NATS
        for completion in policy.completions:
            assert completion.tokens is not None
            ids = completion.tokens.ids.tolist()
            text = policy.policy.tokenizer.decode(ids, skip_special_tokens=True)
            assert text == completion.text
            assert (ids[-1] in policy.policy.stops) == (completion.finish_reason == "stop")
    # Every verdict has a probability, and few are drawn that are unlikely: the mean is 1/2 or more.
    drawn = []
    for reply in one_by_one(recorded):
        completion = reply.completion
        verdict = find_decision(completion.text or "", "accept_reject").value_or(None)
        if reply.agent == agents.index("verifier") and verdict is not None:
            assert sum(completion.verdict_probabilities) == pytest.approx(1)
            drawn.append(completion.verdict_probabilities[verdict.discrete])
    assert np.mean(drawn) > 0.45
    jobs = ask(server, "/training/jobs")
    assert [job["status"] for job in jobs] == ["succeeded"] * len(finished)
    owned = {one["name"] for one in ask(server, "/adapters") if one["owners"]}
    assert owned == set(last.values())


def test_one_iteration_of_expert_iteration(server: Server, tmp_path: Path) -> None:
    how = ("--trainer", "ei", "--iterations", "1", "--set", "ei.rollouts_per_iteration=40")
    done = ended(train(tmp_path, *how, *SMALL, *options(server)))
    assert done.returncode == 0, done.stderr
    replays(tmp_path, done.stdout)
    recorded = events(tmp_path)
    adapters = {one.adapter for one in some(Published, recorded)}
    assert adapters
    assert adapters <= {reply.completion.model for reply in one_by_one(recorded)}


def test_models_are_compared_without_training(server: Server, tmp_path: Path) -> None:
    how = ("--protocol", "nip", "--protocol", "solo_verifier", "--json")
    told = ended(start(tmp_path, "eval", *how, *SMALL, *options(server)))
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)["tests"]
    assert {one["protocol"] for one in found} == {"nip", "solo_verifier"}
    assert {one["model"] for one in found} == {MODEL}


def test_vllm_the_server_and_the_client_are_killed(server: Server, tmp_path: Path) -> None:
    before = {job["id"] for job in ask(server, "/training/jobs")}

    def jobs() -> list[dict[str, Any]]:
        return [job for job in ask(server, "/training/jobs") if job["id"] not in before]

    how = ("--trainer", "malt", "--iterations", "2", *SMALL, *options(server))
    running = train(tmp_path, *how)
    try:
        until(lambda: len(one_by_one(events(tmp_path))) > 20, "there are replies")
        vllm(server).kill()
        until(lambda: any(job["status"] == "running" for job in jobs()), "a job runs")
        server.kill()
        server.start()
        until(lambda: any(job["status"] == "succeeded" for job in jobs()), "a job is done")
        running.kill()
        assert ended(running).returncode == -signal.SIGKILL
    finally:
        running.kill()
    kept = events(tmp_path)
    done = ended(train(tmp_path, "--resume"))
    assert done.returncode == 0, done.stderr
    replays(tmp_path, done.stdout)
    recorded = events(tmp_path)
    assert recorded[: len(kept)] == kept
    places = Counter(
        (reply.completion.model, reply.tree, reply.path, reply.agent, reply.index, reply.attempt)
        for reply in one_by_one(recorded)
        if reply.completion.model != MODEL
    )
    assert places
    created = some(JobCreated, recorded)
    assert len(jobs()) == len(created) == len({job.job for job in created})
    assert {job["status"] for job in jobs()} == {"succeeded"}


@pytest.mark.parametrize("refused", ["stop", "skip"])
def test_a_poisoned_adapter_is_refused(server: Server, tmp_path: Path, refused: str) -> None:
    """The run is held while the only adapter that it waits for is poisoned on the server's disk."""
    how = (
        *("--trainer", "malt", "--iterations", "1", *SMALL, *options(server)),
        *("--set", "agents.prover.freeze_agent=true"),
        *("--set", f"text_rl.refused_adapters={refused}"),
    )
    before = {job["id"] for job in ask(server, "/training/jobs")}

    def job(status: str) -> dict[str, Any] | None:
        """The run's job, if it is in that state."""
        jobs = [job for job in ask(server, "/training/jobs") if job["id"] not in before]
        return next((job for job in jobs if job["status"] == status), None)

    running = train(tmp_path, *how)
    try:
        until(lambda: job("running"), "the job runs")
        running.send_signal(signal.SIGSTOP)
        until(lambda: job("succeeded"), "the job is done")
        left = job("succeeded")
        assert left is not None
        weights = server.state / "adapters" / left["adapter"] / "adapter_model.safetensors"
        sound = weights.read_bytes()
        weights.write_bytes(poisoned(sound))
        running.send_signal(signal.SIGCONT)
        done = ended(running)
    finally:
        running.kill()
    if refused == "stop":
        assert done.returncode == Exit.ADAPTER
        assert "not a finite number" in done.stderr
        assert not some(Published, events(tmp_path))
        weights.write_bytes(sound)
        done = ended(train(tmp_path, "--resume"))
    assert done.returncode == (Exit.SKIPPED if refused == "skip" else 0), done.stderr
    replays(tmp_path, done.stdout)
    [published] = some(Published, events(tmp_path))
    assert ("not a finite number" in published.problem) == (refused == "skip")
    sampled = {reply.completion.model for reply in one_by_one(events(tmp_path))}
    assert sampled == ({MODEL} if refused == "skip" else {MODEL, left["adapter"]})


def poisoned(weights: bytes) -> bytes:
    """A safetensors file whose last number is not a number."""
    return weights[:-4] + np.float32(np.nan).tobytes()


def test_a_run_with_a_server_of_its_own_and_one_that_goes_on_from_it(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    port = free_ports(2)
    how = (
        *("--serve", "--iterations", "1", *SMALL, *options_of(port)),
        *("--set", "agents.prover.freeze_agent=true"),
    )
    done = ended(train(tmp_path, *how))
    assert done.returncode == 0, done.stderr
    [published] = some(Published, events(tmp_path))
    how = ("--serve", "--iterations", "0", *SMALL, *options_of(port))
    load = (
        *("--set", "agents.verifier.load_checkpoint_and_parameters=true"),
        *("--set", "agents.verifier.checkpoint_run_id=a"),
    )
    tested = ended(start(tmp_path, "train", *how, *load, "--run", "b"))
    assert tested.returncode == 0, tested.stderr
    replies = one_by_one(store.read_recording(tmp_path / "runs" / "b" / CHECKPOINT).unwrap().events)
    assert {reply.completion.model for reply in replies} == {MODEL, published.adapter}
    with socket.socket() as probe:  # the servers went with their runs
        assert probe.connect_ex(("127.0.0.1", port)) != 0
