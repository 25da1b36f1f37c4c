"""A sampler that gives recorded replies where there are any, and asks a model elsewhere."""

from returns.result import Result, Success

from nip_fn.errors import Problem
from nip_fn.game.reply import Completion
from nip_fn.run.ports import Sampler, Unanswered
from nip_fn.run.quotes import Quotes
from nip_fn.run.request import Request

QUOTED = "quoted"  # the model that a quoted reply is recorded of


def quoting(sampler: Sampler, quotes: Quotes) -> Sampler:
    """`sampler`, asked only where `quotes` has no reply; a quoted one costs nothing."""

    async def sample(request: Request) -> Result[tuple[Completion | Unanswered, ...], Problem]:
        game = request.episode
        text = quotes.get((game.key, len(game.rounds), request.agent)) if game else None
        if text is None:
            return await sampler(request)
        return Success((Completion(text, "stop", QUOTED),) * len(request.keys))

    return sample
