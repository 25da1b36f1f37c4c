"""Samples replies from models behind an API, as fast as it bears, and loses none.

A reply that the provider has made is paid for.  So nothing that was answered is requested again,
and a request that fails for good never takes the replies of its siblings with it.
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

import aiohttp
from msgspec.structs import replace
from returns.pipeline import is_successful
from returns.result import Failure, Result, Success

from nip_fn.errors import Problem
from nip_fn.game.reply import Completion
from nip_fn.keys import Key
from nip_fn.params.agent import AgentParameters
from nip_fn.run.ports import Unanswered
from nip_fn.run.request import Request
from nip_fn_adapters.costs.budget import Meter, tokens_of
from nip_fn_adapters.costs.prices import Tokens
from nip_fn_adapters.providers.api import capabilities, pace, problems, replies, retries
from nip_fn_adapters.providers.api.admission import AdmissionQueue, Permit
from nip_fn_adapters.providers.api.capabilities import Capabilities
from nip_fn_adapters.providers.api.clients import Chats
from nip_fn_adapters.providers.api.endpoints import KEY_VARIABLES, Endpoint, endpoints_of
from nip_fn_adapters.providers.api.pace import Bounds, Pace
from nip_fn_adapters.providers.api.persist import WORTH_TELLING
from nip_fn_adapters.providers.api.replies import Answered
from nip_fn_adapters.providers.api.retries import (
    Attempt,
    FailureKind,
    GiveUp,
    Outage,
    RequestFailure,
    RetryPolicy,
)

REPORT_EVERY = 30.0  # seconds between two lines about one server
CHARACTERS = 4  # per token, about
# In a row with another number of replies than was requested, after which replies are requested one
# by one.  That pays for the prompt each time, so a single slip of the server must not lead to it.
DEVIANT_ANSWERS = 4
INVALID = "counted as an invalid reply"
GIVEN_UP = "a second one in a row at the same place is counted as an invalid reply"
STALE_SECONDS = 1.0  # within which a closed connection refuses what is sent over it
OUTAGES: frozenset[FailureKind] = frozenset({"server", "connection", "proxy", "rate_limit"})


class ApiModel(NamedTuple):
    """The servers of one agent's model, and how to make requests to them."""

    endpoints: tuple[Endpoint, ...]  # requests are shared among them
    key_variable: str | None = None  # the environment variable that holds the key
    replies_per_request: Literal["auto", "all", "one"] = "auto"
    caches: bool = False  # the servers take `prompt_cache_key`


class ClientSettings(NamedTuple):
    """Limits of the client, for all servers.  Times are in seconds."""

    policy: RetryPolicy = RetryPolicy()
    bounds: Bounds = Bounds()
    timeout: float = 600.0  # of a request
    tell: Callable[[str], None] = lambda line: None  # reports what delays the run
    meter: Meter | None = None  # that every exchange is charged to
    speed: float = 1.0  # of the clock while nothing is done; more than 1 in tests


DEFAULT_SETTINGS = ClientSettings()


def served_by(agent: AgentParameters, environment: Mapping[str, str]) -> Result[ApiModel, Problem]:
    """The servers of the agent's model; a failure if a key is missing or an address is wrong."""
    provider = agent.model_provider
    return endpoints_of(agent, environment).map(
        lambda endpoints: ApiModel(
            endpoints,
            agent.api_key_variable or KEY_VARIABLES.get(provider),
            agent.replies_per_request,
            caches=all(map(_is_openai, endpoints)),
        )
    )


def _is_openai(endpoint: Endpoint) -> bool:
    """True if it is OpenAI's own, of any region; others may refuse what only OpenAI documents."""
    return f".{urlsplit(endpoint.url).hostname}".endswith(".api.openai.com")


def api_sampler(
    agents: Mapping[str, ApiModel], settings: ClientSettings = DEFAULT_SETTINGS
) -> "ApiSampler":
    """A sampler for agents (by name) whose models are served by an API like OpenAI's.

    Agents at one server share its limit of requests in flight.
    """
    return ApiSampler(agents, settings)


class Wanted(NamedTuple):
    """Replies to one chat that are requested together."""

    request: Request
    served: ApiModel
    keys: tuple[Key, ...]

    @property
    def model(self) -> str:
        """The name by which the server knows the model."""
        return self.request.adapter or self.request.model

    @property
    def purpose(self) -> str:
        """The agent and its model, for messages."""
        return f"{self.request.agent}'s {self.model}"

    @property
    def most_tokens(self) -> float:
        """The tokens that servers charge against a quota before they know the real number."""
        prompt = sum(len(message.content) for message in self.request.chat) / CHARACTERS
        return prompt + len(self.keys) * self.request.max_tokens

    @property
    def insists(self) -> bool:
        """True if all replies must come from one request, whatever the server says."""
        return self.served.replies_per_request == "all"


class _Again(NamedTuple):
    """A request that is to be sent again after a pause."""

    history: tuple[Attempt, ...] = ()
    pause: float = 0.0  # seconds
    was_stale: bool = False  # the connection had been closed before it was sent
    guess: Capabilities | None = None  # a form that no answer has confirmed yet
    refusal: RequestFailure | None = None  # that led to the guess


_Outcome = Result[tuple[Completion, ...], Problem]
_Places = tuple[Completion | Problem | None, ...]  # None: cancelled before it was sent


class ApiSampler:
    """Implements the `Sampler` port."""

    durable = False  # a request outlives this process: a later one finds it, and what it cost

    def __init__(self, agents: Mapping[str, ApiModel], settings: ClientSettings) -> None:
        """Send nothing yet; see `api_sampler`."""
        self._agents, self._settings = agents, settings
        self._meter = settings.meter or Meter()
        self._queue = AdmissionQueue(settings.bounds, self._clock, settings.speed)
        self._chats: dict[Endpoint, tuple[Chats, AsyncIterator[Chats]]] = {}
        self._capabilities: defaultdict[tuple[Endpoint, str], Capabilities]
        self._capabilities = defaultdict(Capabilities)
        self._shortest: dict[tuple[Endpoint, str], float] = {}  # seconds of the fastest answer
        # Answers in a row with another number of replies than was requested.
        self._deviant: Counter[tuple[Endpoint, str]] = Counter()
        self._reported_at: dict[tuple[Endpoint, str], float] = {}
        self._pauses: set[asyncio.Future[None]] = set()

    async def __call__(
        self, request: Request
    ) -> Result[tuple[Completion | Unanswered, ...], Problem]:
        """The completions for the request's keys, in their order, as far as there are any.

        Failure: a server refuses the request, or has failed for too long, and there is none.
        """
        places = await self._sample(Wanted(request, self._agents[request.agent], request.keys))
        if any(isinstance(place, Completion) for place in places):
            return Success(tuple(map(_completion_or_reason, places)))
        problem = next((place for place in places if isinstance(place, Problem)), None)
        if problem is None:
            raise asyncio.CancelledError  # `drain` was called before anything was sent
        return Failure(problem)

    def drain(self) -> None:
        """Send nothing more: requests without a permit are cancelled, those in flight may end."""
        # Requests in flight are left alone: the provider is writing replies that will be paid for.
        self._queue.close()
        for pause in self._pauses:
            pause.cancel()

    async def _sample(self, wanted: Wanted) -> _Places:
        """Replies from one request if the server makes several at once, else from one each."""
        if len(wanted.keys) > 1 and not self._makes_several(wanted):
            singles = (self._sample(wanted._replace(keys=(key,))) for key in wanted.keys)
            return tuple(chain.from_iterable(await asyncio.gather(*singles)))
        try:
            outcome = await self._persist(wanted)
        except asyncio.CancelledError:
            if not _is_drained():
                raise
            return (None,) * len(wanted.keys)
        match outcome:
            case Success(completions):
                # Only the rest is requested again: what the server did make is paid for.
                missing = wanted._replace(keys=wanted.keys[len(completions) :])
                return (*completions, *(await self._sample(missing) if missing.keys else ()))
            case Failure(problem):
                return (problem,) * len(wanted.keys)
        raise AssertionError(outcome)

    def _makes_several(self, wanted: Wanted) -> bool:
        mode = wanted.served.replies_per_request
        known = (self._capabilities[server, wanted.model] for server in wanted.served.endpoints)
        return wanted.insists or (mode == "auto" and all(one.several for one in known))

    async def _persist(self, wanted: Wanted) -> _Outcome:
        """The replies of one request, sent again as long as that may help.

        They are fewer than the keys if the server does not make as many at once.
        """
        ticket, again = self._queue.ticket(), _Again()
        while True:
            servers, prefix = wanted.served.endpoints, replies.prefix_of(wanted.request)
            permit = await self._queue.acquire(servers, ticket, wanted.most_tokens, prefix)
            try:
                outcome = await self._attempt(permit, wanted, again)
            finally:
                self._queue.release(permit)
            if not isinstance(outcome, _Again):
                return outcome
            again = outcome
            await self._pause(again.pause)

    async def _attempt(self, permit: Permit, wanted: Wanted, before: _Again) -> _Outcome | _Again:
        """The outcome of one exchange, or how to try again."""
        server = permit.server
        # Taken before the request is sent: others may learn something meanwhile, and a refusal can
        # be understood only by what this request asked for.
        used = before.guess or self._capabilities[server, wanted.model]
        if not used.several and not wanted.insists:
            wanted = wanted._replace(keys=wanted.keys[:1])
        num_keys = len(wanted.keys)
        reserved = await self._meter.reserve(wanted.request, num_keys, durable=self.durable)
        if not is_successful(reserved):
            return Failure(reserved.failure())
        began = time.monotonic()
        with reserved.unwrap() as charge:
            got, headers = await self._exchange(server, wanted, used)
            seconds = time.monotonic() - began
            shortest = self._shortest.get((server, wanted.model), retries.UNKNOWN_SECONDS)
            charge.bill(_billed(got, seconds, shortest))
        if isinstance(got, Problem):
            return Failure(got)
        if _is_stale(got, seconds) and not before.was_stale:
            return before._replace(pause=0.0, was_stale=True)
        self._update_pace(permit, got, headers)
        if isinstance(got, Answered):
            place = server, wanted.model
            self._shortest[place] = min(seconds, self._shortest.get(place, seconds))
            if before.guess is not None:
                self._remember(wanted, server, before.guess)
            self._check_number(wanted, server, got.num_choices)
            self._report_empty(server, wanted, got)
            return Success(tuple(replace(one, seconds=seconds) for one in got.completions))
        withheld = replies.withheld(got, wanted.request, wanted.keys)
        if withheld:
            self._report(server, got.kind, problems.describe(server, wanted.purpose, got), INVALID)
            return Success(withheld)
        other_form = self._other_form(server, wanted, used, got, before)
        if other_form is not None:
            return other_form
        outage = self._outage(wanted) if got.kind in OUTAGES else None
        in_outage = outage is not None
        attempt = Attempt(got.kind, got.status, got.retry_after, seconds, before.pause, in_outage)
        history = (*before.history, attempt)
        decision = retries.decide(history, self._settings.policy, wanted.keys[0], outage)
        if isinstance(decision, GiveUp):
            # The first refusal says more than that of a guess.
            first = before.refusal if got.kind == "refused" else None
            return Failure(_final(server, wanted, first or got, decision.reason))
        self._report_delay(server, wanted, got, history, outage)
        return before._replace(history=history, pause=decision.seconds, was_stale=False)

    def _update_pace(
        self, permit: Permit, got: Answered | RequestFailure, headers: Mapping[str, str]
    ) -> None:
        """Let what came back change the pace of its server."""
        change = partial(_pace_after, permit, got, headers, self._clock())
        self._queue.update_pace(permit, change)

    async def _exchange(
        self, server: Endpoint, wanted: Wanted, capabilities: Capabilities
    ) -> tuple[Answered | RequestFailure | Problem, Mapping[str, str]]:
        """The result of one request, and the headers of the answer; a Problem is final."""
        content = replies.body_of(wanted.request, wanted.keys, capabilities, wanted.served.caches)
        try:
            # Around the whole exchange: the client's limits are for single reads, which a server
            # that sends a byte now and then never exceeds.
            async with asyncio.timeout(self._settings.timeout):
                chats = await self._client(server)
                text_bytes = replies.most_bytes(wanted.request, len(wanted.keys))
                response = await chats.post(content, max(replies.SHORT_ANSWER, text_bytes))
        except (aiohttp.ClientError, OSError) as error:
            return problems.failure_of(error), {}
        status, headers, body = response
        if status >= 300:
            return problems.failure_in(body, status, headers), headers
        number = len(wanted.keys)
        return replies.read_answer(body, headers, wanted.request, number, status), headers

    async def _client(self, server: Endpoint) -> Chats:
        """The client of a server, the same until the event loop ends."""
        if server not in self._chats:
            lifetime = self._lifetime(server)
            self._chats[server] = (await anext(lifetime), lifetime)
        return self._chats[server][0]

    async def _lifetime(self, server: Endpoint) -> AsyncIterator[Chats]:
        """A client that is closed when the event loop ends, as loops end asynchronous generators.

        Nothing else could tell when: a run may continue as long as there is anything to request.
        """
        highest = self._settings.bounds.highest
        settings = self._settings
        chats = Chats(server, timeout=settings.timeout, connections=highest, tell=settings.tell)
        try:
            yield chats
        finally:
            del self._chats[server]
            await chats.aclose()

    def _other_form(
        self,
        server: Endpoint,
        wanted: Wanted,
        used: Capabilities,
        failure: RequestFailure,
        before: _Again,
    ) -> _Outcome | _Again | None:
        """The same request in another form, after a refusal; None if no other form may help.

        It is sent at once, and not counted as an attempt: nothing is wrong with the server.
        """
        sent = replies.optional_fields(wanted.request, wanted.keys, used, wanted.served.caches)
        sent -= {"n"} if wanted.insists else set()
        other = capabilities.other_form(used, failure, wanted.request, sent)
        if other is None:
            return None
        if other.is_guessed:
            problem = problems.describe(server, wanted.purpose, failure)
            fields = ", ".join(sorted(sent - {"n"} or sent))
            self._report(server, "guess", problem, f"tried again without {fields}")
        elif before.guess is None:
            self._remember(wanted, server, other.capabilities)
            one_by_one = len(wanted.keys) > 1 and not self._makes_several(wanted)
            return Success(()) if one_by_one else before._replace(pause=0.0)
        # A guess, and what is learnt on top of it, is remembered once an answer has confirmed it.
        refusal = before.refusal or failure
        return before._replace(pause=0.0, guess=other.capabilities, refusal=refusal)

    def _check_number(self, wanted: Wanted, server: Endpoint, num_choices: int) -> None:
        """Request replies one by one from a server that does not keep to n, answer after answer."""
        if len(wanted.keys) == 1 or wanted.insists:
            return
        place = server, wanted.model
        self._deviant[place] = self._deviant[place] + 1 if num_choices != len(wanted.keys) else 0
        if self._deviant[place] >= DEVIANT_ANSWERS:
            self._remember(wanted, server, Capabilities(several=False))

    def _remember(self, wanted: Wanted, server: Endpoint, learnt: Capabilities) -> None:
        known = self._capabilities[server, wanted.model]
        self._capabilities[server, wanted.model] = capabilities.combine(known, learnt)
        for line in capabilities.differences(known, self._capabilities[server, wanted.model]):
            self._settings.tell(f"{server.url}: {wanted.model}: the server {line}")

    def _outage(self, wanted: Wanted) -> Outage | None:
        """The outage of all servers of the model, as long as the one that is borne longest.

        None if one of them answers.
        """
        policy, paces = self._settings.policy, self._queue.paces(wanted.served.endpoints)
        if not all(one.is_out for one in paces):
            return None
        # A server that has answered before is restarting; one that never has is a wrong address.
        limits = (policy.max_outage if one.seen else policy.max_unreached for one in paces)
        now = self._clock()
        outages = (
            Outage(now - one.out_since, limit) for one, limit in zip(paces, limits, strict=True)
        )
        return max(outages, key=lambda outage: outage.left)

    def _report_empty(self, server: Endpoint, wanted: Wanted, answered: Answered) -> None:
        """Report replies that spent their whole limit before a word."""
        empty = replies.report_of_empty(answered, wanted.request)
        if empty:
            remedy = f"raise {_address(wanted, 'max_tokens_per_message')}"
            problem = Problem(empty, wanted.purpose, remedy).at(server.url)
            self._report(server, f"empty {wanted.purpose}", problem, GIVEN_UP)

    def _report_delay(
        self,
        server: Endpoint,
        wanted: Wanted,
        failure: RequestFailure,
        history: Sequence[Attempt],
        outage: Outage | None,
    ) -> None:
        """Report what delays a request for long."""
        delay = sum(attempt.seconds + attempt.waited for attempt in history)
        if max(delay, outage.seconds if outage else 0.0) < WORTH_TELLING:
            return
        waiting = self._queue.num_waiting + len(self._pauses) + 1
        then = f"trying again, {waiting:,} requests wait"
        if outage is not None:
            then = (
                f"waiting for it for {outage.left:,.0f} s more; one request at a time is tried, "
                f"{waiting:,} wait"
            )
        self._report(server, "delay", problems.describe(server, wanted.model, failure), then)

    def _report(self, server: Endpoint, what: str, problem: Problem, consequence: str) -> None:
        """Report a problem, at most once in `REPORT_EVERY` for a server and what it is about."""
        now, place = self._clock(), (server, what)
        if now - self._reported_at.get(place, -REPORT_EVERY) >= REPORT_EVERY:
            self._reported_at[place] = now
            self._settings.tell(f"{problem}; {consequence}")

    def _clock(self) -> float:
        return time.monotonic() * self._settings.speed

    async def _pause(self, seconds: float) -> None:
        if not seconds:
            return
        pause = asyncio.ensure_future(asyncio.sleep(seconds / self._settings.speed))
        self._pauses.add(pause)
        try:
            await pause
        finally:
            self._pauses.discard(pause)


def _final(server: Endpoint, wanted: Wanted, failure: RequestFailure, reason: str) -> Problem:
    """The failure of a request that is given up."""
    remedy, lasting = problems.remedy_for(failure, wanted.served.key_variable), None
    if failure.kind == "refused":
        # Only a parameter that the user has set can be set otherwise.
        parameter = capabilities.parameter_of(failure, wanted.request)
        lasting = bool(parameter)
        remedy = f"change {_address(wanted, parameter)}" if parameter else ""
    return problems.describe(server, wanted.purpose, failure, reason, remedy, lasting=lasting)


def _address(wanted: Wanted, parameter: str) -> str:
    return f"agents.{wanted.request.agent}.{parameter}"


def _completion_or_reason(place: Completion | Problem | None) -> Completion | Unanswered:
    if isinstance(place, Completion):
        return place
    return Unanswered(str(place) if place else "")


def _billed(
    got: Answered | RequestFailure | Problem, seconds: float, shortest: float
) -> Tokens | None:
    """The tokens that an exchange of so many seconds is billed for; None if that is not known."""
    match got:
        case Answered(completions):
            tokens = tokens_of(completions)
            written = any(one.text for one in completions)
            # A server that counts nothing, or less than nothing, has not told what it bills.
            is_counted = tokens.prompt > 0 and (tokens.completion > 0 or not written)
            return tokens if is_counted else None
        case RequestFailure():
            return None if retries.may_be_billed(got, seconds, shortest) else Tokens()
    return Tokens()


def _is_drained() -> bool:
    """True if what was awaited has been cancelled, but not the task that awaits it."""
    task = asyncio.current_task()
    # `cancelling` counts the requests to cancel this very task, and not its end.
    return task is not None and not task.cancelling()


def _is_stale(got: Answered | RequestFailure, seconds: float) -> bool:
    """True if the server had probably closed the connection before the request arrived.

    Servers close idle connections, and the news of that may cross with the request.
    """
    return isinstance(got, RequestFailure) and got.dropped and seconds < STALE_SECONDS


def _pace_after(
    permit: Permit,
    got: Answered | RequestFailure,
    headers: Mapping[str, str],
    now: float,
    before: Pace,
    in_flight: int,
) -> Pace:
    quotas = pace.read_quotas(headers, now, permit.consumed)
    number = permit.consumed.requests
    if isinstance(got, Answered):
        return pace.answered(before, in_flight, number, now, quotas)
    match got.kind:
        case "rate_limit":
            return pace.refused(before, in_flight, number, now, got.retry_after or 0.0, quotas)
        case "server" | "connection" | "proxy":
            return pace.failed(before, number, now, reached=got.status is not None)
        case "timeout":
            return before  # it may be there or not
        case _:
            return pace.present(before)
