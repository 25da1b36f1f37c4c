"""Requests about files, jobs and models, made again as long as that may help."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

import aiohttp
import openai
from returns.result import Failure, Result, Success

from nip_fn.keys import fold_in, key
from nip_fn_adapters.api.endpoints import Endpoint
from nip_fn_adapters.api.problems import advice, problem_of, told
from nip_fn_adapters.api.replies import Problem, one_line
from nip_fn_adapters.api.retries import Attempt, GiveUp, RetryPolicy, decide

T = TypeVar("T")

WORTH_TELLING = 5.0  # s of a pause


class RetryTask(NamedTuple):
    """What is wanted of a server, and how patiently."""

    server: Endpoint
    key_variable: str | None  # the environment variable that holds the key
    purpose: str  # for people, and to tell pauses apart
    policy: RetryPolicy
    tell: Callable[[str], None]
    advice: Callable[[Problem, str | None], str] = advice  # what to do about it

    async def persist(self, call: Callable[[], Awaitable[T]]) -> Result[T, str]:
        """What `call` gives; or, in a line without the key, why it was given up.

        `call` may raise what the client raises, and `ValueError` for an answer that is none.
        """
        history: tuple[Attempt, ...] = ()
        pause = 0.0
        while True:
            began = time.monotonic()
            try:
                return Success(await call())
            except ValueError as error:
                problem = Problem("malformed", said=one_line(error))
            except (openai.OpenAIError, aiohttp.ClientError, OSError) as error:
                problem = problem_of(error)
            seconds = time.monotonic() - began
            history += (Attempt(problem.kind, problem.status, problem.retry_after, seconds, pause),)
            decision = decide(history, self.policy, fold_in(key(0), self.purpose))
            line = told(self.server, self.purpose, problem)
            if isinstance(decision, GiveUp):
                parts = (line, decision.reason, self.advice(problem, self.key_variable))
                return Failure("; ".join(filter(None, parts)))
            if pause < WORTH_TELLING <= decision.seconds:
                self.tell(f"{line}; trying again")
            pause = decision.seconds
            await asyncio.sleep(pause)
