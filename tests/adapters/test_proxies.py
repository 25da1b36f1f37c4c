"""Servers behind a proxy of the environment, over real HTTP and TLS on loopback."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from nip_fn.params.agent import AgentParameters
from nip_fn.training.tuning import Job
from nip_fn_adapters.providers.api.batches import Times, batch_sampler
from nip_fn_adapters.providers.api.clients import Chats
from nip_fn_adapters.providers.api.endpoints import Endpoint, clear_text_warning, endpoints_of
from nip_fn_adapters.providers.api.sampler import ApiModel

from ..provider import Provider
from .proxying import Proxy, proxy, set_proxy, with_tls
from .sampling import ask, is_readable, make_request, make_sampler, patient
from .tuning import KEY, created, tune

REMEDY = "name another proxy there, or the server's host in NO_PROXY"


class Behind(NamedTuple):
    """A provider that is reached through TLS, and a proxy on the way to it."""

    provider: Provider
    url: str
    certificate: Path
    proxy: Proxy


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    with (
        Provider(key=KEY) as provider,
        with_tls(provider.port, folder) as (port, file),
        proxy() as on_the_way,
    ):
        yield Behind(provider, f"https://localhost:{port}/v1", file, on_the_way)


@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"])
def test_a_proxy_sees_neither_the_key_nor_any_header_of_chats_trainings_and_batches(
    behind: Behind, variable: str, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_proxy(monkeypatch, **{variable: behind.proxy.url})
    monkeypatch.setenv("SSL_CERT_FILE", str(behind.certificate))
    connected = len(behind.proxy.heads)
    served = ApiModel((Endpoint(behind.url, KEY),))
    quick = Times(gather=0.02, poll=0.05, settle=0.1)
    batches = batch_sampler(tmp_path, {"verifier": served}, times=quick)
    for sampler in (make_sampler(behind.url, key=KEY), batches):
        (answer,) = ask(sampler, make_request(variable))
        assert len(answer.unwrap()) == 2
    (tuned,) = tune(tmp_path, behind.url, job)
    assert tuned.unwrap().adapter
    assert len(created(behind.provider, tmp_path)) == 1
    heads = behind.proxy.heads[connected:]
    assert len(heads) >= 3
    for head in heads:
        assert head.startswith(b"CONNECT localhost:")
        assert b"authorization" not in head.lower()
        assert b"stainless" not in head.lower()
    assert KEY.encode() not in b"".join(behind.proxy.heads) + behind.proxy.received


def test_a_dead_proxy_is_named_and_nothing_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    with proxy() as dead:
        pass
    name, password = "somebody", "open-sesame"
    address = dead.url.replace("//", f"//{name}:{password}@")
    set_proxy(monkeypatch, HTTP_PROXY=address)
    sampler = make_sampler("http://models.invalid/v1", settings=patient(max_unreached=0.1))
    (answer,) = ask(sampler, make_request())
    said = str(answer.failure())
    assert f"the proxy does not lead to the server: {dead.url} (HTTP_PROXY): " in said
    assert said.endswith(REMEDY)
    assert is_readable(said)
    assert password not in said


def test_a_proxy_that_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def say(answer: bytes, url: str) -> str:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            set_proxy(monkeypatch, ALL_PROXY=f"http://127.0.0.1:{port}")
            sampler = make_sampler(url, settings=patient(max_unreached=0.1, max_attempts=1))
            return str((await sampler(make_request())).failure())

    refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"
    tunnelled = asyncio.run(say(refusal, "https://models.invalid/v1"))
    assert "(ALL_PROXY): 407 Proxy Authentication Required; " in tunnelled
    plain = asyncio.run(say(refusal, "http://models.invalid/v1"))
    assert "the proxy does not lead to the server (407)" in plain
    for said in (tunnelled, plain):
        assert said.endswith(REMEDY)


@pytest.mark.parametrize(
    "address", ["socks5://u:open-sesame@127.0.0.1:1080", "socks4://p:1", "http://"]
)
def test_a_proxy_of_another_kind_is_refused_before_anything_is_sent(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_proxy(monkeypatch, ALL_PROXY=address)
    agent = AgentParameters(model_provider="OpenAI")
    said = str(endpoints_of(agent, {"OPENAI_API_KEY": KEY}).failure())
    assert "only HTTP proxies can be used" in said
    assert "ALL_PROXY, or add api.openai.com to NO_PROXY" in said
    assert "sesame" not in said
    monkeypatch.setenv("NO_PROXY", "api.openai.com")
    assert endpoints_of(agent, {"OPENAI_API_KEY": KEY}).unwrap()


def test_a_key_that_can_be_read_on_its_way_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_proxy(monkeypatch)

    async def told(url: str) -> list[str]:
        lines: list[str] = []
        await Chats(Endpoint(url, KEY), timeout=1.0, connections=1, tell=lines.append).aclose()
        return lines

    (line,) = asyncio.run(told("http://models.invalid/v1"))
    assert "the API key is sent to http://models.invalid/v1 unencrypted" in line
    for private in ("https://models.invalid/v1", "http://127.0.0.1:1/v1", "http://[::1]:1/v1"):
        assert asyncio.run(told(private)) == []
    assert clear_text_warning(Endpoint("http://models.invalid/v1", "EMPTY")) == ""
    monkeypatch.setenv("HTTP_PROXY", "http://u:open-sesame@proxy.invalid:3128")
    proxied = clear_text_warning(Endpoint("http://127.0.0.1:1/v1", KEY))
    assert "through the proxy http://proxy.invalid:3128 (HTTP_PROXY)" in proxied
