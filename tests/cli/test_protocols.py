"""A complete MALT run of every protocol with the real command, and its replay."""

import re
from pathlib import Path

import pytest
from msgspec.json import decode

from nip_fn.game.decision import SPECTRA
from nip_fn.game.protocol import has_answers
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.registry import PROTOCOLS, agent_names

from .conftest import RunCli

# Small, with every third reply unusable or nearly so, and selection that finds enough pairs.
SMALL = (
    "--dataset", "builtin:tea",
    "--provider", "dummy", "--trainer", "malt", "--iterations", "2",
    "--set", "rl.rollouts_per_iteration=40", "--set", "dataset_options.max_test_size=4",
    "--set", "malt.num_responses_per_timestep=3", "--set", "malt.pair_selection_method=interval",
    "--set", "dummy.invalid_rate=0.2", "--set", "dummy.decision_rate=0.5",
    "--set", "agents._default.num_invalid_generation_retries=2",
)  # fmt: skip


# About the later of two data sets: a game in which answers are written has others.
WRITTEN = (
    "--dataset", "builtin:sums",
    "--set", "debate_protocol.max_message_rounds=3", "--set", "oracle_protocol.max_queries=1",
)  # fmt: skip


def is_written(protocol: str) -> bool:
    return has_answers(PROTOCOLS[protocol](HyperParameters()))


def trained(run_cli: RunCli, protocol: str, *options: str) -> str:
    """The digest of a run, which its replay has to derive again."""
    run = run_cli("train", *SMALL, "--protocol", protocol, *options, "--run", "a")
    assert run.returncode == 0, run.stderr
    found = re.search(r"digest +(\w{32})", run.stdout)
    assert found
    replayed = run_cli("replay", "runs/a/checkpoint.msgpack")
    assert replayed.returncode == 0, replayed.stderr
    assert f"{found[1]} (all recorded digests match)" in replayed.stdout
    return found[1]


@pytest.mark.parametrize("protocol", [name for name in PROTOCOLS if name != "multi_channel_test"])
def test_every_protocol_trains_and_replays(protocol: str, run_cli: RunCli, tmp_path: Path) -> None:
    trained(run_cli, protocol, *(WRITTEN if is_written(protocol) else ()))
    lines = (tmp_path / "runs/a/metrics.jsonl").read_text().splitlines()
    rows = [decode(line) for line in lines]
    train = [row for row in rows if row["stage"] == "train"]
    # Nobody trains a tool.
    agents = [name for name in agent_names(protocol) if name != "oracle"]
    assert [row["jobs"] for row in train] == [len(agents)] * 2
    sampled = next(row for row in rows if row["stage"] == "sample")
    for agent in agents:
        assert sampled[f"{agent}.replies"] > 0
        assert sampled[f"{agent}.invalid"] > 0
        assert sampled[f"{agent}.retries"] > sampled[f"{agent}.invalid"]


def test_the_test_protocol_trains_its_verifier(run_cli: RunCli) -> None:
    narrow = ("malt.num_responses_per_timestep=2", "rl.rollouts_per_iteration=8")
    trained(run_cli, "multi_channel_test", *(part for s in narrow for part in ("--set", s)))


# The words of the other spectra are tested by themselves, in the core.
QUICK_SPECTRA = ("likert_scale_5", "out_of_100")


@pytest.mark.parametrize(
    "spectrum",
    [
        name if name in QUICK_SPECTRA else pytest.param(name, marks=pytest.mark.exhaustive)
        for name in SPECTRA
        if name != "accept_reject"
    ],
)
def test_every_spectrum_trains_and_replays(spectrum: str, run_cli: RunCli) -> None:
    option = f"protocol_common.verifier_decision_spectrum={spectrum}"
    trained(run_cli, "debate", "--set", option)


@pytest.mark.parametrize(
    "options",
    [
        ["debate_protocol.sequential=true", "debate_protocol.max_message_rounds=4"],
        ["protocol_common.verifier_first=false", "debate_protocol.prover0_first=false"],
        ["protocol_common.prover_invalid_response_penalty=-1.0"],
        ["protocol_common.shared_reward=true", "protocol_common.force_guess='y'"],
    ],
)
def test_rules_of_a_debate(options: list[str], run_cli: RunCli) -> None:
    trained(run_cli, "debate", *(part for option in options for part in ("--set", option)))


def test_a_run_keeps_the_template_it_was_started_with(run_cli: RunCli, tmp_path: Path) -> None:
    """The file may change or go: the record holds its text."""
    template = tmp_path / "judge.jinja"
    template.write_text("Judge this: {{ question }} {{ solution }} {{ max_questions }}")
    option = "agents.verifier.system_prompt_template_path=judge.jinja"
    first = trained(run_cli, "nip", "--set", option)
    template.unlink()
    again = run_cli("replay", "runs/a")
    assert first in again.stdout
    assert run_cli("train", "--resume", "--run", "a", "--set", option).returncode == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Judge {{ this }}", ["agents.verifier.system_prompt_template", "this"]),
        (None, ["judge.jinja", "No such file"]),
    ],
)
def test_a_template_that_cannot_work_stops_the_run_before_it_starts(
    text: str | None, words: list[str], run_cli: RunCli, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / "judge.jinja").write_text(text)
    option = "agents.verifier.system_prompt_template_path=judge.jinja"
    refused = run_cli("train", *SMALL, "--set", option)
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert all(word in refused.stderr for word in words)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("provider", ["OpenAI", "OpenRouter"])
def test_a_provider_without_a_model_of_its_own_is_refused(
    provider: str, run_cli: RunCli, tmp_path: Path
) -> None:
    refused = run_cli("train", "--provider", provider)
    assert refused.returncode == 2
    assert provider.lower() in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.xdist_group("trainings")  # whose worker has torch
@pytest.mark.usefixtures("forked")
def test_agents_with_and_without_a_model_play_together(run_cli: RunCli) -> None:
    """The embedded verifier against a prover without a model."""
    small = ("rl.rollouts_per_iteration=2", "dataset_options.max_test_size=2")
    options = (part for s in (*small, "agents.prover.use_dummy_api=true") for part in ("--set", s))
    run = run_cli("train", "--iterations", "1", *options, "--run", "a")
    assert run.returncode == 0, run.stderr
    assert run_cli("replay", "runs/a").returncode == 0
