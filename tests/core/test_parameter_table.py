"""The table of parameters: one declaration is all that a new parameter takes."""

import io
from typing import Annotated

import pytest
from msgspec.structs import asdict, replace
from rich.console import Console

from nip_fn.config.checks import group_problems
from nip_fn.config.codec import from_dict
from nip_fn.config.schema import parameter_at, parameters
from nip_fn.config.unused import agent_conditions, reason_unused, run_conditions
from nip_fn.params.agent import AgentParameters
from nip_fn.params.base import Count, parameter
from nip_fn.params.run import HyperParameters
from nip_fn.run.reuse import fork_problem, may_resume, reselect_problem
from nip_fn_cli.commands.params import show


class LargerAgent(AgentParameters, frozen=True):
    """An agent with three more parameters, each of which is declared here and nowhere else."""

    lora_layers: Annotated[
        Count, parameter("Layers with LoRA.", needs="lora", stage="training", shared=True)
    ] = 1
    patience: Annotated[
        Count, parameter("Attempts to connect.", needs="server", stage="session")
    ] = 1
    beams: Annotated[Count, parameter("Beams of a search.", needs="model")] = 1


class Larger(HyperParameters, frozen=True):
    """The parameters of a run with such agents."""

    agents: tuple[LargerAgent, ...] = ()


def larger(provider: str = "SelfHosted", **fields: int) -> Larger:
    """A run in which the prover has the fields."""
    shared = {"model_provider": provider, "model_name": "honest"}
    params = from_dict({"agents": {"_default": shared}}).unwrap()
    prover, verifier = (LargerAgent(**asdict(agent)) for agent in params.agents)
    return Larger(**{**asdict(params), "agents": (replace(prover, **fields), verifier)})


def test_a_new_parameter_is_listed_with_its_range_its_default_and_its_help() -> None:
    out = io.StringIO()
    show(Console(file=out, width=120), tuple(parameters(Larger).values()))
    lines = [line.strip() for line in out.getvalue().splitlines()]
    at = next(i for i, line in enumerate(lines) if line.startswith("agents.AGENT.patience"))
    assert lines[at].endswith("Attempts to connect.")
    assert lines[at + 1] == "int >= 1; default 1; a run may be resumed with another value"


@pytest.mark.parametrize(
    ("provider", "lora_layers", "patience", "beams"),
    [
        ("SelfHosted", "", "", ""),
        ("OpenAI", "OpenAI's API does not take it", "", ""),
        ("local", "", "the model is in this process (local)", ""),
        ("scripted", "it is frozen", "a script speaks", "a script speaks"),
    ],
)
def test_it_is_told_as_unused_where_it_does_not_apply(
    provider: str, lora_layers: str, patience: str, beams: str
) -> None:
    params = larger(provider)
    reasons = [
        reason_unused(params, f"agents.prover.{name}")
        for name in ("lora_layers", "patience", "beams")
    ]
    assert reasons == [lora_layers, patience, beams]


def test_the_most_general_reason_is_told() -> None:
    frozen = larger("OpenAI", freeze_agent=True)
    assert reason_unused(frozen, "agents.prover.lora_layers") == "it is frozen"
    verifier, both = (f"agents.{name}.lora_layers" for name in ("verifier", "_default"))
    assert reason_unused(frozen, verifier) == "OpenAI's API does not take it"
    assert reason_unused(frozen, both)


def test_it_may_be_changed_where_the_recorded_replies_do_not_depend_on_it() -> None:
    changes = {
        name: (larger(), larger(**{name: 2})) for name in ("lora_layers", "patience", "beams")
    }
    resumed = {name: may_resume(*pair, f"agents.prover.{name}") for name, pair in changes.items()}
    assert resumed == {"lora_layers": False, "patience": True, "beams": False}
    assert [fork_problem(*pair) is None for pair in changes.values()] == [True, True, False]
    assert [reselect_problem(*pair) is None for pair in changes.values()] == [False] * 3


def test_an_agent_may_move_to_another_server_but_not_to_another_kind() -> None:
    """At a language-model server there are adapters that a plain vLLM does not have."""
    hosted = larger()
    at_a, at_b = (
        replace(hosted, agents=(replace(hosted.agents[0], api_base_url=url), hosted.agents[1]))
        for url in ("http://a/v1", "http://b/v1")
    )
    for recorded, requested, allowed in ((at_a, at_b, True), (hosted, at_a, False)):
        assert may_resume(recorded, requested, "agents.prover.api_base_url") is allowed
        assert (fork_problem(recorded, requested) is None) is allowed


def test_agents_of_a_group_must_agree_on_it_if_it_describes_their_model() -> None:
    for name, shared in (("lora_layers", True), ("patience", False)):
        agents = [replace(agent, shared_model_group="both") for agent in larger(**{name: 2}).agents]
        told = [str(problem) for problem in group_problems(tuple(agents))]
        assert [name in line for line in told] == [True] * shared


def test_each_need_is_a_condition_and_each_condition_is_needed() -> None:
    params = from_dict({}).unwrap()
    of_run = run_conditions(params)
    of_agent = agent_conditions(params, params.agents[0])
    needed = {need for entry in parameters().values() for need in entry.needs}
    while more := {of_agent[need].after for need in needed} - needed - {""}:
        needed |= more
    assert needed == set(of_agent)
    # What a run needs is a condition of runs.
    for address, entry in parameters().items():
        assert address.startswith("agents.") or set(entry.needs) <= set(of_run), address


def test_an_address_below_a_parameter_is_the_parameter_s() -> None:
    below = "agents.prover.update_schedule.period"
    assert parameter_at(below) == parameters()["agents.AGENT.update_schedule"]
    assert parameter_at("rl.lr") == parameters()["rl.lr"]
    for unknown in ("", "rl", "agents", "agents.prover", "agents.prover.zzz", "rl.zzz", "lr"):
        assert parameter_at(unknown) is None
