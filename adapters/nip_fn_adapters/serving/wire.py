"""What a language-model server and its clients say to each other, and what the server decides.

The records are the bodies of its HTTP API.  The server owns one vLLM, or several replicas of it,
that answer for one base model and the adapters published on it, and a queue of training jobs.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta
from returns.result import Failure, Result, Success

from nip_fn.config.hosting import LORA_RANKS
from nip_fn.prompts.chat import Message
from nip_fn.run.ports import Progress
from nip_fn.training.jobs import Score

# Names of adapters, jobs and owners are parts of paths and of URLs.
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}(?!\n)$"
Name = Annotated[str, Meta(pattern=NAME_PATTERN)]

TOKEN_VARIABLE = "NIP_FN_SERVER_TOKEN"

VllmState = Literal[
    "not_started",
    "starting",
    "online",
    "asleep",  # its memory is lent to a training
    "crashed",  # its process has ended
    "not_accepting_connections",
    "timeout",
    "server_error",
    "other_error",
]

JobState = Literal["pending", "starting", "running", "succeeded", "failed", "cancelled"]
ENDED: frozenset[JobState] = frozenset({"succeeded", "failed", "cancelled"})

AdapterFile = Literal["adapter_config.json", "adapter_model.safetensors"]


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a client sends."""


class Needs(Body, frozen=True):
    """What a run asks of vLLM."""

    model_name: str  # the base model, as its server knows it
    max_lora_rank: Annotated[int, Meta(ge=1, le=512)] = 16
    max_loras: Annotated[int, Meta(ge=1, le=64)] = 1  # adapters that are asked at the same time
    quantization: Literal["bitsandbytes", "none"] = "none"


class ProbeText(Body, frozen=True):
    """A reply to a chat, to be scored."""

    chat: tuple[Message, ...]
    reply: str


class PublishAdapter(Body, frozen=True):
    """Serve an adapter in place of what the owner had served before."""

    owner: Name  # a group of a run: RUN-GROUP
    probes: Annotated[tuple[ProbeText, ...], Meta(max_length=16)] = ()
    expected: tuple[Score, ...] = ()  # of the probes; () where the trainer could not tell


class ServedAdapter(msgspec.Struct, frozen=True):
    """An adapter answers now."""

    name: str
    scores: tuple[float, ...]  # the probes' log-probabilities in nats, each of its whole reply


class AdapterInfo(msgspec.Struct, frozen=True):
    """An adapter on the server's disk."""

    name: str
    bytes: int
    owners: tuple[str, ...]  # those it is served for; () where it only lies there
    retired: bool = False  # it has been served, and is not any more


class Version(msgspec.Struct, frozen=True):
    """Which server this is."""

    version: str  # of nip-fn


class Replica(msgspec.Struct, frozen=True):
    """One vLLM process."""

    port: int
    status: VllmState
    error: str = ""  # why it is not online
    restarts: int = 0  # of its process, because it crashed


class VllmStatus(msgspec.Struct, frozen=True):
    """How the models are served."""

    status: VllmState  # the worst of the replicas'
    error: str = ""
    model_name: str | None = None
    replicas: tuple[Replica, ...] = ()


class JobInfo(msgspec.Struct, frozen=True):
    """A training job on the server."""

    id: str
    status: JobState
    reason: str = ""  # why it failed or was cancelled
    place: int = 0  # jobs that are done before it
    progress: Progress | None = None
    log: tuple[str, ...] = ()  # the last lines that the training printed
    adapter: str | None = None  # what it left; None until then, and where it came to nothing
    report: tuple[tuple[str, float], ...] = ()  # as `Tuned.report`
    scores: tuple[Score, ...] = ()  # of the job's probes, before and after it
    problem: str = ""  # why a training that came to its end left no adapter (it diverged)


class Refusal(NamedTuple):
    """Why the server does not do what it was asked: an HTTP status from 400, and one line."""

    status: int
    reason: str


class Launch(NamedTuple):
    """All that defines a vLLM process."""

    model: str  # a folder
    served_name: str
    port: int
    host: str = "127.0.0.1"
    max_model_len: int | None = None  # tokens; None: what the model can hold
    max_lora_rank: int = 16
    max_loras: int = 1
    quantization: Literal["bitsandbytes", "none"] = "none"
    tensor_parallel: int = 1  # GPUs that share the weights
    can_sleep: bool = False
    loras: tuple[tuple[str, str], ...] = ()  # (name, folder) of those that are served at once
    extra: tuple[str, ...] = ()  # vLLM's own options, as the user gave them; they win


def vllm_arguments(launch: Launch) -> tuple[str, ...]:
    """The options that vLLM's OpenAI server is started with.

    >>> "--enable-lora" in vllm_arguments(Launch("models/m", "m", 8000))
    True
    """
    options: list[str] = [
        *("--model", launch.model, "--served-model-name", launch.served_name),
        *("--host", launch.host, "--port", str(launch.port)),
        *("--enable-lora", "--max-lora-rank", str(lora_rank(launch.max_lora_rank))),
        *("--max-loras", str(launch.max_loras)),
        *("--tensor-parallel-size", str(launch.tensor_parallel)),
    ]
    if launch.max_model_len is not None:
        options += ("--max-model-len", str(launch.max_model_len))
    if launch.quantization != "none":
        options += ("--quantization", launch.quantization)
    if launch.can_sleep:
        options.append("--enable-sleep-mode")
    if launch.loras:
        options += ("--lora-modules", *(f"{name}={folder}" for name, folder in launch.loras))
    return (*options, *launch.extra)


def lora_rank(rank: int) -> int:
    """The smallest rank that vLLM can be started for and that holds adapters of this one.

    >>> lora_rank(16), lora_rank(17)
    (16, 32)
    """
    return next((known for known in LORA_RANKS if known >= rank), LORA_RANKS[-1])


def tensor_parallel_size(num_attention_heads: int, num_gpus: int) -> int:
    """How many GPUs can share a model's weights: the greatest divisor of its attention heads that
    is no more than there are.

    >>> tensor_parallel_size(12, 8), tensor_parallel_size(14, 4), tensor_parallel_size(32, 0)
    (6, 2, 1)
    """
    return next(size for size in range(max(num_gpus, 1), 0, -1) if num_attention_heads % size == 0)


def suffices(running: Needs, wanted: Needs) -> bool:
    """Whether a vLLM that was started for one run serves another as well."""
    return (
        (running.model_name, running.quantization) == (wanted.model_name, wanted.quantization)
        and lora_rank(running.max_lora_rank) >= wanted.max_lora_rank
        and running.max_loras >= wanted.max_loras
    )


def both(running: Needs, wanted: Needs) -> Needs:
    """What serves two runs with one base model."""
    return Needs(
        wanted.model_name,
        max(running.max_lora_rank, wanted.max_lora_rank),
        max(running.max_loras, wanted.max_loras),
        wanted.quantization,
    )


class RestartPolicy(NamedTuple):
    """How often a process that crashes is started again.  Times are in seconds."""

    most: int = 3  # within the window
    window: float = 600.0
    first_wait: float = 1.0


def restart_after(crashes: Sequence[float], policy: RestartPolicy) -> float | None:
    """How long to wait after the last of these crashes, each a time; None: it is given up.

    >>> restart_after([5.0], RestartPolicy()), restart_after([5.0, 9.0], RestartPolicy())
    (1.0, 2.0)
    >>> restart_after([1.0, 2.0, 3.0, 4.0], RestartPolicy()) is None
    True
    """
    recent = [time for time in crashes if time > crashes[-1] - policy.window]
    if len(recent) > policy.most:
        return None
    return policy.first_wait * 2.0 ** (len(recent) - 1)


def compatibility(client: str, server: str) -> Result[str, str]:
    """Whether a client may talk to a server of that version; success holds a warning, or "".

    >>> compatibility("1.2.0", "1.2.5").unwrap()
    ''
    >>> compatibility("1.2.0", "1.3.0").unwrap()
    'the language-model server has nip-fn 1.3.0, this is 1.2.0'
    >>> compatibility("1.2.0", "2.0.0").failure()
    'the language-model server has nip-fn 2.0.0, this is 1.2.0; install one version on both'
    """
    ours, theirs = (tuple(re.findall(r"\d+", version)) for version in (client, server))
    told = f"the language-model server has nip-fn {server}, this is {client}"
    if not theirs or ours[:1] != theirs[:1]:
        return Failure(f"{told}; install one version on both")
    return Success("" if ours[1:2] == theirs[1:2] else told)
