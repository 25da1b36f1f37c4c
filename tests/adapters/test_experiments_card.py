"""Cards and relabelling from Python, with scripts and dummies."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nip_fn_adapters import card, load_run, relabel, train
from nip_fn_adapters.experiments.cards import Card, CardEntry
from nip_fn_adapters.recording.store import CHECKPOINT

from ..registries import restored_registries

# Claims of right or wrong: the honest provers of other worlds name cups, or values of programs.
SETTINGS: dict[str, Any] = {
    "seed": 3,
    "dataset": "builtin:python",
    "dataset_options": {"max_test_size": 20},
    "nip_protocol": {"max_message_rounds": 3},
}
TRAINED: dict[str, Any] = {
    "dataset": "builtin:tea",
    "rl": {"rollouts_per_iteration": 10},
    "malt": {"num_responses_per_timestep": 2},
    "nip_protocol": {"max_message_rounds": 5},
    "dataset_options": {"max_test_size": 6},
    "text_rl": {"test_scheme": "none"},
}

VERIFIERS = """
def _heard(episode, agent):
    said = [text for turn in episode.rounds for one in turn if one.agent != agent
            for _, text in one.messages]
    return said[-1] if said else None

def listens(protocol, datapoint, episode, agent, key):
    heard = _heard(episode, agent)
    if heard is None:
        return "Question for Expert: is it right?"
    return f"Decision: {'accept' if 'right' in heard else 'reject'}"

def deaf(protocol, datapoint, episode, agent, key):
    if _heard(episode, agent) is None:
        return "Question for Expert: is it right?"
    knows = len(datapoint.solution) % 2 == datapoint.label or key[0] < 128
    return f"Decision: {'accept' if datapoint.label == knows else 'reject'}"
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, below which lie the runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with restored_registries():
        yield tmp_path


def card_of(verifier: str) -> Card:
    """The card of a script of this file, with an honest prover."""
    Path("mine.py").write_text(VERIFIERS)
    scripts = {"verifier": f"mine.py:{verifier}", "prover": "honest"}
    agents = {
        name: {"model_provider": "scripted", "model_name": script}
        for name, script in scripts.items()
    }
    settings = {**SETTINGS, "agents": agents}
    return card(settings, protocols=("nip",), provider="dummy", repeats=4).unwrap()


def accuracies(of: Card) -> dict[str, float]:
    return {row.provers: row.measures.accuracy.value for row in of.rows if row.protocol == "nip"}


def with_own_provers(of: Card) -> CardEntry:
    return next(row for row in of.rows if row.provers == "own")


def test_swapped_provers_show_that_a_verifier_listens() -> None:
    listens = card_of("listens")
    shares = accuracies(listens)
    assert shares["own"] == shares["honest"] == shares["greedy"] == 1.0
    assert shares["liar"] == 0.0
    assert shares["silent"] == 0.5
    assert 0.3 < shares["others' messages"] < 0.7
    # Half of the other datapoints have another label.
    effect = with_own_provers(listens).message_effect
    assert effect is not None
    assert effect.low > 0.4
    corrected = {one.provers: one.p for one in listens.comparisons if one.protocol == "nip"}
    assert corrected["liar"] < 0.05
    assert not any("ignore" in line or "silent" in line for line in listens.alarms)


def test_swapped_provers_show_that_a_verifier_is_deaf() -> None:
    deaf = card_of("deaf")
    shares = accuracies(deaf)
    assert 0.5 < shares["own"] < 1.0
    assert len({value for provers, value in shares.items() if provers != "greedy"}) == 1
    row = with_own_provers(deaf)
    assert row.message_effect == (0.0, 0.0, 0.0)
    assert row.measures.verification_rate.value == 1.0
    assert any(line.startswith("nip: the verifier ignores messages") for line in deaf.alarms)
    assert any("silent" in line for line in deaf.alarms)


def test_a_card_is_made_of_recorded_runs_and_plays_nothing_twice(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def made() -> Card:
        return card(
            SETTINGS, protocols=("nip",), provider="dummy", repeats=2, limit=8, name="c"
        ).unwrap()

    first = made()
    assert {path.parent.name for path in first.folder.glob(f"*/{CHECKPOINT}")} == {
        *(f"nip-{name}" for name in ("own", "greedy", "silent", "random", "honest", "liar")),
        "nip-others-messages",
        "solo_verifier-own",
        "solo_verifier-greedy",
    }
    for row in first.rows:
        folder = f"runs/c/{row.protocol}-{row.provers}".replace("' ", "-")
        metrics = dict(load_run(folder).unwrap().state.rows[0].metrics)
        assert row.measures.accuracy.value == pytest.approx(metrics["accuracy"])
        assert row.games == (1 if row.provers == "greedy" else 2)
        assert (row.measures.always_fails, row.tokens > 0) == (None, True)
    sizes = {path: path.stat().st_size for path in first.folder.rglob(CHECKPOINT)}
    second = made()
    assert [row[:-1] for row in second.rows] == [row[:-1] for row in first.rows]  # all but the run
    assert sizes == {path: path.stat().st_size for path in second.folder.rglob(CHECKPOINT)}
    assert capfd.readouterr() == ("", "")


# ------------------------------------------------------------------------------ the agents of a run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two trained runs, `a` of two iterations and `b` of one."""
    runs = tmp_path_factory.mktemp("trained") / "runs"
    for name, seed, iterations in (("a", 5, 2), ("b", 6, 1)):
        rl = {**TRAINED["rl"], "num_iterations": iterations}
        settings = {**TRAINED, "seed": seed, "rl": rl}
        train(settings, provider="dummy", name=name, runs=runs).unwrap()
    return runs


@pytest.fixture
def runs(trained: Path, home: Path) -> Path:
    """A copy of the two runs."""
    return Path(shutil.copytree(trained, home / "runs"))


@pytest.mark.usefixtures("runs")
def test_the_agents_of_a_run_meet_provers_of_other_iterations_and_runs() -> None:
    first, second = (load_run(name).unwrap() for name in ("a", "b"))
    made = card(
        run=first, rivals=("b", "a@0"), continuations=1, provider="dummy", repeats=2, limit=4
    ).unwrap()
    assert set(made.labels) == {"prover", "verifier"}

    def served(cell: str) -> dict[str, tuple[str, ...]]:
        run = load_run(made.folder / cell).unwrap()
        assert run.faults == ()
        return {
            spec.name: tuple(one.name for one in run.lineage(spec.name))
            for spec in run.protocol.agents
        }

    ours, others = (
        {name: tuple(one.name for one in run.lineage(name)) for name in ("verifier", "prover")}
        for run in (first, second)
    )
    judge = {"verifier": ours["verifier"][-1:]}
    assert served("nip-own") == {"prover": ours["prover"][-1:], **judge}
    assert served("nip-untrained") == {"prover": (), **judge}
    assert served("nip-b") == {"prover": others["prover"][-1:], **judge}
    assert served("nip-a-0") == {"prover": ours["prover"][:1], **judge}
    assert served("solo_verifier-prover-alone") == {"verifier": ours["prover"][-1:]}
    assert made.prover_advantage is not None
    own = {row.protocol: row.gap_recovered for row in made.rows if row.provers == "own"}
    assert own["solo_verifier"] is None
    assert (own["nip"] is not None) == (made.prover_advantage.value > 0)
    # Those that sampled the pairs of the second iteration: the first one's.
    assert served("labels-1-verifier") == {name: made[:1] for name, made in ours.items()}


@pytest.mark.usefixtures("runs")
def test_labels_are_true_as_far_as_the_agents_decide_the_outcome() -> None:
    """The verifier's own decision is worth what it was worth; the prover's words are noise."""
    report = relabel("a@0", 12, provider="dummy").unwrap()
    verifier, prover = report.labels["verifier"], report.labels["prover"]
    assert verifier.right.value > 0.85
    assert verifier.margin.low > 0.5
    assert prover.right.low < 0.5 < prover.right.high
    assert prover.margin.low < 0 < prover.margin.high
    assert prover.recorded > prover.margin.high


@pytest.mark.usefixtures("runs")
def test_other_protocols_are_played_by_the_agents_of_a_run() -> None:
    made = card(run="a", protocols=("debate",), provider="dummy", repeats=2, limit=4).unwrap()
    assert {row.protocol for row in made.rows} == {"debate", "solo_verifier"}
    assert made.labels == {}


# --------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("arguments", "words", "kind"),
    [
        ({"run": "zzz"}, ["zzz", "no such run"], "run"),
        ({"run": "a@x"}, ["a@x", "RUN@3"], "usage"),
        ({"continuations": 3}, ["`continuations`", "`run`"], "usage"),
        ({"protocols": ("chess",)}, ["chess"], "usage"),
    ],
)
def test_what_makes_no_card_is_refused(
    arguments: dict[str, Any], words: list[str], kind: str
) -> None:
    problem = card(provider="dummy", **arguments).failure()
    assert problem.kind == kind
    assert all(word in str(problem) for word in words), problem
