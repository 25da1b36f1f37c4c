"""`nip-fn analyse`: the dialogues of a run, judged by a model behind real HTTP or by none."""

import json
import shutil
from pathlib import Path

import pytest

from nip_fn_adapters import load_run

from ..provider import Provider
from .conftest import RunCli, call_cli
from .test_loading import SMALL

KEY = "sk-analyse"
DUMMY = ("--provider", "dummy", "--set", "dummy.decision_rate=1.0")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("analysed")
    done = call_cli(home, "train", *SMALL, "--run", "a")
    assert done.returncode == 0, done.stderr
    return home / "runs/a"


@pytest.fixture
def analyse(trained: Path, tmp_path: Path, run_cli: RunCli) -> RunCli:
    shutil.copytree(trained, tmp_path / "runs/a")
    return lambda *options, **variables: run_cli("analyse", "a", *options, **variables)


def test_an_analysis_is_a_recorded_run(analyse: RunCli, tmp_path: Path) -> None:
    done = analyse(*DUMMY, "--analyser", "follow_up", "--name", "mine", "--json")
    assert done.returncode == 0, done.stderr
    (told,) = json.loads(done.stdout)["analyses"]
    run = load_run(tmp_path / "runs/a").unwrap()
    spoke = [game.rollout for game in run.rollouts("test", 2)]
    by_agent = {one["agent"]: one for one in told["findings"]}
    for index, spec in enumerate(run.protocol.agents):
        games = [
            game
            for game in spoke
            if any(one.agent == index and one.messages for turn in game.rounds for one in turn)
        ]
        assert by_agent[spec.name]["games"] == len(games)
    recorded = load_run(tmp_path / "runs/a/analyses/mine/follow_up-test-2").unwrap()
    assert not recorded.faults
    values = {
        game.rollout.datapoint.id: game.rollout.decision and game.rollout.decision.discrete
        for game in recorded.rollouts()
    }
    assert sorted({one["value"] for one in told["games"]}) == sorted(set(values.values()))
    again = analyse(*DUMMY, "--analyser", "follow_up", "--name", "mine", "--json")
    assert again.stdout == done.stdout
    assert "no model was asked" in again.stderr
    assert "(--name)" in again.stderr  # the option that this command has


def test_all_analysers_and_ones_own_make_a_table(analyse: RunCli, tmp_path: Path) -> None:
    (tmp_path / "polite.jinja").write_text("{{ agent_name }} is polite.")
    done = analyse(*DUMMY, "--sampled", "--iteration", "1", "--limit", "9", "--name", "all")
    own = analyse(*DUMMY, "--analyser", "polite.jinja,follow_up", "--name", "own")
    assert (done.returncode, own.returncode) == (0, 0), done.stderr + own.stderr
    titles, *rows = done.stdout.split("\n\n")[0].splitlines()
    assert titles.split()[:3] == ["analyser", "agent", "games"]
    assert {row.split()[0] for row in rows} == {
        "prover_role_conformance",
        "prover_direct_quotation",
        "prover_accurate_quotation",
        "follow_up",
        "verifier_format_conformance",
    }
    assert all(int(row.split()[2]) <= 9 for row in rows)
    assert "polite" in own.stdout
    assert (tmp_path / "runs/a/analyses/own/polite-test-2/checkpoint.msgpack").is_file()


def test_the_report_of_the_run_shows_its_analyses(
    analyse: RunCli, run_cli: RunCli, tmp_path: Path
) -> None:
    for options in (("--iteration", "0"), ("--iteration", "2"), ("--sampled", "--limit", "5")):
        done = analyse(*DUMMY, "--analyser", "follow_up", *options)
        assert done.returncode == 0, done.stderr
    reported = run_cli("report", "a")
    assert reported.returncode == 0, reported.stderr
    page = (tmp_path / "runs/a/report.html").read_text()
    assert "<h3>Follow up</h3>" in page
    chart = page[page.index("<h3>Follow up</h3>") :].split("</figure>")[0]
    told = json.loads(
        analyse(*DUMMY, "--analyser", "follow_up", "--iteration", "2", "--json").stdout
    )
    for one in told["analyses"][0]["findings"]:
        assert f"{one['agent']}, 2: {100 * one['share']['value']:.1f}".removesuffix(".0") in chart
        assert f"{one['agent']}, sampled, 1: " in chart


def test_a_model_is_asked_once_about_each_dialogue_and_within_a_budget(
    analyse: RunCli, tmp_path: Path
) -> None:
    (tmp_path / "prices.toml").write_text('[models]\n"m" = { prompt = 1000.0, completion = 0.0 }\n')
    with Provider(key=KEY, caching=False) as provider:
        options = (
            "--provider", "openai", "--base-url", provider.url, "--model", "m",
            "--analyser", "follow_up,prover_role_conformance", "--sampled", "--name", "b",
            "--prices", tmp_path / "prices.toml",
        )  # fmt: skip
        dry = analyse(*options, "--dry-run", OPENAI_API_KEY=KEY)
        assert dry.returncode == 0, dry.stderr
        assert provider.log() == []
        short = analyse(*options, "--budget", "2", OPENAI_API_KEY=KEY)
        assert short.returncode == 11, short.stderr
        some = len(provider.log())
        assert some > 0
        done = analyse(*options, "--json", OPENAI_API_KEY=KEY)
        assert done.returncode == 0, done.stderr
        asked = {
            game.rollout.datapoint.id
            for name in ("follow_up", "prover_role_conformance")
            for game in load_run(tmp_path / f"runs/a/analyses/b/{name}-sample-1")
            .unwrap()
            .rollouts()
        }
        assert some < len(asked) == len(provider.log())
        assert all(
            "Is the statement true of the dialogue?" in one["body"]["messages"][-1]["content"]
            for one in provider.log()
        )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--analyser", "folow_up"), "follow_up"),
        (("--analyser", "none.jinja"), "No such file"),
        (("--iteration", "7"), "known: 0, 1, 2"),
        ((), "no model is named"),
    ],
)
def test_what_cannot_be_analysed_is_refused(
    analyse: RunCli, options: tuple[str, ...], words: str
) -> None:
    refused = analyse(*options)
    assert refused.returncode == 2
    assert words in refused.stderr
    assert refused.stderr.count("\n") == 1
