"""Agents without a model: every reply is a pure function of the request's key."""

from hashlib import blake2b
from string import ascii_lowercase

from numpy.random import Generator
from returns.result import Result, Success

from nip_fn.finetune import Job
from nip_fn.keys import Key, generator
from nip_fn.ports import Sampler, Tuned, Tuner
from nip_fn.reply import Completion
from nip_fn.requests import Request
from nip_fn.spectra import SPECTRA


def dummy_sampler(decision_rate: float = 0.4, invalid_rate: float = 0.0) -> Sampler:
    """A sampler that writes random words at no cost.

    A verifier decides at `decision_rate`; at `invalid_rate` it decides in words that mean nothing,
    and a prover says nothing.
    """

    async def sample(request: Request) -> Result[tuple[Completion, ...], str]:
        return Success(
            tuple(_reply(request, key, decision_rate, invalid_rate) for key in request.keys)
        )

    return sample


def _reply(request: Request, key: Key, decision_rate: float, invalid_rate: float) -> Completion:
    rng = generator(key)
    invalid, decides = rng.random() < invalid_rate, rng.random() < decision_rate
    if request.is_verifier and (decides or invalid):
        decisions = SPECTRA["accept_reject"]
        word = "perhaps" if invalid else decisions[int(rng.integers(len(decisions)))].text
        text = f"Decision: {word}"
    elif invalid:
        text = ""
    else:
        text = f"{'Question for Expert' if request.is_verifier else 'Answer'}: {_letters(rng)}"
    return Completion(
        text=text,
        finish_reason="stop",
        model=request.adapter or request.model,
        prompt_tokens=sum(len(message.content.split()) for message in request.chat),
        completion_tokens=len(text.split()),
    )


def _letters(rng: Generator) -> str:
    return "".join(ascii_lowercase[i] for i in rng.integers(len(ascii_lowercase), size=20))


def dummy_tuner() -> Tuner:
    """A tuner that trains nothing; the adapter's name depends on the job and its data alone."""

    async def tune(job: Job) -> Result[Tuned, str]:
        seed = f"{job.name} {job.start} {job.reference} {job.seed} {job.data_hash}"
        digest = blake2b(seed.encode(), digest_size=4).hexdigest()
        return Success(Tuned(f"{job.name}-{digest}", (("rows", float(len(job.rows))),)))

    return tune


async def serve_at_once(group: str, adapter: str) -> Result[None, str]:
    """A publisher for samplers that find an adapter by its name when they are asked for it."""
    return Success(None)
