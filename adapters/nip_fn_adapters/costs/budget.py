"""Keeps a run within a budget: nothing is sent that could cost more than is left.

Each request reserves the most that it can cost; once it is answered, its real cost takes the place
of the reservation, and if its answer is lost, the most remains charged.  A request that does not
fit beside the reservations waits in line.  Only if it does not fit with nothing under way is it
refused, and everything behind it: so the budget is used as far as is possible without risk, and
whatever was paid for has been answered.

What is billed and not recorded would be forgotten by a process that is killed.  So an upper bound
of it is noted before a request is sent, a little ahead of need, and the next session counts what it
finds noted as spent.  So that a kill does not use a budget up, only a part of what is left is under
way: what may cost seven tenths of it at the most, and would cost a third of it if each request cost
what the dearest one so far did.  A quarter at the most, without any look at answers, made a run
within 1.4 times its bill take 2.2 times as long; now it takes 1.2 times.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Collection
from math import ceil, inf
from operator import add, sub
from types import TracebackType
from typing import NamedTuple, Protocol

from returns.result import Failure, Result, Success

from nip_fn.errors import Problem
from nip_fn.game.reply import Completion
from nip_fn.run.ports import Sampler, Tuned, Tuner, Unanswered
from nip_fn.run.request import Request
from nip_fn.training.tokens import trained_tokens
from nip_fn.training.tuning import Job
from nip_fn_adapters.costs.prices import FREE, Price, Tokens, cost, upper_bound_prompt

ROUNDING = 1e-9  # dollars; sums of floats must not refuse what fits exactly

# Of what is left, the shares that what is under way may be expected to cost, and may cost at most.
EXPECTED, AT_RISK = 1 / 3, 0.7
# The note is ahead of what is at risk by this share of it, so that few requests wait for the disk.
AHEAD = 0.1


class Note(Protocol):
    """Stores the dollars that may have been billed without being recorded."""

    def __call__(self, dollars: float, *, sync: bool) -> None:
        """Replace the note; with `sync`, return once it would survive a power cut.

        Raises:
            OSError: It cannot be written.
        """
        ...


def forget(dollars: float, *, sync: bool) -> None:
    """Store nothing: for runs that no later process resumes."""


class Reservation(NamedTuple):
    """Dollars that are kept for work until its cost is known.

    most: the highest cost of the work.
    at_risk: the part of it that a kill would lose; 0 of work that a resumed run finds again.
    expected: the part of that which is expected to be billed.
    """

    most: float = 0.0
    at_risk: float = 0.0
    expected: float = 0.0


class _Waiting(NamedTuple):
    reservation: Reservation
    turn: "asyncio.Future[bool]"


class Budget:
    """A limit in dollars, and how much of it is spent or reserved."""

    def __init__(
        self, limit: float = inf, recorded: float = 0.0, lost: float = 0.0, note: Note = forget
    ) -> None:
        """Count earlier sessions against the limit.

        Args:
            limit: of all sessions together.
            recorded: the cost of what they recorded.
            lost: what may have been billed to them beyond that, as they noted it.
            note: keeps that number from now on.
        """
        self.limit, self.spent, self.lost = limit, recorded + lost, lost
        self.refusal: Problem | None = None  # why nothing more is sent
        self._recorded = recorded
        self._note, self._noted = note, lost
        self._reserved = Reservation()  # the sum of all that are under way
        self._under_way = 0
        self._line: deque[_Waiting] = deque()
        self._is_scheduled = False

    @property
    def unrecorded(self) -> float:
        """The dollars that were charged and are not recorded: for answers that were lost, or that
        are about to be recorded.
        """
        return max(0.0, self.spent - self._recorded)

    async def reserve(
        self, most: float, *, expected: float | None = None, durable: bool = False
    ) -> Reservation | None:
        """The reservation of `most` dollars, once it is noted; None if it never can be.

        It must be settled afterwards (`settle`).

        Args:
            most: the highest cost of the work.
            expected: the highest cost of such work so far; None: `most`.
            durable: the work outlives this process: a resumed run finds it again, with its bill.
        """
        if self.refusal is not None:
            return None
        risk = (0.0, 0.0) if durable else (most, most if expected is None else expected)
        reservation = Reservation(most, *risk)
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._line.append(_Waiting(reservation, turn))
        self._schedule()
        try:
            return reservation if await turn else None
        except asyncio.CancelledError:
            # Its turn came in the moment in which it was cancelled: nobody else would give this
            # back.
            if turn.done() and not turn.cancelled() and turn.result():
                self.settle(reservation, 0.0)
            raise

    def settle(self, reservation: Reservation, spent: float, *, lost: bool = False) -> None:
        """Replace a reservation by the dollars that were spent, for nothing if `lost`."""
        self._under_way -= 1
        left = Reservation(*map(sub, self._reserved, reservation))
        # Set to zero rather than subtracted to it, so that rounding errors cannot add up.
        self._reserved = left if self._under_way else Reservation()
        self.spent += spent
        self.lost += spent if lost else 0.0
        self._schedule()

    def record(self, dollars: float) -> None:
        """Count dollars that the recording holds by now: a kill can no longer lose them."""
        if dollars:
            self._recorded += dollars
            self._schedule()

    def refuse(self, why: Problem) -> None:
        """Send nothing more; of several reasons the first is kept."""
        self.refusal = self.refusal or why
        while self._line:
            turn = self._line.popleft().turn
            if not turn.done():
                turn.set_result(False)

    def drain(self) -> None:
        """Cancel all requests that wait in the queue; see `World`."""
        for waiting in self._line:
            waiting.turn.cancel()
        self._line.clear()

    def close(self) -> None:
        """Store the exact amount that was lost, at the end of a session."""
        if self._noted != self.unrecorded:
            self._write(self.unrecorded, sync=True)

    def _schedule(self) -> None:
        # Once for all that happens in a round of the event loop: the disk takes milliseconds, and
        # requests come in waves.
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        """Admit requests from the head of the queue as long as they can be afforded."""
        self._is_scheduled = False
        turns: list[asyncio.Future[bool]] = []
        # Only the head of the line is served: cheap requests would overtake an expensive one until
        # the budget has no room for it.
        while self._line and (self._line[0].turn.done() or self._affords(self._line[0])):
            reservation, turn = self._line.popleft()
            if not turn.done():  # else it was cancelled
                self._reserved = Reservation(*map(add, self._reserved, reservation))
                self._under_way += 1
                turns.append(turn)
        try:
            self._keep_note()
        except OSError as error:
            for turn in turns:
                turn.set_exception(error)
            return
        for turn in turns:
            turn.set_result(True)
        if self._line and not self._under_way:
            lost = f" (${self.lost:.4f} for answers that were lost)" * (self.lost > ROUNDING)
            problem = (
                f"${self.spent:.4f} of the budget of ${self.limit:g} are spent{lost}, and the next "
                f"request could cost ${self._line[0].reservation.most:.4f}"
            )
            self.refuse(Problem(problem))

    def _affords(self, waiting: _Waiting) -> bool:
        available = self.limit - self.spent + ROUNDING
        most, at_risk, expected = map(add, self._reserved, waiting.reservation)
        # One at a time always may: a share of the last dollars would be too little for any.
        alone = not (self._reserved.at_risk and waiting.reservation.at_risk)
        in_bounds = expected <= EXPECTED * available and at_risk <= AT_RISK * available
        return most <= available and (alone or in_bounds)

    def _keep_note(self) -> None:
        """Keep the stored amount at least as high as what a kill would lose, and close to it."""
        at_risk = self._reserved.at_risk
        lost = self.unrecorded + at_risk
        if lost > self._noted:
            # Not ahead of all that is left, which would refuse the next session what may still fit.
            # Without a limit there is nothing to keep: the note only informs.
            ahead = min(AHEAD * at_risk, max(0.0, self.limit - self._recorded - lost))
            self._write(lost + ahead, sync=self.limit < inf)
        elif self._noted - lost > at_risk:
            # Not synced: after a power cut, a note that is too high is on the safe side.
            self._write(lost, sync=False)

    def _write(self, dollars: float, *, sync: bool) -> None:
        self._note(dollars, sync=sync)
        self._noted = dollars


class Charge:
    """The reservation of one request, settled when its block ends.

    Unless the block bills it, the answer is lost: it may have cost the most.
    """

    def __init__(
        self,
        budget: Budget,
        price: Price = FREE,
        reservation: Reservation | None = None,
        learn: Callable[[Tokens, float], None] = lambda tokens, dollars: None,
    ) -> None:
        """Take over a reservation, None for what is free; `learn` from the bill."""
        self._budget, self._price, self._learn = budget, price, learn
        self._reservation = reservation or Reservation()
        # A resumed run finds what is durable again, so that nothing of it is lost by an early end.
        self._cost, self._lost = self._reservation.at_risk, True

    def bill(self, tokens: Tokens | None) -> None:
        """Set the cost of the request to that of these tokens; None: they are unknown."""
        billed = None if tokens is None else cost(tokens, self._price)
        unknown = self._reservation.most, True
        self._cost, self._lost = unknown if billed is None else (billed, False)
        if tokens is not None and tokens.prompt:
            self._learn(tokens, self._cost)

    def __enter__(self) -> "Charge":
        """The charge."""
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Settle the reservation."""
        if self._reservation.most:
            self._budget.settle(self._reservation, self._cost, lost=self._lost)


class Meter:
    """Charges requests to a budget that is opened after the samplers were made."""

    def __init__(self) -> None:
        """Charge nothing until `open` is called."""
        self._density: defaultdict[str, _Shares] = defaultdict(_Shares)  # by model
        self._costs: defaultdict[tuple[str, str], _Shares] = defaultdict(_Shares)  # and by agent
        self._budget = Budget()
        self._price_of: Callable[[Request], Price | None] = lambda request: FREE

    def open(self, budget: Budget, price_of: Callable[[Request], Price | None]) -> None:
        """Charge requests at these prices from now on."""
        self._budget, self._price_of = budget, price_of

    async def reserve(
        self, request: Request, num_keys: int, *, num_prompts: int = 1, durable: bool = False
    ) -> Result[Charge, Problem]:
        """The charge of one exchange.

        Failure: the budget does not suffice, or it cannot be kept as a price is unknown.

        Args:
            request: what is asked.
            num_keys: how many of its replies are asked for at once.
            num_prompts: how often its prompt is billed.
            durable: see `Budget.reserve`.
        """
        budget, price = self._budget, self._price_of(request)
        model, sure = request.adapter or request.model, upper_bound_prompt(request.chat)
        player, written = (model, request.agent), num_keys * request.max_tokens
        prompt = num_prompts * ceil(sure * self._density[model].upper_bound(DENSER))
        most = cost(Tokens(prompt=prompt, completion=written), price)
        if most is None and budget.limit < inf:
            return Failure(_unpriced(f"agents.{request.agent}", request.model))
        # What is free needs no reservation, and goes on when the budget is used up.
        if not most or price is None:
            return Success(Charge(budget))
        # A share of what is surely the most, and not of `most`, which falls as more is learnt.
        surely = cost(Tokens(prompt=num_prompts * sure, completion=written), price) or most
        expected = min(most, surely * self._costs[player].upper_bound())
        reservation = await budget.reserve(most, expected=expected, durable=durable)
        if reservation is None:
            return Failure(budget.refusal or Problem("the budget is used up"))

        def learn(tokens: Tokens, dollars: float) -> None:
            density = tokens.prompt / (num_prompts * sure)
            self._density[model] = self._density[model].after(density)
            self._costs[player] = self._costs[player].after(dollars / surely)

        return Success(Charge(budget, price, reservation, learn))


# A prompt has at most a token a byte, but far fewer in any language, and what is lost is charged at
# its most.  After so many answers, the most that their prompts had is known, and this times that is
# taken for the most of any.
ENOUGH_ANSWERS, DENSER = 32, 1.5


class _Shares(NamedTuple):
    """The shares that answers had of a sure bound: of a prompt's tokens, or of a request's cost."""

    answers: int = 0
    highest: float = 0.0

    def after(self, share: float) -> "_Shares":
        return _Shares(self.answers + 1, max(self.highest, share))

    def upper_bound(self, margin: float = 1.0) -> float:
        return min(1.0, margin * self.highest) if self.answers >= ENOUGH_ANSWERS else 1.0


def within_budget(sampler: Sampler, meter: Meter) -> Sampler:
    """The sampler with its completions charged to the meter, kept within its budget.

    One whose answers can be lost on the way has to ask the meter itself, exchange by exchange.
    """

    async def sample(request: Request) -> Result[tuple[Completion | Unanswered, ...], Problem]:
        num = len(request.keys)
        match await meter.reserve(request, num, num_prompts=num, durable=True):
            case Success(charge):
                with charge:
                    answers = await sampler(request)
                    charge.bill(answers.map(tokens_of).value_or(Tokens()))
                return answers
            case Failure(problem):
                return Failure(problem)
        raise AssertionError

    return sample


def tokens_of(answers: Collection[Completion | Unanswered]) -> Tokens:
    """The tokens of completions, as their provider counted them."""
    completions = [answer for answer in answers if isinstance(answer, Completion)]
    return Tokens(
        sum(reply.prompt_tokens for reply in completions),
        sum(reply.cached_tokens for reply in completions),
        sum(reply.completion_tokens for reply in completions),
    )


def training_within_budget(
    tuner: Tuner,
    budget: Budget,
    price_of: Callable[[Job], Price | None],
    tokens_of: Callable[[Job], float],
) -> Tuner:
    """The tuner, called only for trainings that can be afforded.

    Args:
        tuner: trains; a training that outlives this process is found again by the next.
        budget: pays for it.
        price_of: the price of a job's model.
        tokens_of: the tokens that a job is expected to be billed for.
    """

    async def tune(job: Job) -> Result[Tuned, Problem]:
        price = price_of(job)
        most = cost(Tokens(trained=tokens_of(job)), price)
        if most is None and budget.limit < inf:
            return Failure(_unpriced(job.name, f"training {job.model}"))
        if not most or price is None:
            return await tuner(job)
        reservation = await budget.reserve(most, durable=True)
        if reservation is None:
            return Failure(budget.refusal or Problem("the budget is used up"))
        with Charge(budget, price, reservation) as charge:
            ended = await tuner(job)
            trained = ended.map(lambda tuned: trained_tokens(job, tuned.adapter, tuned.report))
            charge.bill(Tokens(trained=trained.value_or(0)))
        return ended

    return tune


def _unpriced(address: str, what: str) -> Problem:
    return Problem(
        f"the price of {what} is unknown",
        address=address,
        remedy="add it to a file given as `prices`",
    )
