"""Who may talk to the server."""

import json
from hmac import compare_digest
from typing import Any
from urllib.parse import urlsplit

from nip_fn_adapters.serving.settings import is_loopback

OPEN = frozenset({"/health", "/version"})  # to everyone


class Access:
    """An ASGI application in front of another, which only gets requests that may be answered.

    With a token, those that show it.  Without one, those that name this machine as their host and,
    where they come from a web page, as the page's: a page elsewhere cannot make a browser on this
    machine talk to the server, whatever its name resolves to.
    """

    def __init__(self, app: Any, token: str | None) -> None:
        """Guard `app`."""
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
            if compare_digest(shown, f"Bearer {self._token}".encode()):
                return None
            return 401, "the server's token is wanted, as Authorization: Bearer TOKEN"
        places = [b"//" + headers.get(b"host", b"")]
        places += [headers[b"origin"]] if b"origin" in headers else []
        if all(_is_here(place.decode("latin-1")) for place in places):
            return None
        return 403, "without a token, the server answers to localhost alone"


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
