"""Samples replies from models behind an API, as fast as it bears, and loses none."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Literal, NamedTuple

import aiohttp
import httpx2
from msgspec.structs import replace
from returns.result import Failure, Result, Success

from nip_fn.game.reply import Completion
from nip_fn.keys import Key
from nip_fn.params.agent import AgentParameters
from nip_fn.run.ports import Unanswered
from nip_fn.run.request import Request
from nip_fn_adapters.api import pace, problems, replies, retries
from nip_fn_adapters.api.admission import AdmissionQueue, Turn
from nip_fn_adapters.api.endpoints import KEY_VARIABLES, Chats, Endpoint, endpoints_of
from nip_fn_adapters.api.pace import Bounds, Pace
from nip_fn_adapters.api.replies import Answered, Capabilities, Problem
from nip_fn_adapters.api.retries import Attempt, GiveUp, RetryPolicy

Answer = Result[tuple[Completion, ...], str]
Places = tuple[Completion | Unanswered, ...]

TELL_EVERY = 30.0  # seconds between two lines about one server
WORTH_TELLING = 5.0  # seconds that a request has been held up
CHARACTERS = 4  # of a token, about


class Served(NamedTuple):
    """How one agent's model is asked."""

    endpoints: tuple[Endpoint, ...]  # requests are shared among them
    key_variable: str | None = None  # the environment variable that holds the key
    replies_per_request: Literal["auto", "all", "one"] = "auto"
    caches: bool = False  # the server takes `prompt_cache_key`


class ClientSettings(NamedTuple):
    """How servers are dealt with.  Times are in seconds."""

    policy: RetryPolicy = RetryPolicy()
    max_unseen: float = 60.0  # in all, for a server to be reached that has never answered
    bounds: Bounds = Bounds()
    timeout: float = 600.0  # of a request
    tell: Callable[[str], None] = lambda line: None  # of what holds the run up
    speed: float = 1.0  # at which time passes while nothing is done; more than 1 in tests


GOOD_MANNERS = ClientSettings()


def served_by(agent: AgentParameters, environment: Mapping[str, str]) -> Result[Served, str]:
    """How the agent's model is asked; or which key is missing."""
    provider = agent.model_provider
    return endpoints_of(agent, environment).map(
        lambda endpoints: Served(
            endpoints,
            agent.api_key_variable or KEY_VARIABLES.get(provider),
            agent.replies_per_request,
            caches=provider == "OpenAI",
        )
    )


def api_sampler(
    agents: Mapping[str, Served], manners: ClientSettings = GOOD_MANNERS
) -> "ApiSampler":
    """A sampler for agents (by name) whose models are served by an API like OpenAI's.

    Agents at one server share its limit of requests in flight.
    """
    return ApiSampler(agents, manners)


class Wanted(NamedTuple):
    """Replies to one chat, in one request."""

    request: Request
    served: Served
    keys: tuple[Key, ...]

    @property
    def model(self) -> str:
        """The name that the server knows it by."""
        return self.request.adapter or self.request.model

    @property
    def most_tokens(self) -> float:
        """What it may cost, as servers reckon before they know."""
        prompt = sum(len(message.content) for message in self.request.chat) / CHARACTERS
        return prompt + len(self.keys) * self.request.max_tokens


class _Again(NamedTuple):
    """A request that is to be sent after a pause."""

    history: tuple[Attempt, ...] = ()
    pause: float = 0.0  # seconds
    # Those that are refused for being too many count as in flight meanwhile, or others would be
    # refused in their place.
    keeps_turn: bool = False


class ApiSampler:
    """Fulfils the `Sampler` port."""

    def __init__(self, agents: Mapping[str, Served], manners: ClientSettings) -> None:
        """Ask nothing yet; see `api_sampler`."""
        self._agents, self._manners = agents, manners
        self._gate = AdmissionQueue(manners.bounds, self._clock, manners.speed)
        self._chats: dict[Endpoint, tuple[Chats, AsyncIterator[Chats]]] = {}
        self._quirks: defaultdict[tuple[Endpoint, str], Capabilities] = defaultdict(Capabilities)
        self._seen: set[Endpoint] = set()  # servers that have answered
        self._told: dict[Endpoint, float] = {}
        self._pauses: set[asyncio.Future[None]] = set()

    async def __call__(self, request: Request) -> Result[Places, str]:
        """One completion for each key, in their order, as far as they came.

        Failure: a server refuses the request, or has failed for too long, and none came.
        """
        places = await self._sample(Wanted(request, self._agents[request.agent], request.keys))
        missing = [place.problem for place in places if isinstance(place, Unanswered)]
        if len(missing) < len(places):
            return Success(places)
        problem = next(filter(None, missing), None)
        if problem is None:
            raise asyncio.CancelledError  # all was held back
        return Failure(problem)

    def drain(self) -> None:
        """Send nothing more: calls that wait for their turn are cancelled, others may end."""
        self._gate.close()
        for pause in self._pauses:
            pause.cancel()

    async def _sample(self, wanted: Wanted) -> Places:
        """Replies from one request where the server makes several at once, else from one each."""
        if len(wanted.keys) > 1 and not self._makes_several(wanted):
            singles = (self._sample(wanted._replace(keys=(key,))) for key in wanted.keys)
            return tuple(chain.from_iterable(await asyncio.gather(*singles)))
        try:
            answer = await self._persist(wanted)
        except asyncio.CancelledError:
            if not _is_held_back():
                raise
            return (Unanswered(),) * len(wanted.keys)
        if isinstance(answer, Failure):
            return (Unanswered(answer.failure()),) * len(wanted.keys)
        some: Places = answer.unwrap()
        missing = wanted.keys[len(some) :]
        return (*some, *(await self._sample(wanted._replace(keys=missing)))) if missing else some

    def _makes_several(self, wanted: Wanted) -> bool:
        how = wanted.served.replies_per_request
        known = (self._quirks[server, wanted.model] for server in wanted.served.endpoints)
        return how == "all" or (how == "auto" and all(quirks.together for quirks in known))

    async def _persist(self, wanted: Wanted) -> Answer:
        """The replies of one request, asked again as long as that may help.

        They are fewer than the keys where the server does not make as many at once.
        """
        order, again = self._gate.order(), _Again()
        while True:
            turn = await self._gate.enter(wanted.served.endpoints, order, wanted.most_tokens)
            try:
                got = await self._attempt(turn, wanted, again)
                if not isinstance(got, _Again):
                    return got
                again = got
                if again.keeps_turn:
                    await self._pause(again.pause)
            finally:
                self._gate.leave(turn)
            if not again.keeps_turn:
                await self._pause(again.pause)

    async def _attempt(self, turn: Turn, wanted: Wanted, before: "_Again") -> "Answer | _Again":
        """The answer, or how to go on."""
        server, began = turn.server, time.monotonic()
        quirks = self._quirks[server, wanted.model]
        got, headers = await self._exchange(server, wanted, quirks)
        seconds = time.monotonic() - began
        self._gate.note(turn, partial(_pace_after, turn, got, headers, self._clock()))
        if isinstance(got, Answered):
            self._note_number(wanted, server, got.num_choices)
            return Success(tuple(replace(one, seconds=seconds) for one in got.completions))
        withheld = replies.withheld(got, wanted.request, wanted.keys)
        if withheld:
            return Success(withheld)
        if self._learn(wanted, server, quirks, got):
            one_by_one = len(wanted.keys) > 1 and not self._makes_several(wanted)
            return Success(()) if one_by_one else before._replace(pause=0.0)
        attempt = Attempt(got.kind, got.status, got.retry_after, seconds, before.pause)
        history = (*before.history, attempt)
        decision = retries.decide(history, self._policy(server), wanted.keys[0])
        if isinstance(decision, GiveUp):
            return Failure(_explain(server, wanted, got, decision.reason))
        self._tell(server, wanted, got, history)
        return _Again(history, decision.seconds, keeps_turn=got.kind == "rate_limit")

    async def _exchange(
        self, server: Endpoint, wanted: Wanted, quirks: Capabilities
    ) -> tuple[Answered | Problem, Mapping[str, str]]:
        """What came of one request over the wire, and the headers of the answer."""
        content = replies.body_of(wanted.request, wanted.keys, quirks, wanted.served.caches)
        try:
            async with asyncio.timeout(self._manners.timeout):
                chats = await self._served(server)
                response = await chats.post(content)
        except (httpx2.HTTPError, aiohttp.ClientError, OSError) as error:
            return problems.problem_of(error), {}
        self._seen.add(server)
        headers = problems.headers_of(response)
        if response.status_code != 200:
            return problems.problem_in(response.content, response.status_code, headers), headers
        most = len(wanted.keys)
        return replies.read_answer(response.content, headers, wanted.request, most), headers

    async def _served(self, server: Endpoint) -> Chats:
        """The server's chats, the same as long as the event loop runs."""
        if server not in self._chats:
            life = self._life(server)
            self._chats[server] = (await anext(life), life)
        return self._chats[server][0]

    async def _life(self, server: Endpoint) -> AsyncIterator[Chats]:
        """Chats that are closed when the event loop ends, as loops end asynchronous generators.

        Nobody else could tell: a run may go on as long as there is anything to ask for.
        """
        highest = self._manners.bounds.highest
        chats = Chats(server, timeout=self._manners.timeout, connections=highest)
        try:
            yield chats
        finally:
            del self._chats[server]
            await chats.aclose()

    def _learn(
        self, wanted: Wanted, server: Endpoint, used: Capabilities, problem: Problem
    ) -> bool:
        """Whether the server will take the request in another form, known from now on."""
        learnt = replies.learn(used, problem)
        if learnt is None or (learnt.together < used.together and _insists(wanted)):
            return False
        self._remember(wanted, server, learnt)
        return True

    def _note_number(self, wanted: Wanted, server: Endpoint, num_choices: int) -> None:
        if num_choices != len(wanted.keys) and not _insists(wanted):
            self._remember(wanted, server, Capabilities(together=False))

    def _remember(self, wanted: Wanted, server: Endpoint, learnt: Capabilities) -> None:
        known = self._quirks[server, wanted.model]
        self._quirks[server, wanted.model] = replies.both(known, learnt)
        for line in replies.differences(known, self._quirks[server, wanted.model]):
            self._manners.tell(f"{server.url}, {wanted.model}: {line}")

    def _policy(self, server: Endpoint) -> RetryPolicy:
        policy = self._manners.policy
        if server in self._seen:
            return policy
        return policy._replace(max_away=min(policy.max_away, self._manners.max_unseen))

    def _tell(
        self, server: Endpoint, wanted: Wanted, problem: Problem, history: Sequence[Attempt]
    ) -> None:
        """Say what holds a request up for long, not too often."""
        held_up = sum(attempt.seconds + attempt.waited for attempt in history)
        now = self._clock()
        if held_up < WORTH_TELLING or now - self._told.get(server, -TELL_EVERY) < TELL_EVERY:
            return
        self._told[server] = now
        told = problems.told(server, wanted.model, problem)
        waiting = self._gate.num_waiting + len(self._pauses) + 1
        self._manners.tell(f"{told}; trying again, {waiting:,} requests wait")

    def _clock(self) -> float:
        return time.monotonic() * self._manners.speed

    async def _pause(self, seconds: float) -> None:
        if not seconds:
            return
        pause = asyncio.ensure_future(asyncio.sleep(seconds / self._manners.speed))
        self._pauses.add(pause)
        try:
            await pause
        finally:
            self._pauses.discard(pause)


def _is_held_back() -> bool:
    """Whether what was waited for is cancelled, but not the task that waits."""
    task = asyncio.current_task()
    return task is not None and not task.cancelling()


def _insists(wanted: Wanted) -> bool:
    """Whether several replies are to come from one request, whatever the server says."""
    return wanted.served.replies_per_request == "all"


def _explain(server: Endpoint, wanted: Wanted, problem: Problem, reason: str) -> str:
    """The line that a run ends with."""
    told = problems.told(server, f"{wanted.request.agent}'s {wanted.model}", problem)
    parts = (told, reason, problems.advice(problem, wanted.served.key_variable))
    return "; ".join(part for part in parts if part)


def _pace_after(
    turn: Turn,
    got: Answered | Problem,
    headers: Mapping[str, str],
    now: float,
    before: Pace,
    in_flight: int,
) -> Pace:
    quotas = pace.read_quotas(headers, now, turn.spent)
    if isinstance(got, Answered):
        return pace.answered(before, in_flight, now, quotas)
    if got.kind == "rate_limit":
        return pace.refused(before, in_flight, now, got.retry_after or 0.0, quotas)
    if got.kind == "connection":
        return pace.unreachable(before, now)
    return before._replace(lost=0)
