"""Shares of replies and games that tell nothing, counted while trees grow and in metrics."""

from nip_fn.game.datapoint import Dataset
from nip_fn.game.reply import Completion
from nip_fn.metrics.waste import alarming_waste, metrics_so_far
from nip_fn.run.request import Request
from nip_fn.run.simulate import pure_world, simulate, started
from nip_fn.run.stages import Growing

from .games import DATA, MANY_PAIRS, RETRIES, Setup, make_params, play, reply


def test_losses_of_grown_trees_are_those_of_their_metrics() -> None:
    setup = Setup(make_params(MANY_PAIRS, RETRIES), invalid_rate=0.4, decision_rate=0.2)
    agents = setup.params.agents
    run = play(setup)
    counted = {
        (moment.state.iteration, moment.state.stage.name): metrics_so_far(
            moment.state.forest, agents
        )
        for moment in run
        if isinstance(moment.state.stage, Growing) and not moment.state.stage.num_waiting
    }
    rows = {(row.iteration, row.stage): dict(row.metrics) for row in run[-1].state.rows}
    names = [f"{a.name}.{n}" for a in agents for n in ("replies", "retries", "invalid")]
    assert len(counted) == 5
    for place, own in counted.items():
        assert {n: own[n] for n in names} == {n: rows[place][n] for n in names}
        assert own["games"] == rows[place]["games"]
    found = alarming_waste(rows[0, "test"], agents)
    kinds = {(waste.kind, waste.agent.name if waste.agent else "") for waste in found}
    assert {("invalid", "prover"), ("invalid", "verifier"), ("undecided", "")} <= kinds


def test_a_tenth_is_no_alarm_and_few_are_no_alarm_yet() -> None:
    agents = make_params({"agents": {"_default": {"max_tokens_per_message": 64}}}).agents
    few = {"verifier.replies": 10.0, "verifier.token_limit": 1.0}
    assert alarming_waste(few, agents) == ()
    cut = {"verifier.replies": 10.0, "verifier.token_limit": 2.0}
    (waste,) = alarming_waste(cut, agents)
    assert str(waste) == "20% of 10 replies of verifier were cut at the limit of 64 tokens"
    assert waste.remedy == "raise agents.verifier.max_tokens_per_message"
    assert alarming_waste(cut, agents, enough=11) == ()


def test_replies_that_are_empty_at_the_limit_are_told_as_such() -> None:
    agents = make_params({"agents": {"_default": {"max_tokens_per_message": 64}}}).agents
    # Of 10 replies 4 were empty twice, and one more attempt was unusable for another reason.
    spent = {
        f"verifier.{name}": number
        for name, number in {
            "replies": 10.0, "retries": 5.0, "invalid": 4.0, "token_limit": 5.0,
            "empty_at_limit": 4.0,
        }.items()
    }  # fmt: skip
    (waste,) = alarming_waste(spent, agents)
    assert str(waste) == "40% of 10 replies of verifier were empty at the limit of 64 tokens"
    assert waste.remedy == "raise agents.verifier.max_tokens_per_message"


def test_what_is_empty_at_the_limit_is_asked_for_twice_and_counted() -> None:
    params = make_params({"rl": {"num_iterations": 1, "rollouts_per_iteration": 3}})
    setup = Setup(params, decision_rate=0.2, invalid_rate=0.0)

    def replies(asked: Request) -> tuple[Completion, ...]:
        if asked.agent == "prover":
            return (Completion("", "length", "m"),) * len(asked.keys)
        return tuple(reply(asked, key, setup) for key in asked.keys)

    dataset = Dataset("games", DATA["train"], DATA["validation"], DATA["test"])
    run = tuple(simulate(started(params, dataset), pure_world(dataset, replies)))
    row = dict(next(row for row in run[-1][1].rows if row.stage == "sample").metrics)
    assert row["prover.empty_at_limit"] == row["prover.replies"] > 0
    assert row["prover.retries"] == row["prover.replies"], "each was asked for once more"
    assert "verifier.empty_at_limit" not in row
    kinds = {
        waste.kind
        for waste in alarming_waste(row, params.agents)
        if waste.agent == params.agents[0]
    }
    assert kinds == {"empty"}
