"""A fake vLLM: the same options and HTTP interface, and misfortunes to order.

    python tests/vllm/fake.py --fake-fail-starts 2 ... [options of vLLM's OpenAI server]

As with the real one, an engine process goes on when the server is killed.  What it was started with
is added to FAKE_FOLDER/PORT.jsonl; the number of its line is that of the start.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

END = 2  # the token of END_TEXT; other tokens are characters
END_TEXT = "<|end|>"
OPEN = ("/health",)  # all else asks for the key, as nip-fn's middleware does
LENGTH = 96  # tokens that the model holds
ENGINE = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def tokens_of(text: str) -> list[int]:
    return [END if part is None else ord(part) for part in _parts(text)]


def _parts(text: str) -> list[str | None]:
    if END_TEXT not in text:
        return list(text)
    before, after = text.split(END_TEXT, 1)
    return [*before, None, *_parts(after)]


def chat_tokens(messages: list[dict[str, str]]) -> list[int]:
    said = [f"{message['role'][0]}:{message['content']}{END_TEXT}" for message in messages]
    return tokens_of("".join(said) + "a:")


def log_probability(model: str, before: list[int], token: int) -> float:
    """Of a token after those before it, under a model that is known by its name alone."""
    return -1.0 - (sum(map(ord, model)) + 7 * token + sum(before)) % 13 / 4


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    fakes = parser.add_argument_group()
    fakes.add_argument("--fake-folder", type=Path, required=True)
    fakes.add_argument("--fake-fail-starts", type=int, default=0)  # that many starts fail
    fakes.add_argument("--fake-never", action="store_true")  # it never listens
    fakes.add_argument("--fake-hold", action="store_true")  # it listens once FOLDER/go is there
    fakes.add_argument("--fake-deaf", action="store_true")  # it does not obey SIGTERM
    fakes.add_argument("--fake-crash-at", default="")  # an adapter that ends the process
    fakes.add_argument("--fake-skew", type=int)  # a port on which all scores are lower by 1
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--max-model-len", type=int, default=LENGTH)
    parser.add_argument("--lora-modules", nargs="*", default=[])
    return parser.parse_known_args()[0]


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, chosen: argparse.Namespace) -> None:
        super().__init__((chosen.host, chosen.port), Handler)
        self.chosen = chosen
        self.loras = dict(module.split("=", 1) for module in chosen.lora_modules)
        self.key = os.environ["VLLM_API_KEY"]
        self.is_hanging = self.engine_is_hanging = self.is_sleeping = False
        self.in_development = os.environ.get("VLLM_SERVER_DEV_MODE") == "1"


class Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or "{}"))

    def _answer(self, body: dict[str, Any]) -> None:
        server = self.server
        while server.is_hanging or (server.engine_is_hanging and self.path != "/health"):
            time.sleep(0.05)
        try:
            status, answer = 200, self._do(self.path.split("?")[0], body)
        except Refused as refused:
            status, answer = refused.status, {"error": {"message": str(refused)}}
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _do(self, path: str, body: dict[str, Any]) -> Any:
        server = self.server
        key = self.headers["Authorization"]
        if path not in OPEN and key != f"Bearer {server.key}":
            raise Refused(401, "Unauthorized")
        if path in ("/sleep", "/wake_up", "/is_sleeping") and not server.in_development:
            raise Refused(404, "Not Found")
        match path:
            case "/health":
                return {}
            case "/liveness":
                return {"is_sleeping": server.is_sleeping, "dtype": "float32"}
            case "/v1/models":
                return {"data": [{"id": name} for name in (self._base, *server.loras)]}
            case "/v1/load_lora_adapter":
                return self._load(body["lora_name"], body["lora_path"])
            case "/v1/unload_lora_adapter":
                if server.loras.pop(body["lora_name"], None) is None:
                    raise Refused(404, f"The lora adapter '{body['lora_name']}' cannot be found.")
                return "Success"
            case "/tokenize":
                return self._tokenize(body)
            case "/v1/completions":
                return self._complete(body)
            case "/sleep" | "/wake_up":
                server.is_sleeping = path == "/sleep"
                return {}
            case "/is_sleeping":
                return {"is_sleeping": server.is_sleeping}
            case "/fake/hang":
                server.engine_is_hanging = self.path.endswith("?engine")
                server.is_hanging = not server.engine_is_hanging
                return {}
        raise Refused(404, "Not Found")

    @property
    def _base(self) -> str:
        return str(self.server.chosen.served_model_name)

    def _load(self, name: str, folder: str) -> str:
        if name == self.server.chosen.fake_crash_at:
            os._exit(1)
        if name in self.server.loras:
            raise Refused(400, f"The lora adapter '{name}' has already been loaded.")
        if not (Path(folder) / "adapter_config.json").is_file():
            raise Refused(404, f"Loading lora {name} failed: No adapter found for {folder}")
        self.server.loras[name] = folder
        return "Success"

    def _check_model(self, body: dict[str, Any]) -> str:
        if body["model"] not in (self._base, *self.server.loras):
            raise Refused(404, f"The model `{body['model']}` does not exist.")
        return str(body["model"])

    def _tokenize(self, body: dict[str, Any]) -> Any:
        self._check_model(body)
        chat = body.get("messages")
        tokens = tokens_of(body["prompt"]) if chat is None else chat_tokens(chat)
        return {"tokens": tokens, "max_model_len": self.server.chosen.max_model_len}

    def _complete(self, body: dict[str, Any]) -> Any:
        model, prompt, [drawn] = self._check_model(body), body["prompt"], body["allowed_token_ids"]
        if len(prompt) + body["max_tokens"] > self.server.chosen.max_model_len:
            raise Refused(400, f"This model holds {self.server.chosen.max_model_len} tokens.")
        lower = self.server.chosen.fake_skew == self.server.chosen.port
        score = log_probability(model, prompt, drawn) - lower
        return {"choices": [{"logprobs": {"token_logprobs": [score]}}]}


def main() -> None:
    chosen = options()
    if chosen.fake_deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    names = ("VLLM_", "CUDA_", "HF_", "DO_NOT_TRACK")
    environment = {name: value for name, value in os.environ.items() if name.startswith(names)}
    engine = subprocess.Popen([sys.executable, "-c", ENGINE])
    started = {
        "pids": [os.getpid(), engine.pid],
        "arguments": sys.argv[1:],
        "environment": environment,
    }
    record = chosen.fake_folder / f"{chosen.port}.jsonl"
    with record.open("a", encoding="utf-8") as file:
        file.write(json.dumps(started) + "\n")
    if len(record.read_text("utf-8").splitlines()) <= chosen.fake_fail_starts:
        before = "(EngineCore pid=1) ERROR 11-21 [core.py:1] "
        print(f"{before}Traceback (most recent call last):", flush=True)
        print(f"{before}ValueError: no memory is left", flush=True)
        raise RuntimeError("Engine core initialization failed. See root cause above.")
    while chosen.fake_never or (chosen.fake_hold and not (chosen.fake_folder / "go").exists()):
        time.sleep(0.05)
    server = Server(chosen)
    threading.Thread(target=server.serve_forever).start()
    print(f"listening on {chosen.port}", flush=True)


if __name__ == "__main__":
    main()
