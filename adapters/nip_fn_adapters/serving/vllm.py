"""The requests that the server sends to one vLLM, through its HTTP interface."""

import re
from collections.abc import Sequence
from contextlib import aclosing
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec
from returns.pipeline import is_successful
from returns.result import Failure, Result, Success

from nip_fn.errors import Problem, collect, one_line
from nip_fn.game.chat import plain
from nip_fn.training.canary import PROBE_TOKENS
from nip_fn_adapters.decoding import UNREADABLE
from nip_fn_adapters.pool import in_order
from nip_fn_adapters.results import bind_async
from nip_fn_adapters.serving.in_vllm.nip_fn_access import LIVENESS
from nip_fn_adapters.serving.wire import ModelShape, ProbeText, Refusal, VllmState

HEALTH_SECONDS = 2.0  # for an answer to a request for vLLM's health
CONCURRENCY = 32  # tokens that are scored at the same time

T = TypeVar("T")

_OF_WORKER = re.compile(r"Worker failed with error '(.*)', please check the stack trace", re.DOTALL)


class _Tokens(msgspec.Struct):
    tokens: list[int]
    max_model_len: int


class _LogProbs(msgspec.Struct):
    token_logprobs: list[float]


class _Choice(msgspec.Struct):
    logprobs: _LogProbs


class _Completion(msgspec.Struct):
    choices: list[_Choice]


class _Error(msgspec.Struct):
    message: str


class _Refused(msgspec.Struct):
    error: _Error


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class _Live(msgspec.Struct):
    dtype: str


class Scored(NamedTuple):
    """The log-probabilities of the probes' tokens, in nats, one probe after the other.

    dtype: the numbers of vLLM's model: torch's name, or that of a quantization.
    """

    scores: tuple[float, ...]
    dtype: str


class Vllm(NamedTuple):
    """The client of one vLLM.

    A refusal has the status 503 if vLLM does not answer, 502 if its answer makes no sense or it
    cannot do what was asked, and 422 if the adapter is at fault; its words are vLLM's own.
    """

    http: aiohttp.ClientSession
    url: str
    limit: float = 300.0  # seconds for an answer

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"vLLM on port {urlsplit(self.url).port}"

    async def health(self) -> tuple[VllmState, str]:
        """Its state as far as its port tells, and why it is not online; a sleeping one answers."""
        limit = aiohttp.ClientTimeout(total=HEALTH_SECONDS)
        try:
            async with self.http.get(f"{self.url}/health", timeout=limit) as answer:
                if answer.status == 200:
                    return "online", ""
                state: VllmState = "server_error" if answer.status >= 500 else "other_error"
                return state, f"it answers with status {answer.status}"
        except TimeoutError:
            return "timeout", f"it does not answer within {HEALTH_SECONDS:g} s"
        except aiohttp.ClientConnectorError:
            return "not_accepting_connections", "its port accepts no connections"
        except aiohttp.ClientError as error:
            return "other_error", one_line(error)

    async def is_alive(self, limit: float) -> bool | None:
        """True if its engine answers; None if it hangs: no answer, and no end, within `limit` s."""
        try:
            timeout = aiohttp.ClientTimeout(total=limit)
            async with self.http.get(f"{self.url}{LIVENESS}", timeout=timeout) as answer:
                return answer.status == 200
        except TimeoutError:
            return None
        except aiohttp.ClientError:
            return False

    async def models(self) -> Result[frozenset[str], Refusal]:
        """The names of all that it serves: its base model, and adapters."""
        listed = (await self._ask("get", "/v1/models")).bind(lambda body: self._read(body, _Models))
        return listed.map(lambda models: frozenset(model.id for model in models.data))

    async def load(self, name: str, folder: Path) -> Result[None, Refusal]:
        """Serve the adapter in `folder` under this name."""
        body = {"lora_name": name, "lora_path": str(folder)}
        return _done(await self._post("/v1/load_lora_adapter", body, refused=422))

    async def unload(self, name: str) -> Result[None, Refusal]:
        """Stop serving the adapter."""
        return _done(await self._post("/v1/unload_lora_adapter", {"lora_name": name}))

    async def sleep(self) -> Result[None, Refusal]:
        """Free the GPU's memory, once all requests under way are answered."""
        # Level 1 keeps the weights in the machine's memory, while level 2 drops them, so
        # that they would have to be read again.
        return _done(await self._post("/sleep?level=1&mode=wait", {}))

    async def wake(self) -> Result[None, Refusal]:
        """Take the GPU's memory again."""
        return _done(await self._post("/wake_up", {}))

    async def scores(
        self, model: str, end: str | int, probes: Sequence[ProbeText]
    ) -> Result[Scored, Refusal]:
        """The log-probabilities of the tokens of the probes' replies and their ends under `model`.

        `end` is the end token, or its text.  Of each probe, tokens past `PROBE_TOKENS` and past the
        model's context are left out.
        """

        async def score(end: int) -> Result[Scored, Refusal]:
            scores = collect([await self._score(model, end, probe) for probe in probes])
            live = (await self._ask("get", LIVENESS)).bind(lambda body: self._read(body, _Live))
            return Result.do(
                Scored(tuple(chain(*tokens)), liveness.dtype)
                for tokens in scores
                for liveness in live
            )

        return await bind_async(await self._end_token(model, end), score)

    async def _end_token(self, model: str, end: str | int) -> Result[int, Refusal]:
        if isinstance(end, int):
            return Success(end)
        tokenized = await self._tokens({"model": model, "prompt": end})
        several = Refusal(f"{end}, the end of a reply, is more than one token", status=502)
        return tokenized.bind(
            lambda body: Success(body.tokens[0]) if len(body.tokens) == 1 else Failure(several)
        )

    async def _score(
        self, model: str, end: int, probe: ProbeText
    ) -> Result[tuple[float, ...], Refusal]:
        # Chat and reply are tokenized apart, as the trainer does it: together, tokens could merge
        # where they meet, and the scores would differ.
        chat_fields = {"model": model, "messages": plain(probe.chat), "add_generation_prompt": True}
        chat = await self._tokens(chat_fields)
        reply = await self._tokens({"model": model, "prompt": probe.reply})

        async def score(
            chat_and_reply: tuple[_Tokens, _Tokens],
        ) -> Result[tuple[float, ...], Refusal]:
            prompt, tokens = chat_and_reply[0].tokens, [*chat_and_reply[1].tokens, end]
            room = max(0, chat_and_reply[0].max_model_len - len(prompt))
            return await self._token_scores(model, prompt, tokens[:room][:PROBE_TOKENS])

        return await bind_async(Result.do((c, r) for c in chat for r in reply), score)

    async def _tokens(self, fields: dict[str, Any]) -> Result[_Tokens, Refusal]:
        # No special tokens are added, since chat templates write them as text.
        answer = await self._post("/tokenize", {**fields, "add_special_tokens": False})
        return answer.bind(lambda body: self._read(body, _Tokens))

    async def _token_scores(
        self, model: str, prompt: list[int], reply: list[int]
    ) -> Result[tuple[float, ...], Refusal]:
        """The log-probabilities in nats of the tokens `reply`, one request for each.

        Not as `prompt_logprobs` in one request: vLLM's engine for CPUs dies of those while adapters
        are loaded and other requests are under way.
        """

        async def score(numbered: tuple[int, int]) -> Result[float, Refusal]:
            position, token = numbered
            return await self._token_score(model, [*prompt, *reply[:position]], token)

        scores: list[Result[float, Refusal]] = []
        async with aclosing(in_order(enumerate(reply), score, CONCURRENCY)) as scored:
            async for _, answer in scored:
                scores.append(answer)
                if not is_successful(answer):
                    break
        return collect(scores)

    async def _token_score(
        self, model: str, before: list[int], token: int
    ) -> Result[float, Refusal]:
        """The log-probability of a token.

        Only that token may be drawn; vLLM reports its probability from before that restriction.
        """
        fields = {
            "model": model,
            "prompt": before,
            "max_tokens": 1,
            "allowed_token_ids": [token],
            "logprobs": 0,
        }
        answer = await self._post("/v1/completions", fields)
        read = answer.bind(lambda body: self._read(body, _Completion))
        return read.map(lambda completion: completion.choices[0].logprobs.token_logprobs[0])

    def _read(self, body: bytes, into: type[T]) -> Result[T, Refusal]:
        try:
            return Success(msgspec.json.decode(body, type=into))
        except UNREADABLE as error:
            return Failure(Refusal(f"{self.name} answers nonsense: {one_line(error)}", status=502))

    async def _post(
        self, path: str, body: dict[str, Any], *, refused: int = 502
    ) -> Result[bytes, Refusal]:
        return await self._ask("post", path, msgspec.json.encode(body), refused=refused)

    async def _ask(
        self, method: str, path: str, body: bytes = b"", *, refused: int = 502
    ) -> Result[bytes, Refusal]:
        """The body of vLLM's answer; `refused`: the status of a refusal if vLLM refuses."""
        try:
            async with self.http.request(
                method,
                self.url + path,
                data=body,
                headers={"Content-Type": "application/json"},
                timeout=aiohttp.ClientTimeout(total=self.limit),
            ) as answer:
                content = await answer.read()
        except TimeoutError:
            problem = f"{self.name} does not answer within {self.limit:g} s"
            return Failure(Refusal(problem, status=503))
        except aiohttp.ClientError as error:
            return Failure(Refusal(f"{self.name} breaks off: {one_line(error)}", status=503))
        if answer.status < 400:
            return Success(content)
        return Failure(Refusal(_reason(answer.status, content), self.name, status=refused))


def _done(answer: Result[bytes, Refusal]) -> Result[None, Refusal]:
    return answer.map(lambda body: None)


def _reason(status: int, body: bytes) -> str:
    """vLLM's own words about an error; of an error in a worker, only the worker's."""
    try:
        message = msgspec.json.decode(body, type=_Refused).error.message
    except UNREADABLE:
        return f"status {status}: {one_line(body.decode('utf-8', errors='replace'))}"
    of_worker = _OF_WORKER.search(message)
    return one_line(of_worker.group(1) if of_worker else message)


def end_token(model: Path) -> Result[str | int, Problem]:
    """The token that ends a reply of the model in this folder: its text, or its number."""
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        token = _read_object(model / file).get("eos_token")
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str):
            return Success(text)
    number = _read_object(model / "config.json").get("eos_token_id")
    if isinstance(number, int):
        return Success(number)
    return Failure(
        Problem(
            f"the tokenizer of {model} has no end token",
            remedy="serve a model that was trained for chats",
        )
    )


def shape_of(model: Path) -> ModelShape:
    """The shape of the model in this folder, as far as its configuration tells."""
    config = model_config(model)
    numbers = {name: value for name, value in config.items() if isinstance(value, int) and value}
    heads = numbers.get("num_attention_heads", 1)
    size = sum(file.stat().st_size for file in model.glob("*.safetensors")) / 2**30
    # vLLM keeps 16 bits of a weight that the file has 32 of.
    is_wide = "float32" in (config.get("dtype"), config.get("torch_dtype"))
    return ModelShape(
        heads,
        numbers.get("num_key_value_heads", heads),
        # Of a mixture of experts, of one expert and of what all share.
        tuple(value for name, value in numbers.items() if name.endswith("intermediate_size")),
        size / 2 if is_wide else size,
    )


def model_config(model: Path) -> dict[str, Any]:
    """The configuration of the language model in this folder; {} if there is none.

    A model that also reads images keeps it in `text_config`.
    """
    config = _read_object(model / "config.json")
    return {**config, **config.get("text_config", {})}


def _read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; {} if there is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (FileNotFoundError, msgspec.DecodeError):
        return {}
