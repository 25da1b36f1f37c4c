"""A loss and a trainer of a user's own, in real runs: trained by, replayed, resumed, refused."""

from pathlib import Path
from shutil import copytree, rmtree

import pytest
from returns.result import Success

from nip_fn.run.replay import replay
from nip_fn.training.losses import LOSSES
from nip_fn_adapters import load_run
from nip_fn_adapters.extensions import register

from ..own_losses import KTO
from .conftest import RunCli, call_cli

OWN = (
    f"import nip_fn as nip\n{KTO}"
    + """
def OF_A_PART(scores):
    return -scores.xp.mean(scores.policy)

def FAILING(scores):
    return scores.of_the_weather

def make(params):
    def update(batch, state, key):
        return update_by(nip.config.losses_of(params), batch, state)

    return nip.Trainer(nip.training.trained_agents, lambda state, turns: 2, update)

def update_by(losses, batch, state):
    among = nip.candidates(batch.trees, batch.protocol, agents=state)
    rows = {
        group.name: tuple(
            batch.sibling_row(point, [1.0 if v > 0 else -1.0 for v in point.value_C])
            for point in among.points
            if point.agent in group.agents
        )
        for group in batch.groups
    }
    return nip.Update(rows, state, losses)
"""
)
TINY = (
    *("--set", "rl.num_iterations=1", "--set", "rl.rollouts_per_iteration=12"),
    *("--set", "dataset_options.max_test_size=4", "--set", "malt.num_responses_per_timestep=2"),
    *("--set", "agents.verifier.num_responses=2"),
)
BY_KTO = ("--trainer", "own.py:make", "--set", "agents._default.loss=own.py:KTO")

# One worker: they share a run.
pytestmark = pytest.mark.xdist_group("own losses")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that was trained by a trainer and a loss of its own."""
    folder = tmp_path_factory.mktemp("losses")
    (folder / "own.py").write_text(OWN)
    done = call_cli(folder, "train", *BY_KTO, *TINY, "--run", "kto")
    assert done.returncode == 0, done.stderr
    return folder


def test_a_loss_of_ones_own_trains_and_replays(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trained)
    run = load_run("kto", trust=True).unwrap()
    assert isinstance(replay(run.recording.events), Success)
    assert run.state.faults == ()
    assert {adapter.loss for group in run.state.groups for adapter in group.lineage} == {
        "own.py:KTO"
    }
    metrics = {name: value for row in run.state.rows for name, value in row.metrics}
    assert metrics["verifier.loss_last"] < metrics["verifier.loss_first"]


def test_it_is_resumed_after_its_training_was_cut_off(trained: Path) -> None:
    """The recording ends with the intent to train, and the job's folder is gone."""
    folder, cut = (trained / "runs" / name for name in ("kto", "cut"))
    copytree(folder, cut)
    whole = (cut / "checkpoint.msgpack").read_bytes()
    (cut / "checkpoint.msgpack").write_bytes(whole[: whole.rindex(b"job_finished") - 20])
    for left in ("jobs", "adapters"):
        rmtree(cut / left)
    done = call_cli(trained, "train", "--resume", "--run", "cut")
    assert done.returncode == 0, done.stderr
    names = [sorted(path.name for path in (f / "adapters").iterdir()) for f in (folder, cut)]
    assert names[0] == names[1]


def test_a_loss_that_agents_share_is_loaded_and_checked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    loads = "open('loads', 'a').write('once ')\n"
    Path("own.py").write_text(loads + OWN)
    shared = {"loss": "own.py:KTO"}
    table = {"agents": {"_default": shared, "prover": {}, "verifier": {}}}
    register(table, trust=True).unwrap()
    assert LOSSES["own.py:KTO"].__name__ == "KTO"
    assert Path("loads").read_text() == "once "


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("loss=own.py:OF_A_PART",), "own.py:OF_A_PART: parts of a step add up: it is "),
        (("loss=own.py:FAILING",), "own.py:FAILING: AttributeError: "),
        (("loss=own.py:NONE",), "own.py:NONE: it defines no NONE"),
        (("loss=sft",), "agents.prover.loss: 'sft' is not a loss; choose from dpo, ipo"),
        (("loss=own.py:KTO", "model_provider=SelfHosted"), "is not sent to a language-model serv"),
        (("loss=clipped", "model_provider=OpenAI", "model_name=gpt-4o"), "OpenAI's API trains by"),
    ],
)
def test_a_loss_that_cannot_be_trained_by_is_refused_before_a_run_begins(
    run_cli: RunCli, tmp_path: Path, words: tuple[str, ...], line: str
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    options = [option for word in words for option in ("--set", f"agents._default.{word}")]
    refused = run_cli("train", "--trainer", "reinforce", *TINY, *options)
    assert refused.returncode == 2
    assert line in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()
