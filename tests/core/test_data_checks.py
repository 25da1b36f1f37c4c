"""Data sets that a run with given parameters cannot use, found before it starts."""

from typing import Any

import pytest

from nip_fn.config.codec import from_dict
from nip_fn.config.data_checks import class_problems, needed_splits, view_problems
from nip_fn.game.datapoint import Split

BOTH = ("prover", "verifier")
VIEWS = {"code_validation": {"system_prompt_version": "views"}}


def params(**table: Any) -> Any:
    return from_dict(table).unwrap()


def test_a_run_draws_from_the_splits_that_it_trains_and_tests_on() -> None:
    assert needed_splits(params(text_rl={"test_scheme": "none"})) == ("train",)
    tested = params(text_rl={"test_scheme": "all"}, test_dataset_split="validation")
    assert needed_splits(tested) == ("train", "validation")
    only = params(text_rl={"test_scheme": "all"}, rl={"num_iterations": 0})
    assert needed_splits(only) == ("test",)


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("split", ["train", "test"])
def test_a_needed_split_of_one_class_is_a_problem(split: Split, label: int) -> None:
    classes: dict[Split, tuple[int, int]] = {
        "train": (4, 4), "validation": (3, 0), "test": (2, 2), split: (7 * label, 7 - 7 * label),
    }  # fmt: skip
    (problem,) = class_problems(params(text_rl={"test_scheme": "all"}), classes)
    assert f"7 datapoints in {split!r} have label {label}" in problem.problem
    assert problem.remedy


def test_splits_that_are_not_needed_or_empty_are_none() -> None:
    only_trains = params(text_rl={"test_scheme": "none"})
    assert not list(class_problems(only_trains, {"train": (1, 1), "test": (5, 0)}))
    assert not list(class_problems(only_trains, {}))  # emptiness is told apart
    asked_for = params(dataset_options={"only_label": 1})
    assert not list(class_problems(asked_for, {"train": (5, 0), "test": (5, 0)}))


@pytest.mark.parametrize(
    ("protocol", "names"),
    [
        ("nip", BOTH),
        ("solo_verifier", BOTH),
        ("debate", BOTH),
        ("debate", ("prover0", "prover1", "verifier")),
        ("nip", ("prover", "prover0", "verifier")),  # as played under debate, too
    ],
)
def test_views_of_roles_and_agents_will_do(protocol: str, names: tuple[str, ...]) -> None:
    assert not list(
        view_problems(params(interaction_protocol=protocol, **VIEWS), [names], solved=False)
    )


def test_a_view_of_nobody_is_a_problem() -> None:
    (problem,) = view_problems(params(**VIEWS), [(*BOTH, "provr")], solved=False)
    assert "'provr'" in problem.problem
    assert "prover and verifier" in problem.remedy


def test_views_without_solutions_are_a_problem_for_prompts_about_solutions() -> None:
    problems = list(view_problems(params(), [BOTH, ()], solved=False))
    assert not list(view_problems(params(), [BOTH, ()], solved=True))
    assert ["'prover'" in one.problem for one in problems] == [True, False]
    assert all("system_prompt_version=views" in one.remedy for one in problems)
    script = {"prover": {"model_provider": "scripted", "model_name": "honest"}}
    template = {"verifier": {"system_prompt_template": "{{ view }}"}}
    assert not list(view_problems(params(agents={**script, **template}), [BOTH], solved=False))
    assert not list(view_problems(params(), [()], solved=True))


def test_data_without_any_view_are_told_so_in_words() -> None:
    problem, _ = view_problems(params(**VIEWS), [()], solved=True)
    assert "none of its datapoints has a view of 'prover', which" in problem.problem


def test_a_limit_that_leaves_one_label_is_told_with_another_remedy() -> None:
    tested = params(text_rl={"test_scheme": "all"}, rl={"num_iterations": 0})
    (problem,) = class_problems(tested, {"test": (0, 1)}, ["test"])
    assert "the only datapoint in 'test' has label 0" in problem.problem
    assert "--limit" in problem.remedy


def test_an_agent_without_a_view_is_a_problem_where_prompts_show_it() -> None:
    some = [BOTH, ("verifier",)]
    (problem,) = view_problems(params(**VIEWS), some, solved=True)
    assert "'prover'" in problem.problem
    assert "view.prover" in problem.remedy
    template = {"prover": {"system_prompt_template": "{{ question }}"}}
    assert not list(view_problems(params(agents=template, **VIEWS), some, solved=True))
    assert len(list(view_problems(params(**VIEWS), [()], solved=True))) == 2
