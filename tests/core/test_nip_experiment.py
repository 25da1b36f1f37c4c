"""Files of experiments of the *nip* library, as studies."""

from typing import Any

import pytest

from nip_fn.config.codec import default_table, from_dict, get, merge
from nip_fn.config.compat.nip import from_nip_config
from nip_fn.config.compat.nip_experiment import (
    experiment_config,
    experiment_differences,
    experiment_study,
)
from nip_fn.config.study import cells, replicate_of, row_of
from nip_fn.params.run import HyperParameters

from ..nip_library import experiment

Table = dict[str, Any]

# What the library's shipped file says, and `experiment` fills in.
SHIPPED: Table = {
    "trainer": "pure_text_malt",
    "num_iterations": 8,
    "prover": {"model": "OpenAI/gpt-4o-2024-08-06", "temperature": 1.0},
}

ROUNDS = {"max_message_rounds": 9}  # of mnip, too, as nobody would expect otherwise


def single(**parameters: object) -> Table:
    return {"kind": "single_experiment", "parameters": {**SHIPPED, **parameters}}


def grid(**parameters: object) -> Table:
    return {"kind": "grid", "parameters": {**SHIPPED, **parameters}}


def params_of(ours: Table) -> HyperParameters:
    return from_dict(merge(default_table(), ours)).unwrap()


def every(table: Table) -> dict[str, HyperParameters]:
    """The parameters of each cell, by its name."""
    found = cells(experiment_study("e", table).unwrap())
    return {cell.name: from_dict(cell.table).unwrap() for cell in found}


@pytest.mark.parametrize("protocol", ["nip", "adp", "debate", "merlin_arthur", "solo_verifier"])
def test_a_file_means_what_the_library_makes_of_it(protocol: str) -> None:
    """By a configuration that the tests have from the library's rules, and not from ours."""
    read = experiment_config(single(interaction_protocol=protocol)).unwrap()
    saved = experiment(protocol, mnip_protocol=ROUNDS)
    assert params_of(from_nip_config(read).unwrap()) == params_of(from_nip_config(saved).unwrap())


def test_one_experiment_is_a_study_of_one_cell() -> None:
    (params,) = every(single()).values()
    assert params == params_of(from_nip_config(experiment(mnip_protocol=ROUNDS)).unwrap())


def test_a_grid_is_each_value_with_each_other_and_seeds_are_replicates() -> None:
    table = grid(
        seed=[3, 5],
        learning_rate=[1e-6, 1e-5],
        verifier={"lora_rank": [16, 32]},
        num_iterations=[2],
    )
    found = every(table)
    values = {
        name: (get(one, "rl.lr"), get(one, "agents.verifier.lora_rank"), one.seed)
        for name, one in found.items()
    }
    combinations = [(lr, rank, seed) for lr in (1e-6, 1e-5) for rank in (16, 32) for seed in (3, 5)]
    assert list(values.values()) == combinations
    assert {get(one, "rl.num_iterations") for one in found.values()} == {2}
    study = experiment_study("e", table).unwrap()
    places = {(row_of(study, cell), replicate_of(study, cell)) for cell in cells(study)}
    assert len({row for row, _ in places}) == 4
    assert {replicate for _, replicate in places} == {("seed-3",), ("seed-5",)}


def test_each_cell_of_a_grid_is_the_experiment_with_its_values() -> None:
    varied = {
        "max_message_rounds": [5, 7],
        "provers_share_model": [True, False],
        "test_scheme": ["none", "all"],
    }
    found = every(grid(interaction_protocol="debate", **varied))
    singles = [
        single(
            interaction_protocol="debate",
            max_message_rounds=rounds,
            provers_share_model=shared,
            test_scheme=scheme,
        )
        for rounds in (5, 7)
        for shared in (True, False)
        for scheme in ("none", "all")
    ]
    assert list(found.values()) == [next(iter(every(one).values())) for one in singles]


def test_the_cells_of_a_grid_may_be_games_with_other_provers() -> None:
    protocols = ["adp", "merlin_arthur", "solo_verifier"]
    temperatures = [0.5, 1.0]
    found = every(
        grid(
            interaction_protocol=protocols,
            prover={"model": "OpenAI/gpt-4o-2024-08-06", "temperature": temperatures},
        )
    )
    singles = [
        single(
            interaction_protocol=protocol,
            prover={"model": "OpenAI/gpt-4o-2024-08-06", "temperature": temperature},
        )
        for temperature in temperatures  # as SHIPPED names the prover first
        for protocol in protocols
    ]
    assert list(found.values()) == [next(iter(every(one).values())) for one in singles]


def test_names_that_the_script_had_before_mean_the_same() -> None:
    nested = grid(
        verifier={"model": "OpenAI/v", "freeze": True, "decision_spectrum": "likert_scale_5"},
        prover={"model": "OpenAI/p", "temperature": [0.5, 1.0], "max_words": 50},
    )
    flat = {
        "trainer": "pure_text_malt",
        "num_iterations": 8,
        "verifier_model": "OpenAI/v",
        "freeze_verifier": True,
        "verifier_decision_scale": "likert_scale_5",
        "prover_model": "OpenAI/p",
        "prover_temperature": [0.5, 1.0],
        "prover_max_words": 50,
    }
    assert list(every({"kind": "grid", "parameters": flat}).values()) == list(
        every(nested).values()
    )
    betas = every(grid(dpo_beta=[0.1, 0.3])).values()
    assert [{agent.dpo_beta for agent in one.agents} for one in betas] == [{0.1}, {0.3}]


def test_the_verifier_and_each_prover_have_their_own() -> None:
    one = next(
        iter(
            every(
                single(
                    interaction_protocol="mnip",
                    prover={"model": "SelfHosted/org/p", "max_words": 90, "freeze": True},
                    verifier={"model": "OpenRouter/org/v", "decision_spectrum": "out_of_100"},
                )
            ).values()
        )
    )
    for prover in ("prover0", "prover1"):
        assert get(one, f"agents.{prover}.model_name") == "org/p"
        assert get(one, f"agents.{prover}.max_response_words") == 90
        assert get(one, f"agents.{prover}.freeze_agent") is True
    assert get(one, "agents.verifier.model_provider") == "OpenRouter"
    assert get(one, "agents.verifier.max_response_words") == 150
    assert get(one, "protocol_common.verifier_decision_spectrum") == "out_of_100"
    assert get(one, "mnip_protocol.max_message_rounds") == 9


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"kind": "search", "parameters": {}}, "kind: expected 'single_experiment' or 'grid'"),
        ({"kind": "grid", "parameters": [1]}, "parameters: expected a table"),
        (single(learning_rat=1), "parameters.learning_rat: the nip library's script has no such"),
        (single(learning_rate=[1, 2]), "parameters.learning_rate: expected a value, got [1, 2]"),
        (grid(seed=[]), "parameters.seed: expected a value, got []; name at least one"),
        (single(verifier={"model": "gpt"}), "parameters.verifier.model: expected a provider"),
        (grid(freeze_verifer=True), "did you mean 'freeze_verifier'?"),
        (
            grid(dpo_beta=1.0, prover={"dpo_beta": 0.5}),
            "parameters.dpo_beta: prover.dpo_beta is its",
        ),
        (grid(interaction_protocol="chess"), "parameters.interaction_protocol: 'chess'"),
        (single(trainer="ppo"), "trainer: 'ppo' is refused"),
    ],
)
def test_what_cannot_be_read_is_named(table: Table, words: str) -> None:
    assert words in str(experiment_study("e", table).failure())


def test_a_grid_is_no_configuration_of_one_run() -> None:
    refused = str(experiment_config(grid(seed=[1, 2])).failure())
    assert "nip-fn sweep" in refused
    assert experiment_config(grid(seed=[1])) == experiment_config(single(seed=1))


def test_what_is_otherwise_is_told() -> None:
    told = "\n".join(map(str, experiment_differences(grid(max_train_size=[5, None]))))
    assert "parameters.max_train_size" in told
    assert list(experiment_differences(single())) == []
    mnip = "\n".join(map(str, experiment_differences(single(interaction_protocol="mnip"))))
    assert "parameters.max_message_rounds" in mnip
