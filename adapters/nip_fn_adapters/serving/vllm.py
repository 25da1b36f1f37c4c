"""What is asked of one vLLM, through its HTTP interface."""

import re
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec
from returns.result import Failure, Result, Success

from nip_fn_adapters.api.replies import one_line
from nip_fn_adapters.pool import in_order
from nip_fn_adapters.serving.wire import ProbeText, VllmState

GLANCE = 2.0  # seconds that a vLLM may take to say how it is
AT_A_TIME = 32  # tokens that are scored

_OF_WORKER = re.compile(r"Worker failed with error '(.*)', please check the stack trace", re.DOTALL)


class _Tokens(msgspec.Struct):
    """What /tokenize answers."""

    tokens: list[int]
    max_model_len: int


class _Drawn(msgspec.Struct):
    token_logprobs: list[float]


class _Choice(msgspec.Struct):
    logprobs: _Drawn


class _Completion(msgspec.Struct):
    choices: list[_Choice]


class _Error(msgspec.Struct):
    message: str


class _Refused(msgspec.Struct):
    error: _Error


class Vllm(NamedTuple):
    """One vLLM.

    All but `health` raise `aiohttp.ClientError` or `TimeoutError` where there is no answer, and
    `msgspec.DecodeError` for one that is none.  Failures are vLLM's own words, in one line.
    """

    http: aiohttp.ClientSession
    url: str
    limit: float = 300.0  # seconds for an answer

    async def health(self) -> tuple[VllmState, str]:
        """Whether it answers, and why not; it may be asleep all the same."""
        limit = aiohttp.ClientTimeout(total=GLANCE)
        try:
            async with self.http.get(f"{self.url}/health", timeout=limit) as answer:
                if answer.status == 200:
                    return "online", ""
                state: VllmState = "server_error" if answer.status >= 500 else "other_error"
                return state, f"it answers with status {answer.status}"
        except TimeoutError:
            return "timeout", f"it does not answer within {GLANCE:g} s"
        except aiohttp.ClientConnectorError:
            return "not_accepting_connections", "its port accepts no connections"
        except aiohttp.ClientError as error:
            return "other_error", one_line(error)

    async def load(self, name: str, folder: Path) -> Result[bytes, str]:
        """Serve the adapter in `folder` under this name."""
        body = {"lora_name": name, "lora_path": str(folder)}
        return await self._post("/v1/load_lora_adapter", body)

    async def unload(self, name: str) -> Result[bytes, str]:
        """Serve the adapter no more."""
        return await self._post("/v1/unload_lora_adapter", {"lora_name": name})

    async def sleep(self) -> Result[bytes, str]:
        """Give up the GPU's memory, once all requests under way are answered."""
        return await self._post("/sleep?level=1&mode=wait", {})

    async def wake(self) -> Result[bytes, str]:
        """Take the GPU's memory again."""
        return await self._post("/wake_up", {})

    async def scores(
        self, model: str, end: str | int, probes: Sequence[ProbeText]
    ) -> Result[tuple[float, ...], str]:
        """The log-probability in nats of each probe's reply and its end under `model`.

        `end` is the end token, or its text.  Tokens past what the model holds are left out.
        """
        if isinstance(end, str):
            told = await self._tokens({"model": model, "prompt": end})
            if isinstance(told, Failure):
                return told
            if len(told.unwrap().tokens) != 1:
                return Failure(f"{end}, the end of a reply, is more than one token")
            [end] = told.unwrap().tokens
        scores: tuple[float, ...] = ()
        for probe in probes:
            score = await self._score(model, end, probe)
            if isinstance(score, Failure):
                return score
            scores += (score.unwrap(),)
        return Success(scores)

    async def _score(self, model: str, end: int, probe: ProbeText) -> Result[float, str]:
        messages = [{"role": said.role, "content": said.content} for said in probe.chat]
        asked = {"model": model, "messages": messages, "add_generation_prompt": True}
        chat = await self._tokens(asked)
        reply = await self._tokens({"model": model, "prompt": probe.reply})
        if isinstance(chat, Failure):
            return chat
        if isinstance(reply, Failure):
            return reply
        prompt = chat.unwrap().tokens
        room = max(0, chat.unwrap().max_model_len - len(prompt))
        tokens = [*reply.unwrap().tokens, end][:room]
        return await self._log_probability(model, prompt, tokens) if tokens else Success(0.0)

    async def _tokens(self, asked: dict[str, Any]) -> Result[_Tokens, str]:
        answer = await self._post("/tokenize", {**asked, "add_special_tokens": False})
        return answer.map(lambda body: msgspec.json.decode(body, type=_Tokens))

    async def _log_probability(
        self, model: str, prompt: list[int], reply: list[int]
    ) -> Result[float, str]:
        """The log-probability of the tokens `reply`, each of them drawn by a request of its own.

        Not as `prompt_logprobs` in one request: vLLM's engine for CPUs dies of those where adapters
        are loaded and other requests are under way.
        """

        async def draw(place: tuple[int, int]) -> Result[float, str]:
            position, token = place
            return await self._chance(model, [*prompt, *reply[:position]], token)

        total = 0.0
        async with aclosing(in_order(enumerate(reply), draw, AT_A_TIME)) as drawn:
            async for _, chance in drawn:
                if isinstance(chance, Failure):
                    return chance
                total += chance.unwrap()
        return Success(total)

    async def _chance(self, model: str, before: list[int], token: int) -> Result[float, str]:
        """The log-probability of a token: vLLM tells it as it is before what may be drawn is cut
        down to that token.
        """
        asked = {
            "model": model,
            "prompt": before,
            "max_tokens": 1,
            "allowed_token_ids": [token],
            "logprobs": 0,
        }
        answer = await self._post("/v1/completions", asked)
        return answer.map(_token_logprob)

    async def _post(self, path: str, body: dict[str, Any]) -> Result[bytes, str]:
        async with self.http.post(
            self.url + path,
            data=msgspec.json.encode(body),
            headers={"Content-Type": "application/json"},
            timeout=aiohttp.ClientTimeout(total=self.limit),
        ) as answer:
            told = await answer.read()
        return Success(told) if answer.status < 400 else Failure(_reason(answer.status, told))


def _token_logprob(told: bytes) -> float:
    [choice] = msgspec.json.decode(told, type=_Completion).choices
    return choice.logprobs.token_logprobs[0]


def _reason(status: int, told: bytes) -> str:
    """What vLLM says about an error, and of an error in a worker only that."""
    try:
        message = msgspec.json.decode(told, type=_Refused).error.message
    except msgspec.DecodeError:
        return f"status {status}: {one_line(told.decode('utf-8', errors='replace'))}"
    of_worker = _OF_WORKER.search(message)
    return one_line(of_worker.group(1) if of_worker else message)


def end_token(model: Path) -> Result[str | int, str]:
    """What ends a reply of the model in this folder: a token's text, or the token."""
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        token = _read(model / file).get("eos_token")
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str):
            return Success(text)
    number = _read(model / "config.json").get("eos_token_id")
    if isinstance(number, int):
        return Success(number)
    return Failure(f"the tokenizer of {model} has no end token")


def attention_heads(model: Path) -> int:
    """How many attention heads the model in this folder has; 1 where that is not said."""
    config = _read(model / "config.json")
    heads = {**config, **config.get("text_config", {})}.get("num_attention_heads")
    return heads if isinstance(heads, int) else 1


def _read(path: Path) -> dict[str, Any]:
    """The JSON object in a file; an empty one where there is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (FileNotFoundError, msgspec.DecodeError):
        return {}
