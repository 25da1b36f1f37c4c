"""The wire format of the language-model server, and the decisions it takes without any I/O.

The records are the bodies of its HTTP API.  The server owns one vLLM, or several replicas of it,
that answer for one base model and the adapters published on it, and a queue of training jobs.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta
from msgspec.structs import replace
from returns.result import Failure, Result, Success

from nip_fn.config.hosting import LORA_RANKS
from nip_fn.errors import Problem
from nip_fn.game.chat import Message
from nip_fn.run.ports import Progress
from nip_fn.training.canary import FLOAT32, Score

# Names of adapters, jobs and owners are parts of paths and of URLs.
# A `$` alone would admit a line end after the name.
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

HostedJobStatus = Literal["pending", "starting", "running", "succeeded", "failed", "cancelled"]
# Of a GPU's memory, that a model's weights may take where each replica has as few GPUs as it can:
# the rest is for keys and values, activations and adapters.
WEIGHTS_SHARE = 0.6

ENDED: frozenset[HostedJobStatus] = frozenset({"succeeded", "failed", "cancelled"})

AdapterFile = Literal["adapter_config.json", "adapter_model.safetensors"]


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request's body.  An unknown field is refused, since it may be a typing error."""


class Needs(Body, frozen=True):
    """The vLLM settings that a run needs."""

    model_name: str  # the base model, as its server knows it
    max_lora_rank: Annotated[int, Meta(ge=1, le=512)] = 16
    max_loras: Annotated[int, Meta(ge=1, le=64)] = 1  # adapters in one batch of requests
    quantization: Literal["bitsandbytes", "none"] = "none"


class ProbeText(Body, frozen=True):
    """A reply to a chat, to be scored."""

    chat: tuple[Message, ...]
    reply: str


class PublishAdapter(Body, frozen=True):
    """A request to serve an adapter in place of the one that its owner had before."""

    owner: Name  # a group of a run: RUN-GROUP
    probes: Annotated[tuple[ProbeText, ...], Meta(max_length=16)] = ()
    expected: tuple[Score, ...] = ()  # of the probes' tokens; () if the trainer did not score them


class ServedAdapter(msgspec.Struct, frozen=True):
    """An adapter that answers now, and its scores."""

    name: str
    scores: tuple[float, ...]  # the log-probabilities of the probes' tokens, in nats
    dtype: str = FLOAT32  # of vLLM's model: torch's name, or that of a quantization


class AdapterInfo(msgspec.Struct, frozen=True):
    """An adapter on the server's disk."""

    name: str
    bytes: int
    owners: tuple[str, ...]  # that it is served for; () if it is only stored
    retired: bool = False  # it was served once, and no longer is


class ServerVersion(msgspec.Struct, frozen=True):
    """The version of a server."""

    version: str  # of nip-fn


class GpuMemory(msgspec.Struct, frozen=True):
    """The memory of one GPU, in GiB."""

    name: str
    used: float
    total: float


class Machine(msgspec.Struct, frozen=True):
    """The server's machine.  Sizes are in GiB."""

    memory_used: float
    memory_total: float
    disk_free: float  # where adapters and jobs are
    gpus: tuple[GpuMemory, ...] = ()


class ReplicaStatus(msgspec.Struct, frozen=True):
    """The state of one vLLM process."""

    port: int
    status: VllmState
    error: str = ""  # why it is not online
    restarts: int = 0  # of its process, because it crashed


class VllmStatus(msgspec.Struct, frozen=True):
    """The state of all vLLM processes of a server."""

    status: VllmState  # the worst of the replicas'
    error: str = ""
    model_name: str | None = None
    replicas: tuple[ReplicaStatus, ...] = ()
    key: str = ""  # that vLLM asks for; "": the server's own token


class JobInfo(msgspec.Struct, frozen=True):
    """A training job on the server."""

    id: str
    status: HostedJobStatus
    reason: str = ""  # why it failed or was cancelled
    place: int = 0  # the number of jobs that are trained before it
    progress: Progress | None = None
    log: tuple[str, ...] = ()  # the last lines that the training printed
    adapter: str | None = None  # its name; None before the end, and if the training diverged
    report: tuple[tuple[str, float], ...] = ()  # as `Tuned.report`
    scores: tuple[Score, ...] = ()  # of the tokens of the job's probes
    problem: str = ""  # why a training that ended left no adapter (it diverged)


@dataclass(frozen=True)
class Refusal(Problem):
    """A request that the server does not grant: the problem, and the HTTP status that carries it.

    It crosses the wire as `{"detail": LINE}`; a client turns the answer into a refusal again.
    """

    status: int = 422


class Launch(NamedTuple):
    """The settings that a vLLM process is started with."""

    needs: Needs
    model: str  # the folder
    port: int
    host: str = "127.0.0.1"
    max_model_len: int | None = None  # tokens; None: the model's own limit
    tensor_parallel: int = 1  # GPUs that share the weights
    can_sleep: bool = False
    loras: tuple[tuple[str, str], ...] = ()  # (name, folder) of those to serve from the start
    extra: tuple[str, ...] = ()  # the user's options for vLLM, which override ours


def vllm_arguments(launch: Launch) -> tuple[str, ...]:
    """The command-line options of vLLM's OpenAI server for these settings.

    >>> "--enable-lora" in vllm_arguments(Launch(Needs("m"), "models/m", 8000))
    True
    """
    needs = launch.needs
    options: list[str] = [
        *("--model", launch.model, "--served-model-name", needs.model_name),
        *("--host", launch.host, "--port", str(launch.port)),
        *("--enable-lora", "--max-lora-rank", str(lora_rank(needs.max_lora_rank))),
        *("--max-loras", str(needs.max_loras)),
        *("--tensor-parallel-size", str(launch.tensor_parallel)),
        *("--middleware", "nip_fn_access.VllmAccess"),
        # Its default, too: log-probabilities under the model, before temperature and top_p.
        *("--logprobs-mode", "raw_logprobs"),
    ]
    if launch.max_model_len is not None:
        options += ("--max-model-len", str(launch.max_model_len))
    if needs.quantization != "none":
        options += ("--quantization", needs.quantization)
    if launch.can_sleep:
        options.append("--enable-sleep-mode")
    if launch.loras:
        options += ("--lora-modules", *(f"{name}={folder}" for name, folder in launch.loras))
    # Last, since vLLM obeys the last of two equal options.
    return (*options, *launch.extra)


def lora_rank(rank: int) -> int:
    """The smallest `--max-lora-rank` of vLLM that admits adapters of this rank.

    >>> lora_rank(16), lora_rank(17)
    (16, 32)
    """
    return next((admitted for admitted in LORA_RANKS if admitted >= rank), LORA_RANKS[-1])


class ModelShape(NamedTuple):
    """The numbers of a model that decide on how many GPUs vLLM can share it."""

    heads: int = 1  # of attention
    kv_heads: int = 1
    widths: tuple[int, ...] = ()  # of its MLPs
    gib: float = 0.0  # of its weights in vLLM's memory; 0: unknown


def tensor_parallel_sizes(shape: ModelShape, num_gpus: int) -> tuple[int, ...]:
    """The numbers of GPUs, up to that many, that can share a model's weights, in their order.

    vLLM gives each GPU as many attention heads as any other, as much of every MLP, and whole
    key-value heads: several, or one that several GPUs have.

    >>> qwen_7b = ModelShape(heads=28, kv_heads=4, widths=(18944,))
    >>> tensor_parallel_sizes(qwen_7b, 8), tensor_parallel_sizes(qwen_7b, 0)
    ((1, 2, 4), (1,))
    """
    return tuple(
        size
        for size in range(1, max(num_gpus, 1) + 1)
        if shape.heads % size == 0
        and (shape.kv_heads % size == 0 or size % shape.kv_heads == 0)
        and all(width % size == 0 for width in shape.widths)
    )


def gpu_shares(
    shape: ModelShape, gpus: Sequence[str], gib: float, replicas: int | None
) -> tuple[tuple[str, ...], ...]:
    """The GPUs of each replica of a model; GPUs of which no replica can make use are left out.

    Args:
        shape: The model's.
        gpus: All that there are.
        gib: The memory of each; 0: unknown.
        replicas: Their number; None: as many as there is memory for, because two that answer for
            themselves sample more than two that share each token's work.

    >>> qwen_7b, four = ModelShape(28, 4, (18944,), gib=14.2), ("0", "1", "2", "3")
    >>> gpu_shares(qwen_7b, four, 80.0, None), gpu_shares(qwen_7b, four, 16.0, None)
    ((('0',), ('1',), ('2',), ('3',)), (('0', '1'), ('2', '3')))
    >>> gpu_shares(qwen_7b, four[:3], 80.0, 1), gpu_shares(qwen_7b, four[:1], 80.0, 2)
    ((('0', '1'),), (('0',), ('0',)))
    >>> gpu_shares(qwen_7b, (), 0.0, 2)
    ((), ())
    """
    sizes = tensor_parallel_sizes(shape, len(gpus))
    if replicas is None:
        enough = (size for size in sizes if 0 < shape.gib <= WEIGHTS_SHARE * gib * size)
        each = next(enough, sizes[-1])
        replicas = max(1, len(gpus) // each)
    each = max(1, len(gpus) // replicas)
    used = max(size for size in sizes if size <= each)
    # With fewer GPUs than replicas, several have the same.
    starts = (i * each % max(1, len(gpus)) for i in range(replicas))
    return tuple(tuple(gpus[start : start + used]) for start in starts)


def satisfies(running: Needs, needs: Needs) -> bool:
    """True if a vLLM that was started for `running` can serve `needs` as well."""
    return (
        (running.model_name, running.quantization) == (needs.model_name, needs.quantization)
        and lora_rank(running.max_lora_rank) >= needs.max_lora_rank
        and running.max_loras >= needs.max_loras
    )


def combined(running: Needs | None, needs: Needs) -> Needs:
    """The least settings that serve two runs, if they have one base model; else those of `needs`.

    >>> combined(Needs("m", max_lora_rank=8, max_loras=3), Needs("m", max_lora_rank=32))
    Needs(model_name='m', max_lora_rank=32, max_loras=3, quantization='none')
    """
    if running is None or running.model_name != needs.model_name:
        return needs
    rank, loras = running.max_lora_rank, running.max_loras
    return replace(
        needs,
        max_lora_rank=max(rank, needs.max_lora_rank),
        max_loras=max(loras, needs.max_loras),
    )


class RestartPolicy(NamedTuple):
    """The limit on restarts of a process that crashes.  Times are in seconds."""

    most: int = 3  # restarts within the window
    window: float = 600.0
    first_wait: float = 1.0  # doubled after each further crash within the window


def restart_after(crashes: Sequence[float], policy: RestartPolicy) -> float | None:
    """The seconds to wait after the last of these crash times; None if the process is given up.

    >>> restart_after([5.0], RestartPolicy()), restart_after([5.0, 9.0], RestartPolicy())
    (1.0, 2.0)
    >>> restart_after([1.0, 2.0, 3.0, 4.0], RestartPolicy()) is None
    True
    """
    recent = [time for time in crashes if time > crashes[-1] - policy.window]
    if len(recent) > policy.most:
        return None
    return policy.first_wait * 2.0 ** (len(recent) - 1)


def compatibility(client: str, server: str) -> Result[str, Problem]:
    """A warning about two versions that can work together, or ""; a failure if they cannot.

    >>> compatibility("1.2.0", "1.2.5").unwrap()
    ''
    >>> compatibility("1.2.0", "1.3.0").unwrap()
    'the language-model server has nip-fn 1.3.0, this is 1.2.0'
    >>> print(compatibility("1.2.0", "2.0.0").failure())
    the language-model server has nip-fn 2.0.0, this is 1.2.0; install one version on both
    """
    ours, theirs = (tuple(re.findall(r"\d+", version)) for version in (client, server))
    difference = f"the language-model server has nip-fn {server}, this is {client}"
    if not theirs or ours[:1] != theirs[:1]:
        return Failure(Problem(difference, remedy="install one version on both"))
    return Success("" if ours[1:2] == theirs[1:2] else difference)
