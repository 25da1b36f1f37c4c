"""Experiments from Python: train, test, attack, compare, report; the commands, as functions.

    python examples/from_python.py

No model is asked: the replies of the first run are random, and those of the others scripts.
Everything is recorded in `runs/`; a second time, give the runs other names.
"""

from nip_fn_adapters import AttackOptions, attack, card, compare, report, train

SETTINGS = {
    "seed": 1,
    "dataset": "builtin:tea",
    "nip_protocol": {"max_message_rounds": 3},
    "dataset_options": {"max_test_size": 40},
    "rl": {"num_iterations": 1, "rollouts_per_iteration": 20},
    "malt": {"num_responses_per_timestep": 2},
}
TEST = {**SETTINGS, "rl": {"num_iterations": 0}, "text_rl": {"test_scheme": "all"}}


def scripted(name: str) -> dict[str, str]:
    """The settings of an agent that follows a script."""
    return {"model_provider": "scripted", "model_name": name}


def main() -> None:
    """Train a run; test a verifier with several provers, attack it, and write a page of it all."""
    trained = train(SETTINGS, provider="dummy", name="trained").unwrap()
    print(trained)

    agents = {"verifier": scripted("asks_2")}
    random, honest = (
        train({**TEST, "agents": {**agents, "prover": scripted(name)}}, name=name).unwrap()
        for name in ("random", "honest")
    )
    for row in card(run=honest, protocols=("nip",), limit=20, repeats=2).unwrap().rows:
        print(f"{row.protocol}, {row.provers}: {row.measures.accuracy.value:.0%} right")

    value, low, high, *_ = compare(random, honest).unwrap().comparison.difference
    print(f"an honest prover: {value:+.0%} [{low:+.0%}, {high:+.0%}] accuracy")

    options = AttackOptions(strategies=("blind", "liar"), datapoints=60)
    error = attack(honest, options).unwrap().soundness_error
    if error is not None:
        print(f"{error.prover}: {error.value:.0%} of wrong claims are accepted")
    print(report([trained, random, honest], "report.html").unwrap().page)


if __name__ == "__main__":
    main()
