"""Samples replies from models behind an API, as fast as it bears, and loses none.

A reply that the provider has made is paid for.  So nothing that was answered is requested again,
and a request that fails for good never takes the replies of its siblings with it.
"""

import asyncio
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
from nip_fn_adapters import clock
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
    is_openai: bool = False  # the servers are OpenAI's own


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
            all(map(_is_openai, endpoints)),
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


class ApiQuery(NamedTuple):
    """A request for some of the replies to a chat, at one of the servers of its model."""

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
_Results = tuple[Completion | Problem | None, ...]  # None: cancelled before it was sent


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
        self._tokenless: set[tuple[Endpoint, str]] = set()  # those that gave no tokens
        self._pauses: set[asyncio.Future[None]] = set()

    async def __call__(
        self, request: Request
    ) -> Result[tuple[Completion | Unanswered, ...], Problem]:
        """The completions for the request's keys, in their order, as far as there are any.

        Failure: a server refuses the request, or has failed for too long, and there is none.
        """
        results = await self._sample(ApiQuery(request, self._agents[request.agent], request.keys))
        if any(isinstance(result, Completion) for result in results):
            return Success(tuple(map(_completion_or_reason, results)))
        problem = next((result for result in results if isinstance(result, Problem)), None)
        if problem is None:
            raise asyncio.CancelledError  # `drain` was called before anything was sent
        return Failure(problem)

    def drain(self) -> None:
        """Send nothing more: requests without a permit are cancelled, those in flight may end."""
        # Requests in flight are left alone: the provider is writing replies that will be paid for.
        self._queue.close()
        for pause in self._pauses:
            pause.cancel()

    async def _sample(self, query: ApiQuery) -> _Results:
        """Replies from one request if the server makes several at once, else from one each."""
        if len(query.keys) > 1 and not self._makes_several(query):
            singles = (self._sample(query._replace(keys=(key,))) for key in query.keys)
            return tuple(chain.from_iterable(await asyncio.gather(*singles)))
        try:
            outcome = await self._persist(query)
        except asyncio.CancelledError:
            if not _is_drained():
                raise
            return (None,) * len(query.keys)
        match outcome:
            case Success(completions):
                # Only the rest is requested again: what the server did make is paid for.
                missing = query._replace(keys=query.keys[len(completions) :])
                return (*completions, *(await self._sample(missing) if missing.keys else ()))
            case Failure(problem):
                return (problem,) * len(query.keys)
        raise AssertionError(outcome)

    def _makes_several(self, query: ApiQuery) -> bool:
        mode = query.served.replies_per_request
        of_servers = (self._capabilities[server, query.model] for server in query.served.endpoints)
        return query.insists or (
            mode == "auto"
            and all(server_capabilities.several for server_capabilities in of_servers)
        )

    async def _persist(self, query: ApiQuery) -> _Outcome:
        """The replies of one request, sent again as long as that may help.

        They are fewer than the keys if the server does not make as many at once.
        """
        ticket, again = self._queue.ticket(), _Again()
        while True:
            servers, prefix = query.served.endpoints, replies.prefix_of(query.request)
            permit = await self._queue.acquire(servers, ticket, query.most_tokens, prefix)
            try:
                outcome = await self._attempt(permit, query, again)
            finally:
                self._queue.release(permit)
            if not isinstance(outcome, _Again):
                return outcome
            again = outcome
            await self._pause(again.pause)

    async def _attempt(self, permit: Permit, query: ApiQuery, before: _Again) -> _Outcome | _Again:
        """The outcome of one exchange, or how to try again."""
        server = permit.server
        # Taken before the request is sent: others may learn something meanwhile, and a refusal can
        # be understood only by what this request asked for.
        used = before.guess or self._capabilities[server, query.model]
        if not used.several and not query.insists:
            query = query._replace(keys=query.keys[:1])
        num_keys = len(query.keys)
        reserved = await self._meter.reserve(query.request, num_keys, durable=self.durable)
        if not is_successful(reserved):
            return Failure(reserved.failure())
        began = clock.monotonic()
        with reserved.unwrap() as charge:
            answer, headers = await self._exchange(server, query, used)
            seconds = clock.monotonic() - began
            shortest = self._shortest.get((server, query.model), retries.UNKNOWN_SECONDS)
            charge.bill(_billed(answer, seconds, shortest))
        if isinstance(answer, Problem):
            return Failure(answer)
        if _is_stale(answer, seconds) and not before.was_stale:
            return before._replace(pause=0.0, was_stale=True)
        self._update_pace(permit, answer, headers)
        if isinstance(answer, Answered):
            target = server, query.model
            self._shortest[target] = min(seconds, self._shortest.get(target, seconds))
            if before.guess is not None:
                self._remember(query, server, before.guess)
            self._check_number(query, server, answer.num_choices)
            self._report_empty(server, query, answer)
            self._report_tokenless(server, query, answer)
            return Success(
                tuple(replace(completion, seconds=seconds) for completion in answer.completions)
            )
        withheld = replies.withheld(answer, query.request, query.keys)
        if withheld:
            self._report(
                server, answer.kind, problems.describe(server, query.purpose, answer), INVALID
            )
            return Success(withheld)
        other_form = self._other_form(server, query, used, answer, before)
        if other_form is not None:
            return other_form
        outage = self._outage(query) if answer.kind in OUTAGES else None
        in_outage = outage is not None
        attempt = Attempt(
            answer.kind, answer.status, answer.retry_after, seconds, before.pause, in_outage
        )
        history = (*before.history, attempt)
        decision = retries.decide(history, self._settings.policy, query.keys[0], outage)
        if isinstance(decision, GiveUp):
            # The first refusal says more than that of a guess.
            first = before.refusal if answer.kind == "refused" else None
            return Failure(_final(server, query, first or answer, decision.reason))
        self._report_delay(server, query, answer, history, outage)
        return before._replace(history=history, pause=decision.seconds, was_stale=False)

    def _update_pace(
        self, permit: Permit, got: Answered | RequestFailure, headers: Mapping[str, str]
    ) -> None:
        """Update the pace of the server after an answer."""
        change = partial(_pace_after, permit, got, headers, self._clock())
        self._queue.update_pace(permit, change)

    async def _exchange(
        self, server: Endpoint, query: ApiQuery, capabilities: Capabilities
    ) -> tuple[Answered | RequestFailure | Problem, Mapping[str, str]]:
        """The result of one request, and the headers of the answer; a Problem is final."""
        content = replies.body_of(query.request, query.keys, capabilities, query.served.is_openai)
        try:
            # Around the whole exchange: the client's limits are for single reads, which a server
            # that sends a byte now and then never exceeds.
            async with asyncio.timeout(self._settings.timeout):
                chats = await self._client(server)
                text_bytes = replies.most_bytes(query.request, len(query.keys))
                response = await chats.post(content, max(replies.SHORT_ANSWER, text_bytes))
        except (aiohttp.ClientError, OSError) as error:
            return problems.failure_of(error), {}
        status, headers, body = response
        if status >= 300:
            return problems.failure_in(body, status, headers), headers
        number = len(query.keys)
        return replies.read_answer(body, headers, query.request, number, status), headers

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
        query: ApiQuery,
        used: Capabilities,
        failure: RequestFailure,
        before: _Again,
    ) -> _Outcome | _Again | None:
        """The same request in another form, after a refusal; None if no other form may help.

        It is sent at once, and not counted as an attempt: nothing is wrong with the server.
        """
        sent = replies.optional_fields(query.request, query.keys, used, query.served.is_openai)
        sent -= {"n"} if query.insists else set()
        form = capabilities.other_form(used, failure, query.request, sent)
        if form is None:
            return None
        if form.is_guessed:
            problem = problems.describe(server, query.purpose, failure)
            fields = ", ".join(sorted(sent - {"n"} or sent))
            self._report(server, "guess", problem, f"tried again without {fields}")
        elif before.guess is None:
            self._remember(query, server, form.capabilities)
            one_by_one = len(query.keys) > 1 and not self._makes_several(query)
            return Success(()) if one_by_one else before._replace(pause=0.0)
        # A guess, and what is learnt on top of it, is remembered once an answer has confirmed it.
        refusal = before.refusal or failure
        return before._replace(pause=0.0, guess=form.capabilities, refusal=refusal)

    def _check_number(self, query: ApiQuery, server: Endpoint, num_choices: int) -> None:
        """Request replies one by one from a server whose answers repeatedly ignore n."""
        if len(query.keys) == 1 or query.insists:
            return
        target = server, query.model
        self._deviant[target] = self._deviant[target] + 1 if num_choices != len(query.keys) else 0
        if self._deviant[target] >= DEVIANT_ANSWERS:
            self._remember(query, server, Capabilities(several=False))

    def _remember(self, query: ApiQuery, server: Endpoint, learnt: Capabilities) -> None:
        before = self._capabilities[server, query.model]
        self._capabilities[server, query.model] = capabilities.combine(before, learnt)
        for line in capabilities.newly_learnt(before, self._capabilities[server, query.model]):
            self._settings.tell(f"{server.url}: {query.model}: the server {line}")

    def _outage(self, query: ApiQuery) -> Outage | None:
        """The outage of all servers of the model: the one with the most time left.

        None if one of them answers.
        """
        policy, paces = self._settings.policy, self._queue.paces(query.served.endpoints)
        if not all(server_pace.is_out for server_pace in paces):
            return None
        # A server that has answered before is restarting; one that never has is a wrong address.
        limits = (
            policy.max_outage if server_pace.seen else policy.max_unreached for server_pace in paces
        )
        now = self._clock()
        outages = (
            Outage(now - server_pace.out_since, limit)
            for server_pace, limit in zip(paces, limits, strict=True)
        )
        return max(outages, key=lambda outage: outage.left)

    def _report_empty(self, server: Endpoint, query: ApiQuery, answered: Answered) -> None:
        """Report replies that used up their token limit without any text."""
        empty = replies.report_of_empty(answered, query.request)
        if empty:
            remedy = f"raise {_address(query, 'max_tokens_per_message')}"
            problem = Problem(empty, query.purpose, remedy).at(server.url)
            self._report(server, f"empty {query.purpose}", problem, GIVEN_UP)

    def _report_tokenless(self, server: Endpoint, query: ApiQuery, answered: Answered) -> None:
        """Report, once, that a server gives no tokens of the replies that it makes."""
        target, written = (server, query.model), [r for r in answered.completions if r.text]
        if not query.request.record_tokens or target in self._tokenless or not written:
            return
        if not any(reply.tokens for reply in written):
            self._tokenless.add(target)
            what = "gives neither token ids nor log-probabilities, so none are recorded"
            self._settings.tell(f"{server.url}: {query.model}: the server {what}")

    def _report_delay(
        self,
        server: Endpoint,
        query: ApiQuery,
        failure: RequestFailure,
        history: Sequence[Attempt],
        outage: Outage | None,
    ) -> None:
        """Report a failure that delays a request for long."""
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
        self._report(server, "delay", problems.describe(server, query.model, failure), then)

    def _report(self, server: Endpoint, subject: str, problem: Problem, consequence: str) -> None:
        """Report a problem, at most once in `REPORT_EVERY` for a server and what it is about."""
        now, topic = self._clock(), (server, subject)
        if now - self._reported_at.get(topic, -REPORT_EVERY) >= REPORT_EVERY:
            self._reported_at[topic] = now
            self._settings.tell(f"{problem}; {consequence}")

    def _clock(self) -> float:
        return clock.monotonic() * self._settings.speed

    async def _pause(self, seconds: float) -> None:
        if not seconds:
            return
        pause = asyncio.ensure_future(asyncio.sleep(seconds / self._settings.speed))
        self._pauses.add(pause)
        try:
            await pause
        finally:
            self._pauses.discard(pause)


def _final(server: Endpoint, query: ApiQuery, failure: RequestFailure, reason: str) -> Problem:
    """The failure of a request that is given up."""
    remedy, lasting = problems.remedy_for(failure, query.served.key_variable), None
    if failure.kind == "refused":
        # Only a parameter that the user has set can be set otherwise.
        parameter = capabilities.parameter_of(failure, query.request)
        lasting = bool(parameter)
        remedy = f"change {_address(query, parameter)}" if parameter else ""
    return problems.describe(server, query.purpose, failure, reason, remedy, lasting=lasting)


def _address(query: ApiQuery, parameter: str) -> str:
    return f"agents.{query.request.agent}.{parameter}"


def _completion_or_reason(result: Completion | Problem | None) -> Completion | Unanswered:
    if isinstance(result, Completion):
        return result
    return Unanswered(str(result) if result else "")


def _billed(
    answer: Answered | RequestFailure | Problem, seconds: float, shortest: float
) -> Tokens | None:
    """The tokens that an exchange of so many seconds is billed for; None if that is not known."""
    match answer:
        case Answered(completions):
            tokens = tokens_of(completions)
            written = any(completion.text for completion in completions)
            # A server that counts nothing, or less than nothing, has not told what it bills.
            is_counted = tokens.prompt > 0 and (tokens.completion > 0 or not written)
            return tokens if is_counted else None
        case RequestFailure():
            return None if retries.may_be_billed(answer, seconds, shortest) else Tokens()
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
