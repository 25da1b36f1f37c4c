"""One session of a run whose models are at a fake language-model server."""

import asyncio
from pathlib import Path
from typing import Any

from returns.result import Result

from nip_fn.config.codec import from_dict
from nip_fn.errors import Problem
from nip_fn.game.chat import Message
from nip_fn.keys import key
from nip_fn.params.run import HyperParameters
from nip_fn.run.events import Publish, RunStarted
from nip_fn.run.ports import Served, Tuned, World
from nip_fn.run.replay import replay
from nip_fn.run.request import Request
from nip_fn.run.state import EMPTY, RunState
from nip_fn.training.tuning import Job
from nip_fn_adapters.data.opening import in_memory
from nip_fn_adapters.interpreter import interpret
from nip_fn_adapters.providers.api.sampler import ClientSettings
from nip_fn_adapters.providers.selfhosted.client import Timeouts
from nip_fn_adapters.providers.selfhosted.host import Host, hosts_of, of_groups
from nip_fn_adapters.providers.selfhosted.publisher import hosted_publisher
from nip_fn_adapters.providers.selfhosted.sampler import Assignment, HostedSampler
from nip_fn_adapters.providers.selfhosted.tuner import hosted_tuner
from nip_fn_adapters.recording import store
from nip_fn_adapters.serving.wire import TOKEN_VARIABLE

from .conftest import no_tracker, small_dataset
from .hosted import FakeServer

TOKEN = "sesame-4f1c9a"
QUICK = Timeouts(
    ready=60.0, away=60.0, online=60.0, crashed=0.3, poll=0.05, limit=120.0, remind=0.2
)


def params_at(server: FakeServer, **text_rl: Any) -> HyperParameters:
    """Two iterations that train both agents, each further from where it is."""
    own = {
        "model_provider": "SelfHosted",
        "language_model_server_scheme_host": "http://127.0.0.1",
        "language_model_server_port": server.port,
        "model_name": "m",
        "lora_rank": 12,
        "fine_tune_from_scratch": False,
    }
    malt = {
        "num_responses_per_timestep": 3,
        "pair_selection_method": "interval",
        "interval_threshold_proportion": 0.0,
    }
    return from_dict(
        {
            "seed": 3,
            "agents": {"_default": own},
            "rl": {"num_iterations": 2, "rollouts_per_iteration": 12},
            "text_rl": text_rl,
            "malt": malt,
            "nip_protocol": {"max_message_rounds": 3},
        }
    ).unwrap()


class Session:
    """The adapters of one session of a run in a folder, and the lines that they told."""

    def __init__(
        self,
        server: FakeServer,
        run: Path,
        *,
        params: HyperParameters | None = None,
        token: str = "",
        **timeouts: float,
    ) -> None:
        self.run, self.told, self.params = run, list[str](), params or params_at(server)
        self.hosts: dict[str, Host] = hosts_of(
            self.params,
            run,
            {TOKEN_VARIABLE: token},
            timeouts=QUICK._replace(**timeouts),
            tell=self.told.append,
        ).unwrap()
        groups = of_groups(self.params, self.hosts)
        agents = {agent.name: agent for agent in self.params.agents}
        assignments = {name: Assignment(agents[name], host) for name, host in self.hosts.items()}
        self.followed: list[tuple[str, int]] = []
        self.sampler = HostedSampler(assignments, ClientSettings(tell=self.told.append))
        self.tuner = hosted_tuner(
            groups, follow=lambda job, progress: self.followed.append((job, progress.step))
        )
        self.publisher = hosted_publisher(groups)

    def ask(self, adapter: str | None = None) -> Result[Any, Problem]:
        """Two replies of the prover."""
        return asyncio.run(result_of(self.sampler(asking(adapter))))

    def tune(self, *jobs: Job) -> list[Result[Tuned, Problem]]:
        """The results of jobs that are asked for at once."""

        async def tune() -> list[Result[Tuned, Problem]]:
            return list(await asyncio.gather(*map(self.tuner, jobs)))

        return asyncio.run(tune())

    def publish(self, effect: Publish) -> Result[Served, Problem]:
        """The result of publishing."""
        return asyncio.run(result_of(self.publisher(effect)))

    def play(self) -> Result[RunState, Problem]:
        """The run from where it is to its end."""
        first: tuple[RunStarted, ...] = ()
        if (self.run / store.CHECKPOINT).exists():
            opened, recording = store.reopen(self.run).unwrap()
            state = replay(recording.events).unwrap().state
            assert state.faults == ()
        else:
            opened, state = store.create(self.run).unwrap(), EMPTY
            first = (RunStarted(self.params, in_memory(small_dataset()).info, "0"),)
        world = World(
            sampler=self.sampler,
            tuner=self.tuner,
            publisher=self.publisher,
            source=in_memory(small_dataset()).source,
            store=opened,
            tracker=no_tracker,
            drain=self.sampler.drain,
        )
        try:
            return asyncio.run(interpret(state, world, first=first))
        finally:
            opened.close()


async def result_of(awaitable: Any) -> Any:
    """The value of an awaitable, as a coroutine."""
    return await awaitable


def asking(adapter: str | None = None) -> Request:
    """A request for two replies of the prover."""
    return Request(
        model="m",
        adapter=adapter,
        chat=(Message("system", "Say it."), Message("user", "What?")),
        keys=(key(1), key(2)),
        temperature=None,
        top_p=None,
        repetition_penalty=None,
        max_tokens=50,
        agent="prover",
        is_verifier=False,
        headers=(),
        decisions=(),
    )


def replayed(run: Path) -> RunState:
    """The state of the recorded run."""
    recording = store.read_recording(run / store.CHECKPOINT).unwrap()
    return replay(recording.events).unwrap().state


def is_readable(line: str) -> bool:
    """True if it is one line for people, without the token."""
    return "\n" not in line and "Traceback" not in line and TOKEN not in line and len(line) < 400
