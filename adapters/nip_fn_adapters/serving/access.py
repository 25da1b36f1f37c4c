"""Access control of the server: a token, or this machine only."""

import json
from hmac import compare_digest
from typing import Any
from urllib.parse import urlsplit

from nip_fn_adapters.serving.settings import is_loopback

OPEN = frozenset({"/health", "/version"})  # to everyone


class Access:
    """ASGI middleware that refuses requests from clients that may not use the server.

    With a token, a request must show it.  Without one, its Host header must name this machine and
    so must its Origin header, if it has one.  Binding to the loopback interface alone would not do:
    a web page from elsewhere could make a browser on this machine send requests to it, under a name
    that resolves to 127.0.0.1 (DNS rebinding).
    """

    def __init__(self, app: Any, token: str | None) -> None:
        """Let requests through to `app`; `token`: None if it is not asked for."""
        self._app, self._token = app, token

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, or let it through."""
        if scope["type"] == "http" and scope["path"] not in OPEN:
            refusal = self._refusal(dict(scope["headers"]))
            if refusal is not None:
                await _refuse(send, *refusal)
                return
        await self._app(scope, receive, send)

    def _refusal(self, headers: dict[bytes, bytes]) -> tuple[int, str] | None:
        if self._token is not None:
            shown = headers.get(b"authorization", b"")
            # In constant time: the time of a refusal must not tell how much of a guess is right.
            if compare_digest(shown, f"Bearer {self._token}".encode()):
                return None
            return 401, "the request must show the server's token, as Authorization: Bearer TOKEN"
        addresses = [b"//" + headers.get(b"host", b"")]
        addresses += [headers[b"origin"]] if b"origin" in headers else []
        if all(_is_here(address.decode("latin-1")) for address in addresses):
            return None
        return 403, "without a token, the server answers requests to localhost only"


def _is_here(address: str) -> bool:
    try:
        return is_loopback(urlsplit(address).hostname or "")
    except ValueError:
        return False


async def _refuse(send: Any, status: int, reason: str) -> None:
    headers = [(b"content-type", b"application/json")]
    headers += [(b"www-authenticate", b"Bearer")] if status == 401 else []
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"detail": reason}).encode()})
