"""Keeps a run within a budget: nothing is sent that could cost more than is left.

Each request reserves the most that it can cost; once it is answered, its real cost takes the place
of the reservation.  A request that does not fit beside the reservations waits in line.  Only if it
does not fit with nothing under way is it refused, and everything behind it: so the budget is used
as far as is possible without risk, and whatever was paid for has been answered.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import TypeVar

from returns.result import Failure, Result

from nip_fn.errors import Problem
from nip_fn.game.reply import Completion
from nip_fn.run.ports import Sampler, Tuned, Tuner, Unanswered
from nip_fn.run.request import Request
from nip_fn.training.jobs import Job
from nip_fn.training.tokens import trained_tokens
from nip_fn_adapters.costs.prices import (
    Price,
    Tokens,
    cost,
    upper_bound_prompt,
    upper_bound_training,
)

Paid = TypeVar("Paid")

ROUNDING = 1e-9  # dollars; sums of floats must not refuse what fits exactly


class Budget:
    """A limit in dollars, and what of it is spent or reserved."""

    def __init__(self, limit: float, spent: float = 0.0) -> None:
        """Count `spent`, of earlier sessions, against the limit."""
        self.limit, self.spent = limit, spent
        self.refusal: Problem | None = None  # why nothing more is sent
        self._reserved = 0.0
        self._under_way = 0
        self._line: deque[tuple[float, asyncio.Future[bool]]] = deque()

    async def reserve(self, most: float) -> bool:
        """True once `most` dollars are reserved; False if they never can be.

        After True, `settle` must follow.
        """
        if self.refusal is not None:
            return False
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._line.append((most, turn))
        self._serve()
        try:
            return await turn
        except asyncio.CancelledError:
            # Its turn came in the moment in which it was cancelled: nobody else would give this
            # back.
            if turn.done() and not turn.cancelled() and turn.result():
                self.settle(most, 0.0)
            raise

    async def pay(
        self,
        most: float,
        work: Callable[[], Awaitable[Result[Paid, Problem]]],
        cost_of: Callable[[Paid], float],
    ) -> Result[Paid, Problem]:
        """The result of the work, begun once its highest cost is reserved; or the refusal.

        Args:
            most: the highest cost of the work, in dollars.
            work: begins the work.
            cost_of: the real cost of its result, in dollars; a failure costs nothing.
        """
        if not await self.reserve(most):
            return Failure(self.refusal or Problem("the budget is used up"))
        spent = 0.0
        try:
            answer = await work()
            # A failure brings no counts of tokens, so nothing can be charged for it, even if the
            # provider does.
            spent = answer.map(cost_of).value_or(0.0)
            return answer
        finally:
            self.settle(most, spent)

    def settle(self, most: float, spent: float) -> None:
        """Replace a reservation of `most` dollars by the real cost."""
        self._under_way -= 1
        # Set to zero rather than subtracted to it, so that rounding errors cannot add up.
        self._reserved = self._reserved - most if self._under_way else 0.0
        self.spent += spent
        self._serve()

    def refuse(self, why: Problem) -> None:
        """Let nothing more be sent; of several reasons the first counts."""
        self.refusal = self.refusal or why
        while self._line:
            _, turn = self._line.popleft()
            if not turn.done():
                turn.set_result(False)

    def drain(self) -> None:
        """Cancel everything that waits in line; see `World`."""
        for _, turn in self._line:
            turn.cancel()
        self._line.clear()

    def _serve(self) -> None:
        """Let those at the head of the line go that can be afforded."""
        while self._line:
            # Only the head of the line is served: cheap requests would overtake an expensive one
            # until the budget has no room for it.
            most, turn = self._line[0]
            if turn.done():  # cancelled
                self._line.popleft()
            elif self.spent + self._reserved + most <= self.limit + ROUNDING:
                self._line.popleft()
                self._reserved += most
                self._under_way += 1
                turn.set_result(True)
            elif self._under_way:
                return
            else:
                self.refuse(
                    Problem(
                        f"${self.spent:.4f} of the budget of ${self.limit:g} are spent, and the "
                        f"next request could cost ${most:.4f}"
                    )
                )


def within_budget(
    sampler: Sampler, budget: Budget, price_of: Callable[[Request], Price | None]
) -> Sampler:
    """The sampler, called only for what can be afforded; a failure once nothing more can be."""

    async def sample(request: Request) -> Result[tuple[Completion | Unanswered, ...], Problem]:
        price = price_of(request)
        most = cost(upper_bound_request(request), price)
        if most is None:
            return Failure(_unpriced(f"agents.{request.agent}", request.model))
        if not most:
            # What is free needs no reservation, and goes on when the budget is used up.
            return await sampler(request)
        bill = partial(_bill, budget, request, price)
        return await budget.pay(most, lambda: sampler(request), bill)

    return sample


def _bill(
    budget: Budget,
    request: Request,
    price: Price | None,
    answers: Collection[Completion | Unanswered],
) -> float:
    """The cost of the completions; if the server does not count tokens, nothing more is sent."""
    completions = [one for one in answers if isinstance(one, Completion)]
    used = tokens_of(completions)
    if any(reply.text for reply in completions) and not any(used):
        budget.refuse(
            Problem(
                f"the server of {request.model} does not report tokens, so no budget can be kept",
                address=f"agents.{request.agent}",
                remedy="run without --budget",
            )
        )
    return cost(used, price) or 0.0


def upper_bound_request(request: Request) -> Tokens:
    """An upper bound of a request's tokens; its siblings may be requested one by one."""
    num = len(request.keys)
    # Each of them may be billed for the prompt: siblings may have to be requested one by one.
    prompt = upper_bound_prompt(request.chat)
    return Tokens(prompt=num * prompt, completion=num * request.max_tokens)


def tokens_of(completions: Collection[Completion]) -> Tokens:
    """The tokens of completions, as their provider counted them."""
    return Tokens(
        sum(reply.prompt_tokens for reply in completions),
        sum(reply.cached_tokens for reply in completions),
        sum(reply.completion_tokens for reply in completions),
    )


def training_within_budget(
    tuner: Tuner, budget: Budget, price_of: Callable[[Job], Price | None]
) -> Tuner:
    """The tuner, called only for trainings that can be afforded."""

    async def tune(job: Job) -> Result[Tuned, Problem]:
        price = price_of(job)
        most = cost(Tokens(trained=upper_bound_training(job)), price)
        if most is None:
            return Failure(_unpriced(job.name, f"training {job.model}"))
        if not most:
            return await tuner(job)

        def bill(tuned: Tuned) -> float:
            trained = trained_tokens(job, tuned.adapter, tuned.report)
            return cost(Tokens(trained=trained), price) or 0.0

        return await budget.pay(most, lambda: tuner(job), bill)

    return tune


def _unpriced(address: str, what: str) -> Problem:
    return Problem(
        f"the price of {what} is unknown",
        address=address,
        remedy="add it to a file given as --prices",
    )
