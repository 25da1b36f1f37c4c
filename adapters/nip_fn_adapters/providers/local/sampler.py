"""Sampling from transformers models in this process."""

import asyncio
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import chain, groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
from jinja2 import TemplateError
from returns.result import Failure, Result, Success

from nip_fn.errors import Problem, collect
from nip_fn.game.reply import Completion
from nip_fn.game.tokens import SampledTokens
from nip_fn.game.verdict_probability import may_state, verdict_probabilities
from nip_fn.run.ports import Served
from nip_fn.run.request import Request
from nip_fn.training.tuning import Probe
from nip_fn_adapters.providers.local import models
from nip_fn_adapters.providers.local.decode import DecodedReply, DecodeRequest, Timings, decode
from nip_fn_adapters.providers.local.policy import LoadedPolicy, load_policy, probe_scores

Answer = Result[tuple[Completion, ...], Problem]
PolicyName = tuple[str, str | None]  # a model and an adapter on it; None: the model itself
T = TypeVar("T")

# Replies to one chat that share one row of a batch; more make several rows.
MAX_WIDTH = 8


class _Waiting(NamedTuple):
    request: Request
    future: "asyncio.Future[Answer]"


class _Row(NamedTuple):
    """A request as one row of a batch."""

    place: int  # of the request among those of its group
    encoded: DecodeRequest


def local_sampler(
    adapters: Path,
    *,
    threads: int | None = None,
    max_models: int = 4,
    max_batch_rows: int = 256,
    max_batch_tokens: int = 65536,
) -> "LocalSampler":
    """A sampler for model folders and built-in models.

    Args:
        adapters: The folder of all adapters.
        threads: Of torch in this process; None: half the cores.  The other half plays the games:
            threads that wait for one another stall when anything competes with them.
        max_models: The most models that stay loaded.
        max_batch_rows: The most chats in a batch.
        max_batch_tokens: The most tokens in a batch: prompts, padding included, and replies as long
            as they may be.
    """
    return LocalSampler(adapters, threads, max_models, max_batch_rows, max_batch_tokens)


class LocalSampler:
    """Fulfils the `Sampler` port.  All requests that wait at one time are answered in batches."""

    def __init__(
        self,
        adapters: Path,
        threads: int | None,
        max_models: int,
        max_batch_rows: int,
        max_batch_tokens: int,
    ) -> None:
        """Load nothing yet; see `local_sampler`."""
        self.timings = Timings()
        self._adapters, self._max_models = adapters, max_models
        self._threads = threads or max(1, (os.cpu_count() or 1) // 2)
        self._max_batch = (max_batch_rows, max_batch_tokens)
        self._policies: OrderedDict[PolicyName, LoadedPolicy] = OrderedDict()
        # One thread: torch's own threads share the cores already, and no model needs a lock.
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="local-sampler")
        self._waiting: list[_Waiting] = []
        self._answering: asyncio.Task[None] | None = None

    async def __call__(self, request: Request) -> Answer:
        """One completion for each key, in their order.

        Fails if the model or adapter is missing, or the chat is too long for it.
        """
        chunks = [
            self._wait(
                msgspec.structs.replace(request, keys=request.keys[start : start + MAX_WIDTH])
            )
            for start in range(0, len(request.keys), MAX_WIDTH)
        ]
        answers = await asyncio.gather(*chunks)
        return collect(answers).map(lambda replies: tuple(chain(*replies)))

    async def score_probes(
        self, model: str, adapter: str | None, probes: Sequence[Probe]
    ) -> Result[Served, Problem]:
        """The log-probabilities of the probes' tokens, and the numbers of the model."""

        def score(policy: LoadedPolicy) -> Served:
            dtype = str(policy.model.dtype).removeprefix("torch.")
            return Served(probe_scores(policy, probes), dtype)

        return await self._in_worker(lambda: self._policy((model, adapter)).map(score))

    def _wait(self, request: Request) -> "asyncio.Future[Answer]":
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(request, future))
        if self._answering is None or self._answering.done():
            self._answering = asyncio.create_task(self._answer_waiting())
        return future

    async def _answer_waiting(self) -> None:
        # Requests that come while a batch is decoded make the next one, so batches grow with load.
        while self._waiting:
            waiting = [wait for wait in self._waiting if not wait.future.done()]
            self._waiting = []
            # By model and adapter, since a batch goes through one set of weights.
            waiting.sort(key=_policy_name)
            for _, members in groupby(waiting, key=_policy_name):
                await self._answer_group(list(members))

    async def _answer_group(self, group: Sequence[_Waiting]) -> None:
        """Answer requests for one model and adapter, each as soon as its replies are there."""
        loop = asyncio.get_running_loop()
        requests = [wait.request for wait in group]

        def answer(index: int, answer: Answer) -> None:
            loop.call_soon_threadsafe(_settle, group[index].future, answer)

        try:
            await self._in_worker(lambda: self._sample(requests, answer))
        except Exception as error:  # a bug: whoever waits must hear of it
            for wait in group:
                if not wait.future.done():
                    wait.future.set_exception(error)

    async def _in_worker(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)

    def _sample(self, requests: Sequence[Request], answer: Callable[[int, Answer], None]) -> None:
        """Answer requests for one model and adapter; runs in the worker."""
        match self._policy((requests[0].model, requests[0].adapter)):
            case Success(policy):
                self._sample_from(policy, requests, answer)
            case Failure(problem):
                for index in range(len(requests)):
                    answer(index, Failure(problem))

    def _sample_from(
        self,
        policy: LoadedPolicy,
        requests: Sequence[Request],
        answer: Callable[[int, Answer], None],
    ) -> None:
        began = time.perf_counter()
        for batch in _batches(encode_requests(policy, requests, answer), *self._max_batch):
            answers = self._decode(policy, requests, batch)
            now = time.perf_counter()  # counted before anybody can act on the answers
            self.timings.total, began = self.timings.total + now - began, now
            for row, completions in zip(batch, answers, strict=True):
                answer(row.place, completions)

    def _decode(
        self, policy: LoadedPolicy, requests: Sequence[Request], batch: Sequence[_Row]
    ) -> list[Answer]:
        """The answer to each row's request."""
        try:
            watched = _verdict_tokens(policy, [requests[row.place] for row in batch])
            encoded = [row.encoded for row in batch]
            replies = decode(policy, encoded, self.timings, tuple(watched))
        except RuntimeError as error:  # torch's, such as no memory left
            problem = Problem(f"sampling failed: {models.first_line(error)}")
            return [Failure(problem)] * len(batch)
        answers: list[Answer] = []
        for row, decoded in zip(batch, replies, strict=True):
            completions = _completions(policy, requests[row.place], row.encoded, decoded, watched)
            self._count(completions)
            answers.append(Success(completions))
        return answers

    def _policy(self, name: PolicyName) -> Result[LoadedPolicy, Problem]:
        """The model, loaded unless it is among the last ones used; runs in the worker."""
        if name in self._policies:
            self._policies.move_to_end(name)
            return Success(self._policies[name])
        began = time.perf_counter()
        loaded = load_policy(name[0], self._adapters, name[1])
        self.timings.loading += time.perf_counter() - began
        return loaded.map(lambda policy: self._keep(name, policy))

    def _keep(self, name: PolicyName, policy: LoadedPolicy) -> LoadedPolicy:
        self._policies[name] = policy
        models.set_threads(self._threads)
        while len(self._policies) > self._max_models:
            self._policies.popitem(last=False)
        return policy

    def _count(self, completions: tuple[Completion, ...]) -> None:
        self.timings.replies += len(completions)
        self.timings.prompt_tokens += sum(reply.prompt_tokens for reply in completions)
        self.timings.completion_tokens += sum(reply.completion_tokens for reply in completions)


def _policy_name(wait: _Waiting) -> tuple[str, str]:
    return wait.request.model, wait.request.adapter or ""


def _settle(future: "asyncio.Future[Answer]", answer: Answer) -> None:
    if not future.done():  # whoever waited for it may have given up
        future.set_result(answer)


def encode_requests(
    policy: LoadedPolicy, requests: Sequence[Request], refuse: Callable[[int, Answer], None]
) -> list[_Row]:
    """The requests as rows; those that the model cannot answer are refused instead."""
    rendered: dict[int, str] = {}
    for index, request in enumerate(requests):
        try:
            rendered[index] = models.render_chat(policy.tokenizer, request.chat)
        except TemplateError as error:
            cause = models.first_line(error)
            message = f"{request.model} takes no such chat as {request.agent}'s: {cause}"
            roles = "set merge_same_role_messages, or choose another model"
            refuse(index, Failure(Problem(message, remedy=roles, lasting=True)))
    rows = []
    for index, tokens in zip(
        rendered, models.encode_chats(policy.tokenizer, list(rendered.values())), strict=True
    ):
        request = requests[index]
        if policy.context is not None and len(tokens) + request.max_tokens > policy.context:
            refuse(index, Failure(_too_long(policy, request, len(tokens))))
        else:
            rows.append(_Row(index, _decode_request(policy, request, tokens)))
    return rows


def _decode_request(policy: LoadedPolicy, request: Request, tokens: list[int]) -> DecodeRequest:
    """The request with the model's defaults for the options that it leaves open."""

    def either(requested: float | None, default: float) -> float:
        return default if requested is None else requested

    return DecodeRequest(
        tokens=tokens,
        keys=request.keys,
        temperature=either(request.temperature, policy.defaults.temperature),
        max_tokens=request.max_tokens,
        top_p=either(request.top_p, policy.defaults.top_p),
        repetition_penalty=either(request.repetition_penalty, policy.defaults.repetition_penalty),
    )


def _too_long(policy: LoadedPolicy, request: Request, num_tokens: int) -> Problem:
    return Problem(
        f"{request.agent}'s chat has {num_tokens} tokens and its reply up to "
        f"{request.max_tokens}, but {request.model} holds {policy.context} in all",
        remedy="shorten the chat (fewer rounds, shorter messages) or choose a model with a "
        "longer context",
        lasting=True,
    )


def _batches(rows: Sequence[_Row], max_rows: int, max_tokens: int) -> Iterator[list[_Row]]:
    """Rows with equally many replies, sorted by length so that little is padded."""
    batch, longest = list[_Row](), 0
    for row in sorted(rows, key=_width_and_length):
        width, length = _width_and_length(row)
        longest = max(longest, row.encoded.max_tokens)
        if batch and (
            width != len(batch[0].encoded.keys)
            or len(batch) == max_rows
            or (length + width * longest) * (len(batch) + 1) > max_tokens
        ):
            yield batch
            batch, longest = [], row.encoded.max_tokens
        batch.append(row)
    if batch:
        yield batch


def _width_and_length(row: _Row) -> tuple[int, int]:
    return len(row.encoded.keys), len(row.encoded.tokens)


def _verdict_tokens(policy: LoadedPolicy, requests: Sequence[Request]) -> dict[int, str]:
    """The tokens that may state a verdict which one of the requests allows, and their texts."""
    allowed = {request.decisions for request in requests if request.record_tokens}
    size = min(len(policy.tokenizer), policy.model.config.vocab_size)
    return {
        token: text
        for decisions in sorted(allowed)
        for token, text in _tokens_of(policy.tokenizer, size, decisions)
    }


@lru_cache(maxsize=16)
def _tokens_of(
    tokenizer: Any, size: int, decisions: tuple[str, ...]
) -> tuple[tuple[int, str], ...]:
    texts = _token_texts(tokenizer, range(size)) if decisions else []
    return tuple((token, text) for token, text in enumerate(texts) if may_state(text, decisions))


def _token_texts(tokenizer: Any, tokens: Sequence[int]) -> list[str]:
    texts: list[str] = tokenizer.batch_decode(
        [[token] for token in tokens], skip_special_tokens=True
    )
    return texts


def _verdict_probabilities(
    policy: LoadedPolicy, request: Request, reply: DecodedReply, watched: Mapping[int, str]
) -> tuple[float, ...]:
    """As the verdict was drawn: by temperature, top_p and repetition penalty of the request."""
    if not (watched and request.record_tokens and request.decisions):
        return ()
    return verdict_probabilities(
        _token_texts(policy.tokenizer, reply.tokens),
        lambda index: zip(watched.values(), reply.watched[index], strict=True),
        request.decisions,
    )


def _completions(
    policy: LoadedPolicy,
    request: Request,
    decoded: DecodeRequest,
    replies: Sequence[DecodedReply],
    watched: Mapping[int, str],
) -> tuple[Completion, ...]:
    texts = policy.tokenizer.batch_decode(
        [reply.tokens[: len(reply.tokens) - reply.ended] for reply in replies],
        skip_special_tokens=True,
    )
    return tuple(
        Completion(
            text=text,
            finish_reason="stop" if reply.ended else "length",
            model=request.adapter or request.model,
            prompt_tokens=len(decoded.tokens),
            completion_tokens=len(reply.tokens),
            tokens=SampledTokens.of(reply.tokens, reply.log_probabilities)
            if request.record_tokens
            else None,
            verdict_probabilities=_verdict_probabilities(policy, request, reply, watched),
        )
        for text, reply in zip(texts, replies, strict=True)
    )
