"""Access control, of the server and of its vLLM: a key, this machine only, or both.

vLLM imports this file where there is no nip-fn: it needs nothing but the standard library.
"""

import ipaddress
import json
import os
from hmac import compare_digest
from typing import Any
from urllib.parse import urlsplit

OPEN = frozenset({"/health", "/version"})  # to everyone
KEY_VARIABLE = "VLLM_API_KEY"
LOCAL_VARIABLE = "NIP_FN_LOCAL_ONLY"  # set if vLLM answers this machine alone
LIVENESS = "/liveness"
# All of vLLM's routes that are answered: what nip-fn asks for, and the list of models.  The others
# replace weights, call functions of the engine, or let a client's image be fetched from an address;
# each version of vLLM brings new ones, so they are not listed as forbidden.
VLLM_ROUTES = frozenset(
    {
        ("GET", "/health"),
        ("GET", LIVENESS),
        ("GET", "/v1/models"),
        ("POST", "/tokenize"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/completions"),
        ("POST", "/v1/load_lora_adapter"),
        ("POST", "/v1/unload_lora_adapter"),
        ("POST", "/sleep"),  # it and the next one: only of a vLLM that no other machine reaches
        ("POST", "/wake_up"),
    }
)


class Access:
    """ASGI middleware that refuses requests from clients that may not use the server.

    With a key, a request must show it.  If only this machine is answered, its Host header must name
    this machine and so must its Origin header, if it has one.  Binding to the loopback interface
    alone would not do: a web page from elsewhere could make a browser on this machine send requests
    to it, under a name that resolves to 127.0.0.1 (DNS rebinding).
    """

    def __init__(self, app: Any, key: str | None, *, local_only: bool) -> None:
        """Let requests through to `app`; `key`: None if it is not asked for."""
        self._app, self._key, self._local_only = app, key, local_only

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, or let it through."""
        if scope["type"] != "lifespan" and scope["path"] not in OPEN:
            refusal = self._refusal(dict(scope["headers"]))
            if refusal is not None:
                await _refuse(scope, send, *refusal)
                return
        await self._app(scope, receive, send)

    def _refusal(self, headers: dict[bytes, bytes]) -> tuple[int, str] | None:
        shown = headers.get(b"authorization", b"")
        # In constant time: the time of a refusal must not tell how much of a guess is right.
        if self._key is not None and not compare_digest(shown, f"Bearer {self._key}".encode()):
            return 401, "the request must show the server's token, as Authorization: Bearer TOKEN"
        addresses = [b"//" + headers.get(b"host", b"")]
        addresses += [headers[b"origin"]] if b"origin" in headers else []
        if self._local_only and not all(
            _is_here(address.decode("latin-1")) for address in addresses
        ):
            return 403, "without a token, the server answers requests to localhost only"
        return None


class VllmAccess:
    """The middleware of vLLM, whose own key guards no more than /v1 and a few other paths.

    It lets `VLLM_ROUTES` through to clients with the key, and answers that no other path exists.
    It also answers `LIVENESS`, through the engine: vLLM's /health is answered by the process that
    serves HTTP, however long its engine has been hanging.
    """

    def __init__(self, app: Any) -> None:
        """Let requests with the key through to `app`."""
        self._app = app
        key, local_only = os.environ[KEY_VARIABLE], LOCAL_VARIABLE in os.environ
        self._access = Access(self._answer, key, local_only=local_only)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, or let it through."""
        route = scope.get("method", scope["type"]), scope.get("path")
        if scope["type"] != "lifespan" and route not in VLLM_ROUTES:
            await _refuse(scope, send, 404, "nip-fn lets no request through to this path of vLLM")
            return
        await self._access(scope, receive, send)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != LIVENESS:
            await self._app(scope, receive, send)
            return
        # A question that costs the engine nothing, and that it answers between two steps.
        state = scope["app"].state
        is_sleeping = await state.engine_client.is_sleeping()
        model = state.vllm_config.model_config
        dtype = model.quantization or str(model.dtype).removeprefix("torch.")
        await _send(send, 200, {"is_sleeping": is_sleeping, "dtype": dtype})


def is_loopback(host: str) -> bool:
    """True if only programs on this machine can mean that host."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _is_here(address: str) -> bool:
    try:
        return is_loopback(urlsplit(address).hostname or "")
    except ValueError:
        return False


async def _refuse(scope: Any, send: Any, status: int, reason: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": reason})
        return
    await _send(send, status, {"detail": reason})


async def _send(send: Any, status: int, body: dict[str, Any]) -> None:
    headers = [(b"content-type", b"application/json")]
    headers += [(b"www-authenticate", b"Bearer")] if status == 401 else []
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})
