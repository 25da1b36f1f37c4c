"""Attacks from Python, on runs without a model and on scripts with known values."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from nip_fn.config.codec import merge
from nip_fn.errors import Problem
from nip_fn.game.decision import ACCEPT
from nip_fn.metrics.exploits import share_by_datapoint
from nip_fn.metrics.inference import LEVEL
from nip_fn.metrics.stage import verdict
from nip_fn.protocols.strategies import STRATEGIES
from nip_fn.worlds.tea import blind_guess
from nip_fn_adapters import AttackOptions, Run, attack, forecast_attack, load_run, resume, train
from nip_fn_adapters.experiments.attack_results import Attack
from nip_fn_adapters.recording.store import CHECKPOINT

SMALL: dict[str, Any] = {
    "seed": 5,
    "dataset": "builtin:python",  # where everybody sees everything
    "dataset_options": {"max_test_size": 10},
    "rl": {"num_iterations": 2, "rollouts_per_iteration": 40},
    "dummy": {"decision_rate": 0.6},
    "nip_protocol": {"max_message_rounds": 3},
}
UNTRAINED: dict[str, Any] = {"rl": {"num_iterations": 0}, "text_rl": {"test_scheme": "all"}}
OPTIONS = AttackOptions(
    strategies=("silent", "liar", "forger"),
    best_of=(1, 4),
    starts=2,
    iterations=1,
    games=4,
    datapoints=12,
    changes={"rl": {"rollouts_per_iteration": 80}},
)
LIAR = AttackOptions(strategies=("liar",), best_of=(), starts=0, datapoints=4)
RUNS = ["own", "silent", "liar", "forger", "best-of-4", "trained-0", "trained-1"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of two iterations."""
    runs = tmp_path_factory.mktemp("trained")
    return train(SMALL, provider="dummy", name="a", runs=runs).unwrap().path.parent


@pytest.fixture(autouse=True)
def attacked(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That run as `runs/a` of the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copytree(trained, tmp_path / "runs/a")
    return Path("runs/a")


@pytest.fixture(scope="module")
def attack_of_all(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Attack]:
    """An attack with all kinds of provers, and the folder of the attacked run."""
    folder = Path(shutil.copytree(trained, tmp_path_factory.mktemp("attacked") / "a"))
    return folder, attack(folder, OPTIONS).unwrap()


def load(folder: Path) -> Run:
    """A run that is done, and true to its recording."""
    run = load_run(folder).unwrap()
    assert (run.faults, run.state.stage.name) == ((), "done")
    return run


def refused(run: Path | str = "a", options: AttackOptions = OPTIONS, **more: Any) -> Problem:
    return attack(run, options, **more).failure()


def sizes_in(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_size for path in folder.rglob(CHECKPOINT)}


def test_the_verifier_is_that_of_the_run_and_only_provers_change(
    attack_of_all: tuple[Path, Attack],
) -> None:
    folder, found = attack_of_all
    attacked = load(folder)
    assert sorted(path.name for path in found.folder.iterdir()) == sorted(RUNS)
    for name in RUNS:
        run = load(found.folder / name)
        assert run.lineage("verifier") == attacked.lineage("verifier")[-1:]
        keeps = name in ("own", "best-of-4", "trained-0")
        start = attacked.lineage("prover")[-1:] if keeps else ()
        assert run.lineage("prover")[: len(start)] == start
        assert len(run.lineage("prover")) == len(start) + name.startswith("trained")
    assert [prover.prover for prover in found.provers] == [
        *("own", "silent", "liar", "forger", "own, best of 1", "own, best of 4"),
        *("trained from its own model", "trained from the base model"),
    ]


def test_the_numbers_are_those_of_the_recorded_runs(attack_of_all: tuple[Path, Attack]) -> None:
    _, found = attack_of_all
    provers = {prover.prover: prover for prover in found.provers}
    for name in ("own", "silent", "liar", "forger"):
        prover = provers[name]
        metrics = dict(load(*prover.runs).state.rows[0].metrics)
        assert prover.accepts_right is not None
        assert prover.accepts_wrong is not None
        # Right solutions are judged rightly where they are accepted; of wrong ones, those that were
        # never decided are neither.
        assert prover.accepts_right.value == pytest.approx(metrics["accuracy_1"])
        both = (prover.accepts_right.value + prover.accepts_wrong.value) / 2
        assert both == pytest.approx(metrics["acceptance_rate"])
        assert (prover.datapoints, prover.games) == (12, 4)
    for name in ("own, best of 4", "trained from the base model"):
        assert provers[name].accepts_right is None
        assert provers[name].datapoints == 6
    wrong = [one.accepts_wrong for one in found.provers if one.accepts_wrong is not None]
    error = found.soundness_error
    assert error is not None
    assert (error.value, error.of) == (max(one.value for one in wrong), len(found.provers))
    assert error.low <= error.value <= error.high
    assert error.high >= max(one.high for one in wrong)
    assert found.completeness == provers["own"].accepts_right
    worst = found.worst_case
    assert worst is not None
    assert (worst["prover"], worst["label"]) == (error.prover, "buggy")
    assert worst["rounds"][-1]["verifier"] == "Decision: accept"


def test_no_search_peeks_at_a_private_view(tmp_path: Path) -> None:
    tea = {**UNTRAINED, "dataset": "builtin:tea"}
    run = train(merge(SMALL, tea), provider="dummy", name="tea").unwrap()
    options = AttackOptions(strategies=("blind",), starts=0, games=1, datapoints=4)
    # By default there is none, and a note says so.
    lines: list[str] = []
    reason = "a search would choose the replies by what prover cannot see"
    planned = forecast_attack(run, options, tell=lines.append).unwrap()
    assert list(planned) == ["own", "blind"]
    assert f"no best of n: {reason}" in lines
    # Whoever asks for it is refused, and nothing is played.
    problem = refused(run, options._replace(best_of=(4,), games=4))
    assert (problem.problem, problem.kind) == (reason, "usage")
    assert "train provers" in str(problem)
    assert not (tmp_path / "runs/tea/attacks").exists()


def test_by_default_all_searches_are_made_where_everybody_sees_everything() -> None:
    options = AttackOptions(strategies=(), starts=0, games=2, datapoints=4)
    assert list(forecast_attack("a", options).unwrap()) == ["own", "best-of-16"]
    found = attack("a", options).unwrap()
    assert [prover.best_of for prover in found.provers] == [None, 1, 4, 16]


def test_models_of_an_earlier_iteration_are_attacked(attacked: Path) -> None:
    lineage = load(attacked).lineage("verifier")
    for iteration, expected in ((0, ()), (1, lineage[:1]), (2, lineage[1:])):
        options = LIAR._replace(iteration=iteration)
        found = attack(attacked, options, name=f"i{iteration}").unwrap()
        assert found.iteration == iteration
        assert load(found.folder / "liar").lineage("verifier") == expected


def test_seeds_are_as_many_attacks_and_one_table() -> None:
    options = OPTIONS._replace(
        strategies=("liar",), best_of=(4,), games=2, datapoints=8,
        changes={"rl": {"rollouts_per_iteration": 12}},
    )  # fmt: skip
    before = sizes_in(attack("a", options, seeds=1).unwrap().folder)
    found = attack("a", options, seeds=2).unwrap()
    # Others are added, and what was played is not played again.
    after = sizes_in(found.folder)
    assert {path: after[path] for path in before} == before
    assert len(after) == 2 * len(before) == 10
    tested = {path: load(path) for path in after}
    assert len({run.params.seed for path, run in tested.items() if "trained" in str(path)}) == 4
    for seed in (1, 2):
        single = attack("a", options._replace(starts=0, seed=seed), name=str(seed)).unwrap()
        for prover, ours in zip(single.provers, found.provers[:3], strict=True):
            assert load(ours.runs[seed - 1]).digest == load(*prover.runs).digest
    own = [run.stages("test")[-1] for path, run in tested.items() if path.parent.name == "own"]
    outcomes = [
        [
            (game.datapoint.id, float(verdict(game) == ACCEPT))
            for game in stage.games()
            if game.datapoint.label == 1
        ]
        for stage in own
    ]
    assert found.completeness == share_by_datapoint(outcomes, LEVEL)
    problem = refused("a", options._replace(seed=1), seeds=2)
    assert "leave out `seeds`" in str(problem)


def test_an_attack_is_not_continued_on_other_models(attacked: Path) -> None:
    for name in ("x", None):
        attack("a", LIAR, name=name).unwrap()
    resume("a", more_iterations=1).unwrap()
    problem = refused("a", LIAR, name="x")
    assert (problem.kind, problem.problem) == ("usage", "this attack was begun on other models")
    attack("a", LIAR).unwrap()
    assert len(list((attacked / "attacks").iterdir())) == 3


def test_a_forecast_plays_nothing(attacked: Path) -> None:
    planned = forecast_attack("a", OPTIONS).unwrap()
    assert list(planned) == RUNS
    assert all(run.total.expected.requests > 0 for run in planned.values())
    assert planned["trained-0"].total.most.trained > planned["own"].total.most.trained == 0
    assert not (attacked / "attacks").exists()


def test_a_script_of_a_file_attacks_only_if_named(monkeypatch: pytest.MonkeyPatch) -> None:
    # Another configuration of the same process has made it known.
    monkeypatch.setitem(STRATEGIES, "own.py:yes", lambda *played: "Decision: accept")
    planned = forecast_attack("a").unwrap()
    assert "honest" in planned
    assert not any(name.startswith("own-py") for name in planned)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"strategies": ("lair",)}, ["`strategies`", "did you mean 'liar'?"]),
        ({"strategies": ("none.py:x",)}, ["agents.prover.model_name", "there is no file none.py"]),
        ({"games": 1}, ["`games`", "2 or more"]),
        ({"games": 1, "best_of": None}, ["`games`", "2 or more"]),
        ({"trainer": "ppo"}, ["`trainer`", "malt or ei"]),
        ({"iteration": 3}, ["`iteration`", "from 0 to 2"]),
        ({"changes": {"rl": {"num_iteration": 1}}}, ["rl.num_iteration", "did you mean"]),
        ({"changes": {"agents": {"nobody": {"temperature": 1}}}}, ["agents.nobody", "prover, ver"]),
    ],
)
def test_what_cannot_be_done_is_refused(
    changes: dict[str, Any], words: list[str], attacked: Path
) -> None:
    problem = refused("a", OPTIONS._replace(**changes))
    assert problem.kind == "usage"
    assert all(word in str(problem) for word in words), problem
    assert not (attacked / "attacks").exists()


def test_a_run_without_a_prover_and_one_that_is_none_are_refused() -> None:
    alone = merge(SMALL, {**UNTRAINED, "interaction_protocol": "solo_verifier"})
    run = train(alone, provider="dummy", name="alone").unwrap()
    assert "nobody but the verifier speaks" in str(refused(run.path.parent))
    assert refused("nothing").kind == "run"


def test_debaters_attack_each_what_they_argue_against() -> None:
    debate = {
        "interaction_protocol": "debate",
        "debate_protocol": {"sequential": True, "max_message_rounds": 4},
    }
    run = train(merge(SMALL, {**UNTRAINED, **debate}), provider="dummy", name="debate").unwrap()
    found = attack(run, OPTIONS).unwrap()
    attacks = {(prover.prover, *prover.agents): prover.attacks for prover in found.provers}
    assert attacks["own",] == ("wrong", "right")
    assert attacks["liar", "prover0"] == attacks["own, best of 4", "prover0"] == ("right",)
    assert attacks["liar", "prover1"] == attacks["own, best of 4", "prover1"] == ("wrong",)
    under, completeness = found.completeness_under_attack, found.completeness
    assert under is not None
    assert completeness is not None
    assert under.low <= under.value <= completeness.value


@pytest.mark.parametrize(
    ("dataset", "cups", "worst"),
    [("builtin:tea", 2, blind_guess(2)), ("builtin:tea-public", 4, 1.0)],
)
def test_fishers_bound_is_found_and_public_saucers_break_it(
    dataset: str, cups: int, worst: float
) -> None:
    """The verifier is a script that asks about so many cups: its soundness error is known."""
    agents = {
        name: {"model_provider": "scripted", "model_name": script}
        for name, script in (("prover", "honest"), ("verifier", f"asks_{cups}"))
    }
    sizes = {"dataset_options": {"max_test_size": 4}}
    cast = merge(SMALL, {**UNTRAINED, **sizes, "dataset": dataset, "agents": agents})
    run = train(cast, name="scripts").unwrap()
    lines: list[str] = []
    options = AttackOptions(strategies=("blind", "saucers"), datapoints=60, games=4)
    found = attack(run, options, tell=lines.append).unwrap()
    assert any("follows a script" in line for line in lines)
    error, blind = found.soundness_error, found.provers[1].accepts_wrong
    assert found.completeness is not None
    assert found.completeness.value == 1.0
    assert error is not None
    assert error.low <= worst <= error.high
    assert blind is not None
    assert blind.low <= blind_guess(cups) <= blind.high
    assert found.worst_case is not None
    assert "Poured: " in found.worst_case["views"]["verifier"]
    if worst == 1.0:
        assert (error.value, error.prover) == (1.0, "saucers")
