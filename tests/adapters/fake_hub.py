"""A fake Hugging Face hub on loopback: real `huggingface_hub` talks to it."""

import base64
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """The contents of the hub, and the requests that it got."""

    def __init__(self) -> None:
        self.models: dict[str, dict[str, bytes]] = {}  # by id, then by path
        self.gated: set[str] = set()
        self.refuses_pushes = False
        self.asked: list[str] = []  # METHOD PATH, in their order
        self.tokens: set[str | None] = set()
        self.created: list[dict[str, Any]] = []
        self.url = ""

    def put(self, name: str, folder: Path) -> None:
        """Hold the files of a folder as a model."""
        files = (path for path in folder.rglob("*") if path.is_file())
        self.models[name] = {str(p.relative_to(folder)): p.read_bytes() for p in files}

    def environment(self, home: Path, **variables: str) -> dict[str, str]:
        """The environment of a process that uses this hub, with a cache of its own."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
        return {**kept, "HF_ENDPOINT": self.url, "HF_HOME": str(home), **variables}


@contextmanager
def fake_hub() -> Iterator[Hub]:
    """A hub that serves until the end of the block."""
    hub = Hub()

    class Handler(_Handler):
        held = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    held: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self._note()
        parts = self.path.partition("?")[0].strip("/").split("/")
        kind, parts = (parts[1], parts[2:]) if parts[0] == "api" else ("", parts)
        name, rest = "/".join(parts[:2]), parts[2:]
        if name not in self.held.models:
            return self._say(404, {"error": "not found"}, {"X-Error-Code": "RepoNotFound"})
        if name in self.held.gated:
            return self._say(403, {"error": "gated"}, {"X-Error-Code": "GatedRepo"})
        files = self.held.models[name]
        self.held.tokens.add(self.headers.get("Authorization"))
        if kind and rest[0] == "tree":
            return self._say(200, [_entry(path, data) for path, data in files.items()])
        if kind:
            return self._say(200, {"id": name, "sha": COMMIT, "siblings": []})
        data = files["/".join(rest[2:])]
        return self._send(200, data, {"ETag": f'"{_oid(data)}"', "X-Repo-Commit": COMMIT})

    def do_POST(self) -> None:
        self._note()
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.held.refuses_pushes:
            return self._say(403, {"error": "you may not"})
        if self.path.endswith("validate-yaml"):
            assert json.loads(body)["content"].startswith("---\n")
            return self._say(200, {"errors": [], "warnings": []})
        if self.path.endswith("repos/create"):
            self.held.created.append(json.loads(body))
            return self._say(200, {"url": f"{self.held.url}/me/adapter", "id": "me/adapter"})
        name = "/".join(self.path.split("/")[3:5])
        if "preupload" in self.path:
            files = json.loads(body)["files"]
            modes = [{"path": f["path"], "uploadMode": "regular"} for f in files]
            return self._say(200, {"files": [{**m, "shouldIgnore": False} for m in modes]})
        entries = [json.loads(line) for line in body.splitlines()]
        self.held.models[name] = {
            entry["value"]["path"]: base64.b64decode(entry["value"]["content"])
            for entry in entries
            if entry["key"] == "file"
        }
        url = f"{self.held.url}/{name}/commit/{COMMIT}"
        return self._say(200, {"success": True, "commitOid": COMMIT, "commitUrl": url})

    def _note(self) -> None:
        self.held.asked.append(f"{self.command} {self.path}")

    def _say(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        self._send(status, json.dumps(body).encode(), headers or {})

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _entry(path: str, data: bytes) -> dict[str, Any]:
    return {"type": "file", "path": path, "size": len(data), "oid": _oid(data)}


def _oid(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()
