"""Keeps a run within a budget: nothing is asked for that could cost more than is left.

What is under way has the most that it can cost set aside; when it is answered, what it did cost
takes that place.  A request that does not fit beside what is set aside waits, in line, and only
where it does not fit with nothing under way is it refused, and everything behind it: the budget is
used up as far as can be done without risk, and whatever was paid for has been answered.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import TypeVar

from returns.result import Failure, Result

from nip_fn.game.reply import Completion
from nip_fn.run.ports import Sampler, Tuned, Tuner, Unanswered
from nip_fn.run.request import Request
from nip_fn.training.jobs import Job
from nip_fn.training.tokens import trained_tokens
from nip_fn_adapters.costs.prices import Price, Usage, cost, most_prompt, most_training

Paid = TypeVar("Paid")

ROUNDING = 1e-9  # dollars


class Budget:
    """What may be spent, was spent and is set aside, in dollars."""

    def __init__(self, limit: float, spent: float = 0.0) -> None:
        """`spent`: in earlier sittings, which count, too."""
        self.limit, self.spent = limit, spent
        self.refusal: str | None = None  # why nothing more is asked for
        self._set_aside = 0.0
        self._under_way = 0
        self._line: deque[tuple[float, asyncio.Future[bool]]] = deque()

    async def reserve(self, most: float) -> bool:
        """Once there is enough for something that costs so much at most; False: there is not.

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
            if turn.done() and not turn.cancelled() and turn.result():
                self.settle(most, 0.0)
            raise

    async def pay(
        self,
        most: float,
        work: Callable[[], Awaitable[Result[Paid, str]]],
        cost_of: Callable[[Paid], float],
    ) -> Result[Paid, str]:
        """What the work comes to; it is begun only once the most that it can cost is set aside."""
        if not await self.reserve(most):
            return Failure(self.refusal or "")
        spent = 0.0
        try:
            answer = await work()
            spent = answer.map(cost_of).value_or(0.0)
            return answer
        finally:
            self.settle(most, spent)

    def settle(self, most: float, spent: float) -> None:
        """What had so much set aside for it is over, and did cost that much."""
        self._under_way -= 1
        self._set_aside = self._set_aside - most if self._under_way else 0.0
        self.spent += spent
        self._serve()

    def refuse(self, why: str) -> None:
        """Let nothing more be asked for."""
        self.refusal = self.refusal or why
        while self._line:
            _, turn = self._line.popleft()
            if not turn.done():
                turn.set_result(False)

    def drain(self) -> None:
        """Cancel what waits in line; see `World`."""
        for _, turn in self._line:
            turn.cancel()
        self._line.clear()

    def _serve(self) -> None:
        """Let those at the head of the line go that can be afforded."""
        while self._line:
            most, turn = self._line[0]
            if turn.done():  # nobody waits for it any more
                self._line.popleft()
            elif self.spent + self._set_aside + most <= self.limit + ROUNDING:
                self._line.popleft()
                self._set_aside += most
                self._under_way += 1
                turn.set_result(True)
            elif self._under_way:
                return
            else:
                self.refuse(
                    f"${self.spent:.4f} of the budget of ${self.limit:g} are spent, and what comes "
                    f"next could cost ${most:.4f}"
                )


def within_budget(
    sampler: Sampler,
    purse: Budget,
    price: Callable[[Request], Price | None],
) -> Sampler:
    """The sampler, asked only for what can be afforded; a failure where nothing more can be."""

    async def sample(request: Request) -> Result[tuple[Completion | Unanswered, ...], str]:
        paid = price(request)
        most = cost(most_usage(request), paid)
        if most is None:
            return Failure(f"agents.{request.agent}: the price of {request.model} is unknown")
        if not most:
            return await sampler(request)
        return await purse.pay(most, lambda: sampler(request), partial(_bill, purse, request, paid))

    return sample


def _bill(
    purse: Budget,
    request: Request,
    paid: Price | None,
    answers: Collection[Completion | Unanswered],
) -> float:
    """What the completions cost; where nobody says what they took, nothing more is asked for."""
    completions = [one for one in answers if isinstance(one, Completion)]
    used = usage_of(completions)
    if any(reply.text for reply in completions) and not any(used):
        purse.refuse(
            f"agents.{request.agent}: {request.model} is served without a word about the tokens "
            "that it takes, so a budget cannot be kept"
        )
    return cost(used, paid) or 0.0


def most_usage(request: Request) -> Usage:
    """More tokens than a request can take; siblings may come to be asked for one by one."""
    num = len(request.keys)
    return Usage(prompt=num * most_prompt(request.chat), completion=num * request.max_tokens)


def usage_of(completions: Collection[Completion]) -> Usage:
    """The tokens of completions, as their provider counted them."""
    return Usage(
        sum(reply.prompt_tokens for reply in completions),
        sum(reply.cached_tokens for reply in completions),
        sum(reply.completion_tokens for reply in completions),
    )


def training_within_budget(
    tuner: Tuner, purse: Budget, price: Callable[[Job], Price | None]
) -> Tuner:
    """The tuner, asked only for trainings that can be afforded."""

    async def tune(job: Job) -> Result[Tuned, str]:
        paid = price(job)
        most = cost(Usage(trained=most_training(job)), paid)
        if most is None:
            return Failure(f"{job.name}: the price of training {job.model} is unknown")
        if not most:
            return await tuner(job)

        def bill(tuned: Tuned) -> float:
            trained = trained_tokens(job, tuned.adapter, tuned.report)
            return cost(Usage(trained=trained), paid) or 0.0

        return await purse.pay(most, lambda: tuner(job), bill)

    return tune
