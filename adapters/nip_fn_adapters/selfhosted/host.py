"""A language-model server, as one sitting of a run deals with it: everything is readied once."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args
from urllib.parse import quote

import msgspec
from msgspec.structs import replace
from returns.result import Failure, Result, Success

from nip_fn.config.hosting import is_hosted, server_url
from nip_fn.params.agent import agent_group
from nip_fn.params.run import HyperParameters
from nip_fn.training.jobs import Probe, Score
from nip_fn_adapters.api.endpoints import endpoints_of
from nip_fn_adapters.api.ledger import identity
from nip_fn_adapters.selfhosted.client import PATIENT, Client, Timeouts, Trouble
from nip_fn_adapters.selfhosted.needs import needs_of
from nip_fn_adapters.serving.wire import (
    TOKEN_VARIABLE,
    AdapterFile,
    AdapterInfo,
    Needs,
    ProbeText,
    PublishAdapter,
    ServedAdapter,
    VllmStatus,
)

T = TypeVar("T")

UNKNOWN = 404  # the status that says that the server lacks an adapter
LONGEST = 150  # characters of a name: what is made of it adds to them


class Place(NamedTuple):
    """Where a run deals with a server."""

    run: Path  # its folder
    params: HyperParameters
    vllm_port: int  # where the server does not say


class Host:
    """One server, for all groups whose models are there."""

    def __init__(self, client: Client, place: Place) -> None:
        """Ask nothing yet."""
        self.client = client
        self._place = place
        self._once: dict[object, asyncio.Task[Any]] = {}
        self._published: set[tuple[str, str]] = set()  # (group, adapter) of this sitting

    def name(self, suffix: str) -> str:
        """The run's own name for something at the server: of a group, or of a job."""
        return safe_name(f"{identity(self._place.run)}-{suffix}")

    def drain(self) -> None:
        """Cancel what is being waited for."""
        for task in self._once.values():
            task.cancel()

    def reached(self) -> Awaitable[Result[None, str]]:
        """Success once the server answers and has a version that fits."""
        model = self._needs().model_name
        start = f"nip-fn serve --model {model}"
        return self._first("reached", partial(self.client.wait_for_ready, start))

    def online(self) -> Awaitable[Result[tuple[str, ...], str]]:
        """The addresses of the server's vLLM, once all of them answer."""
        return self._first("online", self._start)

    def served(self, group: str, adapter: str) -> Awaitable[Result[None, str]]:
        """Success once the adapter answers for the group, as in an earlier sitting it may have."""
        if (group, adapter) in self._published:
            return _now(Success(None))
        return self._first((group, adapter), partial(self._serve, group, adapter))

    async def publish(
        self,
        group: str,
        adapter: str,
        probes: tuple[Probe, ...] = (),
        expected: tuple[Score, ...] = (),
    ) -> Result[ServedAdapter, Trouble]:
        """Serve an adapter for a group, in place of what it had; it is sent where it is missing."""
        texts = tuple(ProbeText(probe.chat, probe.reply) for probe in probes)
        call = partial(
            self.client.call,
            f"publishing {adapter}",
            "post",
            f"/adapters/{quote(adapter, safe='')}/publish",
            ServedAdapter,
            body=PublishAdapter(self.name(group), texts, expected),
            timeout=self.client.patience.publish,
        )
        answer: Result[ServedAdapter, Trouble] = await call()
        if isinstance(answer, Failure) and _status(answer.failure()) == UNKNOWN:
            sent = await self.send((adapter,))
            answer = Failure(sent.failure()) if isinstance(sent, Failure) else await call()
        if isinstance(answer, Success):
            self._published.add((group, adapter))
        return answer

    async def send(self, adapters: tuple[str, ...]) -> Result[None, Trouble]:
        """Give the server those of the adapters that it lacks."""
        listed = await self.client.call("listing adapters", "get", "/adapters", list[AdapterInfo])
        if isinstance(listed, Failure):
            return Failure(listed.failure())
        there = {info.name for info in listed.unwrap()}
        for adapter in adapters:
            if adapter not in there:
                sent = await self._upload(adapter)
                if isinstance(sent, Failure):
                    return sent
        return Success(None)

    async def _upload(self, adapter: str) -> Result[None, Trouble]:
        folder, url = self._place.run / "adapters" / adapter, self.client.server.url
        if not folder.is_dir():
            return Failure(Trouble(f"{url} has no adapter {adapter}, nor has {folder.parent}"))
        for file in get_args(AdapterFile):
            if not (folder / file).is_file():
                return Failure(Trouble(f"{folder} has no {file}: it is no LoRA adapter"))
            answer = await self.client.call(
                f"{file} of {adapter}",
                "put",
                f"/adapters/{quote(adapter, safe='')}/{file}",
                object,
                body=folder / file,
                timeout=self.client.patience.publish,
            )
            if isinstance(answer, Failure):
                return Failure(answer.failure())
        return Success(None)

    async def _serve(self, group: str, adapter: str) -> Result[None, str]:
        answer = await self.publish(group, adapter)
        return answer.map(lambda served: None).alt(lambda trouble: trouble.line)

    async def _start(self) -> Result[tuple[str, ...], str]:
        reached = await self.reached()
        if isinstance(reached, Failure):
            return Failure(reached.failure())
        needs, call = self._needs(), self.client.call
        purpose = f"starting vLLM for {needs.model_name}"
        asked = await call(purpose, "post", "/vllm/start", VllmStatus, body=needs)
        began = reminded = sound = time.monotonic()
        while True:
            if isinstance(asked, Failure):
                return Failure(asked.failure().line)
            status: VllmStatus = asked.unwrap()
            if status.status == "online":
                return Success(self._addresses(status))
            now, patience = time.monotonic(), self.client.patience
            sound = sound if status.status == "crashed" else now
            line = f"vLLM at {self.client.server.url} is {status.status}"
            line += status.error and f": {status.error}"
            if now - sound >= patience.crashed or now - began >= patience.online:
                return Failure(f"{line}; given up after {now - began:.0f} s, see its log there")
            if now - reminded >= patience.remind:
                reminded = now
                self.client.tell(f"{line}; waiting for it")
            await asyncio.sleep(min(patience.poll, 0.2 + (now - began) / 10))
            asked = await call("looking at vLLM", "get", "/vllm/status", VllmStatus)

    def _addresses(self, status: VllmStatus) -> tuple[str, ...]:
        host, _, _ = self.client.server.url.rpartition(":")
        ports = [replica.port for replica in status.replicas] or [self._place.vllm_port]
        return tuple(f"{host}:{port}/v1" for port in ports)

    def _needs(self) -> Needs:
        loaded = _highest_rank(self._place.run / "adapters")
        return needs_of(self._place.params, self.client.server.url, loaded)

    def _first(
        self, what: object, work: Callable[[], Coroutine[Any, Any, Result[T, str]]]
    ) -> Awaitable[Result[T, str]]:
        """What the work comes to; it is done only at the first call, whoever waits for it."""
        if what not in self._once:
            self._once[what] = asyncio.ensure_future(work())
        return asyncio.shield(self._once[what])


def hosts_of(
    params: HyperParameters,
    run: Path,
    environment: Mapping[str, str],
    *,
    patience: Timeouts = PATIENT,
    tell: Callable[[str], None] = lambda line: None,
) -> Result[dict[str, Host], str]:
    """The server of each agent (by name) whose model is at one; or which token is missing."""
    hosts: dict[str, Host] = {}
    found: dict[str, Host] = {}
    for agent in filter(is_hosted, params.agents):
        url = server_url(agent)
        token = TOKEN_VARIABLE if environment.get(TOKEN_VARIABLE, "").strip() else None
        variable = agent.api_key_variable or token
        server = endpoints_of(
            replace(agent, api_base_url=url, api_key_variable=variable), environment
        )
        if isinstance(server, Failure):
            return Failure(server.failure())
        if url not in hosts:
            client = Client(server.unwrap()[0], variable or TOKEN_VARIABLE, patience, tell)
            hosts[url] = Host(client, Place(run, params, agent.vllm_server_port))
        found[agent.name] = hosts[url]
    return Success(found)


def of_groups(params: HyperParameters, hosts: Mapping[str, Host]) -> dict[str, Host]:
    """The server of each group, from that of each agent."""
    return {agent_group(agent): hosts[agent.name] for agent in params.agents if agent.name in hosts}


def safe_name(text: str) -> str:
    """The text as a part of paths and of URLs; another text never has the same name.

    >>> safe_name("5f-verifier-0"), safe_name("5f-my group")
    ('5f-verifier-0', '5f-my-group-27cc7d7b')
    """
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", text).lstrip("._-")
    if safe == text and len(safe) <= LONGEST:
        return safe
    mark = blake2b(text.encode(), digest_size=4).hexdigest()
    return f"{safe[:LONGEST]}-{mark}".lstrip("-")


def _highest_rank(adapters: Path) -> int:
    """The highest rank of the LoRA adapters in a folder; 1 where there is none."""
    ranks = [1]
    for config in adapters.glob("*/adapter_config.json"):
        with suppress(msgspec.DecodeError):  # the server will say what is wrong with it
            ranks.append(msgspec.json.decode(config.read_bytes(), type=_Config).r)
    return max(ranks)


class _Config(msgspec.Struct):
    r: int


def _status(trouble: Trouble) -> int | None:
    return trouble.refusal.status if trouble.refusal else None


async def _now(result: T) -> T:
    return result
