"""Scripts, which reply by themselves: a reply is a function of the position and a key."""

from returns.result import Failure, Result, Success

from nip_fn.config.resolve import Resolved
from nip_fn.errors import Problem
from nip_fn.game.reply import Completion
from nip_fn.run.ports import Sampler, Unanswered
from nip_fn.run.request import Request, scripted_completions


def scripted_sampler(resolved: Resolved) -> Sampler:
    """A sampler for the requests of a run that name a script.

    A strategy of a user's own that raises, or writes something else than a text, is a problem.
    """

    async def sample(request: Request) -> Result[tuple[Completion | Unanswered, ...], Problem]:
        try:
            return Success(scripted_completions(resolved, request))
        except Exception as error:  # whatever a user's own code raises
            problem = f"the strategy fails: {type(error).__name__}: {error}"
            return Failure(Problem(problem, request.script or request.agent, "correct its source"))

    return sample
