"""The routes of the installed vLLM: those that nip-fn does not use are refused, key or no key."""

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nip_fn_adapters.serving.in_vllm.nip_fn_access import KEY_VARIABLE, VLLM_ROUTES, VllmAccess
from nip_fn_adapters.serving.in_vllm.nip_fn_access import __file__ as access_file

KEY = "secret"
# A websocket has no method.  Mounted applications have paths below theirs.
ROUTES = """
import json, sys
from vllm.entrypoints.openai.api_server import build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.tasks import GENERATION_TASKS, POOLING_TASKS
from vllm.utils.argparse_utils import FlexibleArgumentParser

options = ["--enable-lora", "--enable-tokenizer-info-endpoint"]
options += ["--middleware", "nip_fn_access.VllmAccess"]
args = make_arg_parser(FlexibleArgumentParser()).parse_args(options)
app = build_app(args, tuple(dict.fromkeys((*GENERATION_TASKS, *POOLING_TASKS))))
routes = [
    (method, route.path)
    for route in app.routes
    for method in getattr(route, "methods", None) or ("GET", "POST", "websocket")
]
outermost = app.user_middleware[0].cls.__name__
print(json.dumps({"routes": sorted(set(routes)), "outermost": outermost}))
"""


@pytest.fixture(scope="module", params=["0", "1"])
def installed(request: pytest.FixtureRequest, command: tuple[str, ...]) -> dict[str, Any]:
    """The routes of a vLLM that is not, or is, in development mode; and its first middleware."""
    chosen = {
        "VLLM_SERVER_DEV_MODE": request.param,
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        KEY_VARIABLE: KEY,
        "PYTHONPATH": str(Path(access_file).parent),
    }
    done = subprocess.run(
        (command[0], "-W", "ignore", "-c", ROUTES),
        env={**os.environ, **chosen},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert (["POST", "/collective_rpc"] in found["routes"]) == (request.param == "1")
    return found


def status(method: str, path: str, key: str | None) -> int:
    """The status with which a request is answered; 200 if it is let through to vLLM."""
    statuses: list[int] = []

    async def vllm(scope: Any, receive: Any, send: Any) -> None:
        statuses.append(200)

    async def send(message: dict[str, Any]) -> None:
        statuses.append(message.get("status") or message.get("code") or 0)

    headers = [(b"host", b"localhost")]
    headers += [(b"authorization", f"Bearer {key}".encode())] if key is not None else []
    kind = "websocket" if method == "websocket" else "http"
    scope = {"type": kind, "path": path, "headers": headers}
    scope |= {"method": method} if kind == "http" else {}
    asyncio.run(VllmAccess(vllm)(scope, None, send))
    return statuses[0]


def test_routes_that_nip_fn_does_not_use_are_refused_whatever_the_key(
    installed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    assert installed["outermost"] == "VllmAccess"
    routes = {(method, path) for method, path in installed["routes"]}
    assert len(routes) > 30
    used = {route for route in VLLM_ROUTES if route[1] not in ("/liveness", "/health")}
    for method, path in sorted(routes - VLLM_ROUTES):
        for key in (None, "wrong", KEY):
            assert status(method, path, key) in (404, 1008), (method, path)
            assert status(method, path + "/", key) in (404, 1008), (method, path)
    for method, path in sorted(used & routes):
        assert [status(method, path, key) for key in (None, "wrong", KEY)] == [401, 401, 200], path


def test_vllm_has_every_route_that_nip_fn_uses(installed: dict[str, Any]) -> None:
    routes = {(method, path) for method, path in installed["routes"]}
    missing = {path for _, path in VLLM_ROUTES - routes}
    in_development = ["POST", "/collective_rpc"] in installed["routes"]
    assert missing == ({"/liveness"} if in_development else {"/liveness", "/sleep", "/wake_up"})
