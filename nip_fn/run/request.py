"""Requests for replies: everything that a sampler needs to know."""

from collections.abc import Callable
from functools import cache

import msgspec

from nip_fn.config.resolve import Resolved
from nip_fn.errors import or_raise
from nip_fn.game.chat import Chat
from nip_fn.game.datapoint import Datapoint
from nip_fn.game.decision import SPECTRA, SpectrumName
from nip_fn.game.episode import Episode, may_decide, movers
from nip_fn.game.protocol import Protocol
from nip_fn.game.reply import Completion
from nip_fn.keys import Key
from nip_fn.params.agent import max_tokens
from nip_fn.params.names import look_up
from nip_fn.params.run import HyperParameters
from nip_fn.prompts.chat import build_chat
from nip_fn.protocols.strategies import scripted_reply
from nip_fn.run.events import SampleReplies
from nip_fn.run.opponents import Script
from nip_fn.run.stages import Growing
from nip_fn.run.state import RunState, episode_of, player
from nip_fn.training.groups import group_of
from nip_fn.trees.node import node_at, reply_key


# Everything that a reply may depend on is in here, the state is not: a request that is derived
# again after a crash must be able to lead to the same reply.
class Request(msgspec.Struct, frozen=True):
    """A chat, and a key for each reply to it that is wanted."""

    model: str
    adapter: str | None  # None: the base model, or a script
    chat: Chat
    keys: tuple[Key, ...]  # one for each reply: the same place always draws the same reply
    temperature: float | None  # None: the model's default, as for all that follows
    top_p: float | None
    repetition_penalty: float | None
    max_tokens: int
    agent: str
    is_verifier: bool
    headers: tuple[str, ...]  # what the parts of a message to several channels must begin with
    decisions: tuple[str, ...]  # what may follow "Decision: "; () where no decision counts
    # The position itself, for scripts, which do not read the chat; None where there is no game.
    datapoint: Datapoint | None = None
    episode: Episode | None = None
    script: str | None = None  # the strategy that replies; None: the model
    extra_fields: str | None = None  # JSON of further fields, sent to an API as they are
    record_tokens: bool = False  # `Completion.tokens` is wanted
    answers: bool = False  # the reply must state an answer


# A sampler as a pure function of the request: one completion for each of its keys, in their order.
PureSampler = Callable[[Request], tuple[Completion, ...]]


def request(state: RunState, effect: SampleReplies) -> Request:
    """The sampler's request for replies that a tree waits for.

    Raises:
        ValueError: No trees grow in this stage.
    """
    # No user can cause this, only a caller with a bug, so it raises.
    if not isinstance(state.stage, Growing):
        raise ValueError(f"no trees grow in stage {state.stage.name!r}")
    grown, (path, index, indices, attempt) = state.stage, effect.ask
    agent, protocol = state.params.agents[index], state.protocol
    group, game = group_of(state.groups, index), grown.forest[effect.tree]
    _, episode = node_at(game.root, episode_of(grown, effect.tree), path)
    return request_in(
        state.params,
        protocol,
        grown.datapoints[game.datapoint_index],
        episode,
        index,
        model=group.model,
        playing=player(state, game.key, index),
        # From the places of the replies alone, so siblings get the same keys whether a provider
        # takes one request for all of them or one for each.
        keys=tuple(
            reply_key(game.key, path, agent.name, reply_index, attempt) for reply_index in indices
        ),
        is_test=grown.name == "test",
    )


def request_in(
    params: HyperParameters,
    protocol: Protocol,
    datapoint: Datapoint,
    episode: Episode,
    index: int,
    *,
    model: str,
    playing: str | Script | None,
    keys: tuple[Key, ...],
    is_test: bool,
) -> Request:
    """The request for replies of an agent whose turn it is.

    Args:
        params: Of the run.
        protocol: The game.
        datapoint: What it is about.
        episode: The position.
        index: The agent's.
        model: The base model.
        playing: Its adapter, None for none; or a script in its place.
        keys: One for each reply.
        is_test: True for the temperature of tests.
    """
    agent = params.agents[index]
    move = next(move for move in movers(protocol, episode) if move.agent == index)
    decides = may_decide(protocol, len(episode.rounds), index)
    tested = params.text_rl.test_temperature if is_test else None
    return Request(
        model=model,
        adapter=None if isinstance(playing, Script) else playing,
        chat=build_chat(params, protocol, datapoint, episode, index),
        keys=keys,
        temperature=agent.temperature if tested is None else tested,
        top_p=agent.top_p if tested is None else None,
        repetition_penalty=agent.repetition_penalty,
        max_tokens=max_tokens(agent),
        agent=agent.name,
        is_verifier=protocol.is_verifier(index),
        headers=protocol.headers(move),
        # The dummy takes the admissible words from here, so that it need not know the rules of the
        # game.
        decisions=_decision_texts(protocol.spectrum) if decides else (),
        datapoint=datapoint,
        episode=episode,
        script=playing.strategy if isinstance(playing, Script) else None,
        extra_fields=agent.extra_request_fields,
        record_tokens=params.text_rl.record_tokens,
        answers=move.answers,
    )


def scripted_completions(resolved: Resolved, request: Request) -> tuple[Completion, ...]:
    """The replies of the script that a request names, at no cost and without a token.

    Raises:
        ValueError: The request names no script, or one that its agent's role has none of, or is not
            made within a game.
    """
    datapoint, episode, script = request.datapoint, request.episode, request.script
    if datapoint is None or episode is None or script is None:
        raise ValueError("a script can only be asked within a game")
    protocol = resolved.protocol
    agent = [spec.name for spec in protocol.agents].index(request.agent)
    strategies = resolved.strategies[agent]
    strategy = or_raise(
        look_up(
            strategies,
            script,
            address=f"agents.{request.agent}.model_name",
            noun="strategy",
            variable="STRATEGIES",
        )
    )
    texts = (
        scripted_reply(strategy, protocol, datapoint, episode, agent, key) for key in request.keys
    )
    return tuple(Completion(text, "stop", script) for text in texts)


# A request is made for every node and attempt, and `out_of_100` alone has 101 texts.
@cache
def _decision_texts(spectrum: SpectrumName) -> tuple[str, ...]:
    return tuple(decision.text for decision in SPECTRA[spectrum])
