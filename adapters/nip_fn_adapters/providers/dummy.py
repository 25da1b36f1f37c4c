"""Agents without a model: a reply is a pure function of the request's key."""

from hashlib import blake2b
from string import ascii_lowercase

from msgspec.structs import replace
from returns.result import Result, Success

from nip_fn.errors import Problem
from nip_fn.game.answer import MARKER
from nip_fn.game.reply import Completion
from nip_fn.keys import Key, fold_in, randint, seed_of, uniform
from nip_fn.params.run import DummyParameters
from nip_fn.run.events import Publish
from nip_fn.run.ports import Sampler, Served, Tuned, Tuner, Unanswered
from nip_fn.run.request import Request
from nip_fn.training.tuning import Job


def dummy_sampler(rates: DummyParameters) -> Sampler:
    """A sampler that writes random letters, valid in any protocol and spectrum, at no cost.

    A share `rates.decision_rate` of the verifier's replies decides, where a decision counts.  A
    share `rates.invalid_rate` of all replies is unusable: a decision for no known verdict, no
    header where one is needed, or an empty text.
    """

    # Requests for several replies are billed once for their prompt, and so are these.
    async def sample(request: Request) -> Result[tuple[Completion | Unanswered, ...], Problem]:
        first, *rest = (_reply(request, key, rates) for key in request.keys)
        return Success((first, *(replace(reply, prompt_tokens=0) for reply in rest)))

    return sample


def _reply(request: Request, key: Key, rates: DummyParameters) -> Completion:
    is_invalid = uniform(fold_in(key, "invalid")) < rates.invalid_rate
    decides = uniform(fold_in(key, "decides")) < rates.decision_rate
    decisions = request.decisions
    if decisions and (decides or is_invalid):
        verdict = decisions[randint(fold_in(key, "verdict"), len(decisions))]
        text = f"Decision: {'perhaps' if is_invalid else verdict}"
    elif is_invalid:
        text = _letters(key, 0) if request.headers else ""
    else:
        start = "Question for Expert:" if request.is_verifier else "Answer:"
        headers = enumerate(request.headers or (start,))
        text = "\n".join(f"{header} {_letters(key, index)}" for index, header in headers)
        text = f"{text}\n{MARKER} {_answer(request, key)}" if request.answers else text
    return Completion(
        text=text,
        finish_reason="stop",
        model=request.adapter or request.model,
        prompt_tokens=sum(len(message.content.split()) for message in request.chat),
        completion_tokens=len(text.split()),
    )


def _answer(request: Request, key: Key) -> str:
    """The right answer in half of all cases, and letters in the others."""
    is_right = request.datapoint is not None and uniform(fold_in(key, "right")) < 0.5
    right = request.datapoint.reference if is_right and request.datapoint else ""
    return right or _letters(key, 0)[:3]


def _letters(key: Key, index: int) -> str:
    """Twenty letters: the digits of one number, which is quicker than a draw for each."""
    number = seed_of(fold_in(key, "letters", index), 96)
    return "".join(ascii_lowercase[number // 26**i % 26] for i in range(20))


def dummy_tuner() -> Tuner:
    """A tuner that trains nothing; the adapter's name depends on the job and its data alone."""

    async def tune(job: Job) -> Result[Tuned, Problem]:
        seed = f"{job.name} {job.start} {job.reference} {job.seed} {job.data_hash}"
        digest = blake2b(seed.encode(), digest_size=4).hexdigest()
        return Success(Tuned(f"{job.name}-{digest}", (("rows", float(len(job.rows))),)))

    return tune


async def serve_at_once(effect: Publish) -> Result[Served, Problem]:
    """The `Publisher` for samplers that find an adapter by its name and cannot score replies."""
    return Success(Served())
