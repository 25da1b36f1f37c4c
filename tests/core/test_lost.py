"""Shares of replies and games that tell nothing, counted while trees grow and in metrics."""

from nip_fn.metrics.lost import alarming, so_far
from nip_fn.run.stages import Growing

from .games import MANY_PAIRS, RETRIES, Setup, make_params, play


def test_losses_of_grown_trees_are_those_of_their_metrics() -> None:
    setup = Setup(make_params(MANY_PAIRS, RETRIES), invalid_rate=0.4, decision_rate=0.2)
    agents = setup.params.agents
    run = play(setup)
    counted = {
        (moment.state.iteration, moment.state.stage.name): so_far(moment.state.forest, agents)
        for moment in run
        if isinstance(moment.state.stage, Growing) and not moment.state.stage.num_waiting
    }
    rows = {(row.iteration, row.stage): dict(row.metrics) for row in run[-1].state.rows}
    names = [f"{a.name}.{n}" for a in agents for n in ("replies", "retries", "invalid")]
    assert len(counted) == 5
    for place, own in counted.items():
        assert {n: own[n] for n in names} == {n: rows[place][n] for n in names}
        assert own["games"] == rows[place]["games"]
    found = alarming(rows[0, "test"], agents)
    kinds = {(loss.kind, loss.agent.name if loss.agent else "") for loss in found}
    assert {("invalid", "prover"), ("invalid", "verifier"), ("undecided", "")} <= kinds


def test_a_tenth_is_no_alarm_and_few_are_no_alarm_yet() -> None:
    agents = make_params({"agents": {"_default": {"max_tokens_per_message": 64}}}).agents
    few = {"verifier.replies": 10.0, "verifier.token_limit": 1.0}
    assert alarming(few, agents) == ()
    cut = {"verifier.replies": 10.0, "verifier.token_limit": 2.0}
    (loss,) = alarming(cut, agents)
    assert str(loss) == "20% of 10 replies of verifier were cut at the limit of 64 tokens"
    assert loss.remedy == "raise agents.verifier.max_tokens_per_message"
    assert alarming(cut, agents, enough=11) == ()
