"""A language-model server in one session of a run: each of its services is made ready once."""

import asyncio
import re
import shlex
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar, get_args
from urllib.parse import quote

import msgspec
from msgspec.structs import replace
from returns.pipeline import is_successful
from returns.result import Failure, Result, Success

from nip_fn.config.hosting import is_hosted, server_url
from nip_fn.errors import Problem, collect
from nip_fn.params.agent import AgentParameters, agent_group
from nip_fn.params.run import HyperParameters
from nip_fn.training.canary import Score
from nip_fn.training.tuning import Probe
from nip_fn_adapters import clock
from nip_fn_adapters.durable import make_folder, replace_file, sync_path
from nip_fn_adapters.providers.api.endpoints import Endpoint, endpoints_of
from nip_fn_adapters.providers.api.ledger import identity
from nip_fn_adapters.providers.selfhosted.client import DEFAULT_TIMEOUTS, Client, Timeouts
from nip_fn_adapters.providers.selfhosted.needs import needs_of
from nip_fn_adapters.results import bind_async
from nip_fn_adapters.serving.wire import (
    NAME_PATTERN,
    TOKEN_VARIABLE,
    AdapterFile,
    AdapterInfo,
    Needs,
    ProbeText,
    PublishAdapter,
    Refusal,
    ServedAdapter,
    VllmStatus,
)

T = TypeVar("T")

UNKNOWN = 404  # the status of a refusal if the server lacks an adapter
ANY_PORT = AgentParameters().vllm_server_port
MAX_NAME = 150  # characters: the server appends to the names that it is given


class Host:
    """One server, for all groups whose models are there."""

    def __init__(self, client: Client, run: Path, params: HyperParameters, vllm_port: int) -> None:
        """Ask nothing yet.

        Args:
            client: The server's.
            run: The run's folder.
            params: The run's parameters.
            vllm_port: The port of the server's vLLM; `ANY_PORT` for the one that the server names.
        """
        self.client = client
        self.run, self._params, self._vllm_port = run, params, vllm_port
        self._once: dict[object, asyncio.Task[Any]] = {}
        self._published: set[tuple[str, str]] = set()  # (group, adapter), in this session

    def name(self, suffix: str) -> str:
        """The run's own name for something at the server: of a group, or of a job."""
        # With the identity of the run, since other runs at the server have groups and jobs of the
        # same names.
        return safe_name(f"{identity(self.run)}-{suffix}")

    def drain(self) -> None:
        """Cancel what is being waited for."""
        for task in self._once.values():
            task.cancel()

    def reached(self) -> Awaitable[Result[None, Problem]]:
        """Success once the server answers and has a version that fits."""
        start = shlex.join(("nip-fn", "serve", "--model", self._needs().model_name))
        return self._first("reached", partial(self.client.wait_for_ready, start))

    def online(self) -> Awaitable[Result[tuple[Endpoint, ...], Problem]]:
        """The replicas of the server's vLLM, once all of them answer."""
        return self._first("online", self._start)

    async def served(self, group: str, adapter: str) -> Result[None, Problem]:
        """Success once the adapter answers for the group, as in an earlier session it may have."""
        if (group, adapter) in self._published:
            return Success(None)
        served = await self._first((group, adapter), partial(self.publish, group, adapter))
        return served.map(lambda answer: None)

    async def publish(
        self,
        group: str,
        adapter: str,
        probes: tuple[Probe, ...] = (),
        expected: tuple[Score, ...] = (),
    ) -> Result[ServedAdapter, Problem]:
        """Serve an adapter for a group, in place of its last; it is sent if the server lacks it."""
        texts = tuple(ProbeText(probe.chat, probe.reply) for probe in probes)
        call: Callable[[], Awaitable[Result[ServedAdapter, Problem]]] = partial(
            self.client.call,
            f"publishing {adapter}",
            "post",
            f"/adapters/{quote(adapter, safe='')}/publish",
            ServedAdapter,
            body=PublishAdapter(self.name(group), texts, expected),
            timeout=self.client.timeouts.publish,
        )
        # Not sent beforehand: an adapter that the server has trained itself is there already.
        answer = await call()
        if answer.swap().map(_is_unknown).value_or(False):
            answer = await bind_async(await self.send((adapter,)), lambda nothing: call())
        if is_successful(answer):
            self._published.add((group, adapter))
        return answer

    async def send(self, adapters: tuple[str, ...]) -> Result[None, Problem]:
        """Give the server those of the adapters that it lacks."""

        async def send_missing(listed: list[AdapterInfo]) -> Result[None, Problem]:
            present = {info.name for info in listed}
            sent = [await self._upload(adapter) for adapter in adapters if adapter not in present]
            return collect(sent).map(lambda nothing: None)

        purpose = "listing adapters"
        listed = await self.client.call(purpose, "get", "/adapters", list[AdapterInfo])
        return await bind_async(listed, send_missing)

    async def fetch(self, adapter: str) -> Result[None, Problem]:
        """Copy an adapter into the run's folder: a run that is moved goes on at any server."""
        if not re.fullmatch(NAME_PATTERN, adapter):
            return Failure(Problem(f"{self.client.server.url} names an adapter {adapter!r}"))
        folder = self.run / "adapters" / adapter
        if folder.is_dir():
            return Success(None)
        unfinished = folder.with_name(f".{adapter}")
        make_folder(unfinished)
        for file in get_args(AdapterFile):
            path, limit = f"/adapters/{adapter}/{file}", self.client.timeouts.publish
            got = await self.client.call(f"{file} of {adapter}", "get", path, bytes, timeout=limit)
            if not is_successful(got):
                return got.map(lambda content: None)
            await asyncio.to_thread(replace_file, unfinished / file, got.unwrap())
        # It appears by a rename, once both files are on the disk.
        unfinished.rename(folder)
        sync_path(folder.parent)
        return Success(None)

    async def _upload(self, adapter: str) -> Result[None, Problem]:
        folder, url = self.run / "adapters" / adapter, self.client.server.url
        if not folder.is_dir():
            return Failure(Problem(f"{url} has no adapter {adapter}, nor has {folder.parent}"))
        missing = [file for file in get_args(AdapterFile) if not (folder / file).is_file()]
        if missing:
            return Failure(Problem(f"{folder} has no {missing[0]}: it is no LoRA adapter"))
        for file in get_args(AdapterFile):
            sent = await self.client.call(
                f"{file} of {adapter}",
                "put",
                f"/adapters/{quote(adapter, safe='')}/{file}",
                object,
                body=folder / file,
                timeout=self.client.timeouts.publish,
            )
            if not is_successful(sent):
                break
        return sent.map(lambda body: None)

    async def _start(self) -> Result[tuple[Endpoint, ...], Problem]:
        needs = self._needs()
        purpose = f"starting vLLM for {needs.model_name}"
        start = partial(self.client.call, purpose, "post", "/vllm/start", VllmStatus, body=needs)
        started = await bind_async(await self.reached(), lambda nothing: start())
        return await bind_async(started, self._until_online)

    async def _until_online(self, status: VllmStatus) -> Result[tuple[Endpoint, ...], Problem]:
        """The replicas of vLLM, once its status is online."""
        timeouts = self.client.timeouts
        began = reminded = sound = clock.monotonic()
        while status.status != "online":
            now = clock.monotonic()
            # The server restarts a vLLM that has crashed; only one that stays crashed is given up.
            sound = sound if status.status == "crashed" else now
            line = f"vLLM at {self.client.server.url}: {status.status.replace('_', ' ')}"
            line += status.error and f", {status.error}"
            if now - sound >= timeouts.crashed or now - began >= timeouts.online:
                message = f"{line}; given up after {now - began:.0f} s"
                return Failure(Problem(message, remedy="see its log there"))
            if now - reminded >= timeouts.remind:
                reminded = now
                self.client.tell(f"{line}; waiting for it")
            await asyncio.sleep(min(timeouts.poll, 0.2 + (now - began) / 10))
            looked = await self.client.call("looking at vLLM", "get", "/vllm/status", VllmStatus)
            if not is_successful(looked):
                return looked.map(self._endpoints)
            status = looked.unwrap()
        return Success(self._endpoints(status))

    def _endpoints(self, status: VllmStatus) -> tuple[Endpoint, ...]:
        # The host is the one by which this machine reaches the server; the server itself may only
        # know that it listens on 0.0.0.0.
        host, _, _ = self.client.server.url.rpartition(":")
        ports = [replica.port for replica in status.replicas] or [self._vllm_port]
        # Written, because a tunnel or a proxy leads to vLLM by another port.
        moved = 0 if self._vllm_port == ANY_PORT else self._vllm_port - min(ports)
        ports = [port + moved for port in ports]
        key = status.key or self.client.server.key
        return tuple(Endpoint(f"{host}:{port}/v1", key) for port in ports)

    def _needs(self) -> Needs:
        return needs_at(self.client.server.url, self._params, self.run)

    def _first(
        self, name: object, work: Callable[[], Coroutine[Any, Any, Result[T, Problem]]]
    ) -> Awaitable[Result[T, Problem]]:
        """The result of the work of that name, which is done only at the first call."""
        if name not in self._once:
            self._once[name] = asyncio.ensure_future(work())
        # Shielded: a waiter that is cancelled must not cancel the work for the others.
        return asyncio.shield(self._once[name])


def hosts_of(
    params: HyperParameters,
    run: Path,
    environment: Mapping[str, str],
    *,
    timeouts: Timeouts = DEFAULT_TIMEOUTS,
    tell: Callable[[str], None] = lambda line: None,
) -> Result[dict[str, Host], Problem]:
    """The server of each agent (by name) whose model is at one.

    Args:
        params: The run's parameters.
        run: The run's folder.
        environment: The variables in which tokens are looked up.
        timeouts: The limits on waiting.
        tell: Prints a line about what delays the run.

    Returns:
        A failure if a token is missing.
    """
    hosts: dict[str, Host] = {}  # by address

    def host_of(agent: AgentParameters) -> Result[tuple[str, Host], Problem]:
        url = server_url(agent)
        token = TOKEN_VARIABLE if environment.get(TOKEN_VARIABLE, "").strip() else None
        variable = agent.api_key_variable or token
        at_server = replace(agent, api_base_url=url, api_key_variable=variable)

        def make(endpoints: tuple[Endpoint, ...]) -> tuple[str, Host]:
            if url not in hosts:
                client = Client(endpoints[0], variable or TOKEN_VARIABLE, timeouts, tell)
                hosts[url] = Host(client, run, params, agent.vllm_server_port)
            return agent.name, hosts[url]

        return endpoints_of(at_server, environment).map(make)

    return collect(map(host_of, filter(is_hosted, params.agents))).map(dict)


def needs_at(url: str, params: HyperParameters, run: Path) -> Needs:
    """The vLLM settings that a run in this folder needs from the server at `url`."""
    return needs_of(params, url, _highest_rank(run / "adapters"))


def of_groups(params: HyperParameters, hosts: Mapping[str, Host]) -> dict[str, Host]:
    """The server of each group (by name), from that of each agent."""
    return {agent_group(agent): hosts[agent.name] for agent in params.agents if agent.name in hosts}


def safe_name(text: str) -> str:
    """The text as a part of paths and of URLs; no two texts have the same name.

    >>> safe_name("5f-verifier-0"), safe_name("5f-my group")
    ('5f-verifier-0', '5f-my-group-27cc7d7b')
    """
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", text).lstrip("._-")
    if safe == text and len(safe) <= MAX_NAME:
        return safe
    mark = blake2b(text.encode(), digest_size=4).hexdigest()
    return f"{safe[:MAX_NAME]}-{mark}".lstrip("-")


def _highest_rank(adapters: Path) -> int:
    """The highest rank of the LoRA adapters in a folder; 1 if there is none."""
    ranks = [1]
    for config in adapters.glob("*/adapter_config.json"):
        with suppress(msgspec.DecodeError):  # the server will refuse it, and say why
            ranks.append(msgspec.json.decode(config.read_bytes(), type=_Config).r)
    return max(ranks)


class _Config(msgspec.Struct):
    r: int


def _is_unknown(problem: Problem) -> bool:
    return isinstance(problem, Refusal) and problem.status == UNKNOWN
