"""Every parameter under every provider, set to other values than its default: what comes of it."""

import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache, partial, reduce
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import pytest
from msgspec import inspect
from msgspec.structs import replace
from returns.pipeline import is_successful
from returns.result import Success

from nip_fn.config.codec import from_dict, merge, nest
from nip_fn.config.groups import make_groups
from nip_fn.config.hosting import provider_kind
from nip_fn.config.presets import with_preset
from nip_fn.config.schema import AGENT, parameters
from nip_fn.config.trainers import losses_of
from nip_fn.config.unused import unused
from nip_fn.game.datapoint import Dataset
from nip_fn.game.reply import Completion
from nip_fn.keys import key
from nip_fn.params.run import DEFAULT_AGENT, DummyParameters, HyperParameters
from nip_fn.run.events import Effect, Event, SampleReplies
from nip_fn.run.jobs import make_job
from nip_fn.run.request import Request, request
from nip_fn.run.simulate import pure_world, simulate, started
from nip_fn.run.state import RunState
from nip_fn_adapters.data.opening import open_data
from nip_fn_adapters.experiments import outcomes
from nip_fn_adapters.experiments.wiring import wire
from nip_fn_adapters.providers.api import batches, sampler, tuner
from nip_fn_adapters.providers.api.endpoints import KEY_VARIABLES
from nip_fn_adapters.providers.local.models import MODELS
from nip_fn_adapters.providers.selfhosted import host
from nip_fn_adapters.providers.selfhosted import sampler as hosted_sampler
from nip_fn_adapters.providers.selfhosted import tuner as hosted_tuner
from nip_fn_adapters.providers.selfhosted.needs import needs_of
from nip_fn_adapters.recording.transcripts import TranscriptFiles
from nip_fn_adapters.serving.wire import ReplicaStatus, VllmStatus

from .games import DATA, Setup, reply

Outcome = Literal["acts", "refused", "told", "nothing", "same"]

DATASET = Dataset("games", DATA["train"], DATA["validation"], DATA["test"])
SMALL: dict[str, Any] = {
    "dataset": "builtin:python",
    "dataset_options": {"balance_classes": False},
    "rl": {"num_iterations": 2, "rollouts_per_iteration": 7},
    "malt": {
        "num_responses_per_timestep": 3,
        "pair_selection_method": "interval",
        "interval_threshold_proportion": 0.0,
    },
    "nip_protocol": {"max_message_rounds": 3},
    "agents": {DEFAULT_AGENT: {"model_name": "m", "num_invalid_generation_retries": 2}},
}
TINY = {
    "rl": {"num_iterations": 1, "rollouts_per_iteration": 1},
    "text_rl": {"test_scheme": "none"},
}


LONGER = {
    **{f"{name}_protocol": {"max_message_rounds": 5} for name in ("nip", "debate", "mnip")},
    "malt": {"num_responses_per_timestep": 2},
}

# Where a parameter can show what it does.
CONTEXT: dict[str, dict[str, Any]] = {
    "text_rl.test_on_whole_dataset": {"rl": {"rollouts_per_iteration": 2}},
    "malt.value_backup": LONGER,
    "protocol_common.prover_invalid_response_penalty": {
        "agents": {DEFAULT_AGENT: {"num_invalid_generation_retries": 1}},
        "rl": {"rollouts_per_iteration": 28},
    },
    "malt.num_responses_per_timestep": {"malt": {"num_responses_per_timestep": 2}},
}

# One of their values is what applies anyhow: None stands for it, at one provider or at all.
RESOLVED = (
    "agents._default.name_speakers_in_content",
    "agents._default.merge_same_role_messages",
    "dataset_options.kind",
    "protocol_common.prover_stance",
)

# What only a whole process shows, and the tests that do.
ELSEWHERE = {
    "text_rl.failed_trainings": "tests/cli/test_failed_trainings.py",
    "text_rl.refused_adapters": "tests/cli/test_self_hosted.py",
    "text_rl.stop_grace_seconds": "tests/cli/test_api.py",
}


def at(provider: str, **fields: object) -> dict[str, Any]:
    return {"agents": {DEFAULT_AGENT: {"model_provider": provider, **fields}}}


# What a user would write for each provider; one that trains nothing has frozen agents.
PROVIDERS: dict[str, dict[str, Any]] = {
    "openai": at("OpenAI"),
    "compatible": at("OpenAI", api_base_url="http://a/v1"),
    "openrouter": at("OpenRouter", freeze_agent=True),
    "self-hosted": at("SelfHosted"),
    "vllm": at("SelfHosted", api_base_url="http://a/v1", freeze_agent=True),
    "local": at("local", model_name=str(MODELS / "tea")),
    "dummy": at("local", use_dummy_api=True),
}

# Values for parameters whose type does not tell a sensible one.
VALUES: dict[str, tuple[object, ...]] = {
    "trainer": ("ei",),
    "dataset": ("builtin:python",),
    "interaction_protocol": ("adp", "debate", "solo_verifier"),
    "agents._default.name": ("bob",),
    "agents._default.update_schedule": (
        {"_type": "ContiguousPeriodicUpdateSchedule", "period": 2, "start": 1, "stop": 2},
    ),
    "agents._default.loss": ({"_type": "dpo", "beta": 0.3}, "ipo"),
    "agents._default.model_name": ("other",),
    "agents._default.language_model_server_scheme_host": ("http://elsewhere",),
    "agents._default.api_base_url": ("http://b/v1",),
    "agents._default.api_key_variable": ("MINE",),
    "agents._default.system_prompt_template": ("In {{ max_response_words }}: {{ question }}",),
    "agents._default.pair_selection_method": ("best_worst",),
    "agents._default.name_speakers_in_content": (True, False),
    "agents._default.merge_same_role_messages": (True, False),
    "agents._default.num_responses": (2, (1, 2)),
    "agents._default.num_idle_responses": (2,),
    "agents._default.opponent_pool": (1,),
    "agents._default.opponent_scripts": (("mimic",),),
    "agents._default.shared_model_group": ("both",),
    "agents._default.max_tokens_per_message": (7,),
    "agents._default.extra_request_fields": ({"reasoning_effort": "low"},),
    "malt.pair_selection_method": ("about_mean", "best_worst", "all"),
    "malt.value_backup": ("leaves",),
    "malt.min_pair_margin": (1.5,),
    "agents._default.min_pair_margin": (1.5,),
    "malt.max_pairs_per_datapoint": (1,),
    "rl.num_iterations": (0, 1),
    "dataset_options.max_train_size": (3,),
    "dataset_options.max_test_size": (2,),
    "protocol_common.force_guess": ("zero", "one", "y"),
    "dataset_options.difficulty": ("interview",),
    "dataset_options.only_split": ("all", "train", "other"),
}


class Found(NamedTuple):
    """What came of a value of a parameter.

    address, value: the parameter, and what it was set to.
    outcome: whether it acts, is refused, is told of, or none of these; "same" if it was so before.
    """

    address: str
    value: object
    outcome: Outcome


def written() -> tuple[str, ...]:
    """The addresses of all parameters, those of agents for all agents."""
    return tuple(address.replace(f".{AGENT}.", f".{DEFAULT_AGENT}.") for address in parameters())


def values(address: str) -> Iterator[object]:
    """Values of a parameter that are not its default."""
    if address in VALUES:
        yield from VALUES[address]
        return
    parameter = parameters()[address.replace(f".{DEFAULT_AGENT}.", f".{AGENT}.")]
    kind, default = parameter.type, msgspec.to_builtins(parameter.default)
    options = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    for option in options:
        while isinstance(option, inspect.Metadata):
            option = option.type
        match option:
            case inspect.BoolType():
                yield not default
            case inspect.LiteralType(values=known):
                yield from (value for value in known if value != default)
            case inspect.IntType(ge=least):
                yield max(default or 0, least or 0) + 1
            case inspect.FloatType():
                yield 0.25 if default != 0.25 else 0.5
            case inspect.StrType():
                yield "other"


def outcome(provider: str, address: str, value: object, base: Mapping[str, Any] = SMALL) -> Outcome:
    """What comes of a parameter that is set to a value."""
    before = reduce(merge, (base, PROVIDERS[provider], CONTEXT.get(address, {})))
    given = merge(before, nest(address, value))
    made = from_dict(with_preset(given))
    if not isinstance(made, Success):
        return "refused"
    params, plain = made.unwrap(), from_dict(with_preset(before)).unwrap()
    if params == plain:
        return "same"
    told_of = [one for line in unused(given, [params]) for one in line.addresses]
    if any(one == address or one.startswith(f"{address}.") for one in told_of):
        return "told"
    if address in ELSEWHERE:
        return "acts"
    assert not _world(plain)[0], "the provider itself is not refused"
    refused, world = _world(params)
    if refused:
        return "refused"
    if _data(params) is None:
        return "refused"
    if world != _world(plain)[1] or _data(params) != _data(plain):
        return "acts"
    short = [from_dict(with_preset(merge(one, TINY))) for one in (given, before)]
    if _shown(short[0].unwrap()) != _shown(short[1].unwrap()):
        return "acts"
    return "acts" if _shown(params) != _shown(plain) else "nothing"


@lru_cache(maxsize=64)
def _world(params: HyperParameters) -> tuple[bool, object]:
    """(True if the adapters are refused, what they are made of)."""
    made: list[object] = []

    def record(*arguments: object, **named: object) -> Any:
        made.append([_plain(one) for one in (*arguments, *named.items())])
        return _Idle()

    with pytest.MonkeyPatch.context() as patch:
        for name in (*KEY_VARIABLES.values(), "MINE"):
            patch.setenv(name, name)
        for module, name in (
            (sampler, "api_sampler"),
            (batches, "batch_sampler"),
            (tuner, "api_tuner"),
            (hosted_sampler, "HostedSampler"),
            (hosted_tuner, "hosted_tuner"),
        ):
            patch.setattr(module, name, record)
        known_hosts = host.hosts_of

        def hosts_of(*arguments: Any, **named: Any) -> Any:
            made.append(repr(named["timeouts"]))
            return known_hosts(*arguments, **named)

        patch.setattr(host, "hosts_of", hosts_of)
        patch.setenv("NIP_FN_TRUST", "1")  # as if the addresses had been given to the command
        if not is_successful(outcomes.outcome(wire)(params, Path("run"))):
            return True, None
        made.append([provider_kind(agent) for agent in params.agents])
        hosts = known_hosts(params, Path("run"), {"MINE": "own"}).unwrap()
    online = VllmStatus("online", "", "m", (ReplicaStatus(9001, "online"),))
    for name, one in sorted(hosts.items()):
        url = one.client.server.url
        agents = {own.name: own for own in params.agents}
        assignments = {name: hosted_sampler.Assignment(agents[name], one)}
        hosted = hosted_sampler.HostedSampler(assignments, sampler.DEFAULT_SETTINGS)
        made.append((name, url, hosted._served(one, one._endpoints(online))))
        made.append(needs_of(params, url))
    losses = losses_of(params)
    jobs = [
        make_job(params, group, 1, (), losses[group.name], key(0)) for group in make_groups(params)
    ]
    return False, repr((made, jobs if params.rl.num_iterations else []))


class _Idle:
    """An adapter that nobody asks anything."""

    drain = None


def _plain(one: object) -> object:
    """What an adapter is given, without functions and objects whose text is their address."""
    return (
        repr(one)
        if " at 0x" not in repr(one)
        else [
            repr(part)
            for part in (one if isinstance(one, tuple) else ())
            if " at 0x" not in repr(part)
        ]
    )


def _data(params: HyperParameters) -> object:
    """The data set; None if it is refused."""
    return _opened(params.dataset, params.dataset_options, params.code_validation)


@lru_cache(maxsize=64)
def _opened(dataset: str, options: Any, choice: Any) -> object:
    whole = HyperParameters(dataset=dataset, dataset_options=options, code_validation=choice)
    data = open_data(whole).value_or(None)
    if data is None:
        return None
    size = data.info.size("test")
    return data.info, [point.id for point in data.source("test", range(min(size, 10)))]


@lru_cache(maxsize=64)
def _shown(params: HyperParameters) -> object:
    """The requests, jobs and results of a run, and the files that it leaves."""
    asked: list[str] = []
    world = pure_world(DATASET, partial(_replies, params))

    def perform(state: RunState, effect: Effect) -> Iterable[Event]:
        is_asked = isinstance(effect, SampleReplies)
        asked.append(repr(request(state, effect) if is_asked else effect))
        return world(state, effect)

    run = tuple(simulate(started(params, DATASET), perform))
    files = _transcripts(run) if params.text_rl.save_transcripts else ()
    return asked, repr(run[-1][1].rows), files


def _replies(params: HyperParameters, asked: Request) -> tuple[Completion, ...]:
    """Replies in few words, so that some are the same; many of them decide, or cannot be used."""
    setup = Setup(params, decision_rate=0.5, invalid_rate=0.3)
    rates = params.dummy
    if rates != DummyParameters():
        setup = setup._replace(decision_rate=rates.decision_rate, invalid_rate=rates.invalid_rate)
    made = (reply(asked, key, setup) for key in asked.keys)
    return tuple(
        replace(one, text=one.text and re.sub(r"<(\d+)>", lambda n: f"<{int(n[1]) % 3}>", one.text))
        for one in made
    )


def _transcripts(run: tuple[tuple[Event, RunState], ...]) -> object:
    with tempfile.TemporaryDirectory() as folder:
        observe = TranscriptFiles(Path(folder))
        for event, state in run:
            observe(state, event)
        return sorted(file.name for file in Path(folder).rglob("*"))


def walk(provider: str, addresses: Iterable[str], base: Mapping[str, Any] = SMALL) -> list[Found]:
    """The outcome of every value of the parameters."""
    return [
        Found(address, value, outcome(provider, address, value, base))
        for address in addresses
        for value in values(address)
    ]
