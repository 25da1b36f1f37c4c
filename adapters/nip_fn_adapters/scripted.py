"""Agents without a model that follow a script: a reply is a function of the position and a key."""

from returns.result import Failure, Result, Success

from nip_fn.errors import Problem
from nip_fn.game.datapoint import Datapoint
from nip_fn.game.episode import Episode
from nip_fn.game.reply import Completion
from nip_fn.keys import Key
from nip_fn.params.agent import is_scripted
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.registry import protocol_of
from nip_fn.protocols.strategies import Strategy, scripted_reply, strategy_of
from nip_fn.run.ports import Sampler, Unanswered
from nip_fn.run.request import Request


def scripted_sampler(params: HyperParameters) -> Sampler:
    """A sampler for the scripted agents of a run, at no cost and without a token.

    A strategy of a user's own that raises, or writes something else than a text, is a problem.
    """
    strategies = {
        agent.name: (index, strategy_of(params, index))
        for index, agent in enumerate(params.agents)
        if is_scripted(agent)
    }
    protocol = protocol_of(params)

    def reply(
        strategy: Strategy, agent: int, datapoint: Datapoint, episode: Episode, key: Key
    ) -> Completion:
        text = scripted_reply(strategy, protocol, datapoint, episode, agent, key)
        return Completion(text, "stop", params.agents[agent].model_name)

    async def sample(request: Request) -> Result[tuple[Completion | Unanswered, ...], Problem]:
        index, strategy = strategies[request.agent]
        point, episode = request.datapoint, request.episode
        if point is None or episode is None:
            return Failure(Problem("a script can only be asked within a game", request.model))
        try:
            replies = tuple(reply(strategy, index, point, episode, key) for key in request.keys)
        except Exception as error:  # whatever a user's own code raises
            problem = f"the strategy fails: {type(error).__name__}: {error}"
            return Failure(Problem(problem, request.model, "correct its source"))
        return Success(replies)

    return sample
