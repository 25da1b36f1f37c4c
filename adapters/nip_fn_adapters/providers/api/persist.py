"""Requests about files, jobs and models, repeated as long as that may help."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

import aiohttp
import openai
from returns.result import Failure, Result, Success

from nip_fn.errors import Problem, one_line
from nip_fn.keys import fold_in, key
from nip_fn_adapters import clock
from nip_fn_adapters.decoding import UNREADABLE
from nip_fn_adapters.providers.api.endpoints import Endpoint
from nip_fn_adapters.providers.api.problems import describe, failure_of, remedy_for
from nip_fn_adapters.providers.api.retries import (
    Attempt,
    GiveUp,
    RequestFailure,
    RetryPolicy,
    decide,
    own_outage,
)

T = TypeVar("T")

WORTH_TELLING = 5.0  # seconds; shorter pauses are not reported


class RetryTask(NamedTuple):
    """Work at a server, and how long to keep trying."""

    server: Endpoint
    key_variable: str | None  # the environment variable that holds the key
    purpose: str  # for people, and as the key of the pauses
    policy: RetryPolicy
    tell: Callable[[str], None]
    remedy_for: Callable[[RequestFailure, str | None], str] = remedy_for

    async def persist(self, call: Callable[[], Awaitable[T]]) -> Result[T, Problem]:
        """The value of `call`, called again after failures until the policy gives up.

        `call` may raise what the client raises, and `ValueError` for an answer that it cannot read.
        """
        history: tuple[Attempt, ...] = ()
        pause = 0.0
        while True:
            began = clock.monotonic()
            try:
                return Success(await call())
            except UNREADABLE as error:
                # Not a bug of ours: a gateway answers with a page of HTML while its server
                # restarts.
                failure = RequestFailure("malformed", message=one_line(error))
            except (openai.OpenAIError, aiohttp.ClientError, OSError) as error:
                failure = failure_of(error)
            seconds = clock.monotonic() - began
            attempt = Attempt(failure.kind, failure.status, failure.retry_after, seconds, pause)
            outage = own_outage((*history, attempt), self.policy)
            history += (attempt._replace(in_outage=outage is not None),)
            # By the purpose, so that parallel tasks which fail together do not come back together.
            decision = decide(history, self.policy, fold_in(key(0), self.purpose), outage)
            if isinstance(decision, GiveUp):
                remedy = self.remedy_for(failure, self.key_variable)
                return Failure(
                    describe(self.server, self.purpose, failure, decision.reason, remedy)
                )
            # Only the first pause of a series: its successors would repeat the line.
            if pause < WORTH_TELLING <= decision.seconds:
                self.tell(f"{describe(self.server, self.purpose, failure)}; trying again")
            pause = decision.seconds
            await asyncio.sleep(pause)
