"""The report of a run that goes on, served to browsers on this machine."""

import asyncio
import socket
from collections.abc import Callable

from litestar import Litestar, MediaType, Response, get

from nip_fn.export.page import policy
from nip_fn_adapters.recording.following import Live
from nip_fn_adapters.serving.in_vllm.nip_fn_access import Access
from nip_fn_adapters.serving.running import serve

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": f"{policy(live=True)}; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}


def make_viewer(live: Live) -> Litestar:
    """The application: the page at `/`, and its version at `/events`."""

    @get("/", sync_to_thread=True, media_type=MediaType.HTML)
    def page() -> Response[str]:
        return Response(live.page(), headers=HEADERS)

    @get("/events", sync_to_thread=True, media_type=MediaType.TEXT)
    def events() -> Response[str]:
        return Response(live.events(), headers=HEADERS)

    return Litestar([page, events], openapi_config=None, logging_config=None)


def serve_page(live: Live, bound: socket.socket, ready: Callable[[int], None]) -> None:
    """Serve until SIGTERM or SIGINT; `ready` is called with the port once requests are answered."""
    asyncio.run(serve(Access(make_viewer(live), None, local_only=True), bound, ready))
