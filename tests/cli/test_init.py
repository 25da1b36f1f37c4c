"""`nip-fn init`, and the configuration that each run leaves in its folder."""

import re
from pathlib import Path
from typing import Any

import pytest

from nip_fn.config.schema import parameters
from nip_fn_adapters.experiments.plans import plan
from nip_fn_cli.commands.init import init_command
from nip_fn_cli.config import overrides
from nip_fn_cli.shown.parameters import values_of
from tests.cli.conftest import SMALL, RunCli


def hash_of(stderr: str) -> str:
    """The hash of the configuration that a command told."""
    found = re.search(r"^configuration (\w+)", stderr, re.MULTILINE)
    assert found, stderr
    return found[1]


def test_the_configuration_of_a_run_starts_an_equal_run(run_cli: RunCli) -> None:
    own = ("--set", "agents.verifier.lora_alpha=8", "--set", "agents.prover.freeze_agent=true")
    first = run_cli("train", *SMALL, *own, "--run", "a")
    again = run_cli("train", "runs/a/config.toml", "--run", "b")
    assert (first.returncode, again.returncode) == (0, 0), again.stderr
    assert hash_of(first.stderr) == hash_of(again.stderr)
    digests = [re.findall(r"^digest +(\w+)", done.stdout, re.MULTILINE) for done in (first, again)]
    assert digests[0] == digests[1] != []


def test_an_extended_run_has_the_configuration_of_all_its_iterations(
    run_cli: RunCli, tmp_path: Path
) -> None:
    run_cli("train", *SMALL, "--run", "a", "--iterations", "1")
    run_cli("train", "--resume", "--run", "a", "--more-iterations", "1")
    config = tmp_path / "runs/a/config.toml"
    assert "num_iterations = 2" in config.read_text()
    config.unlink()  # as in a run of an earlier version
    run_cli("train", "--resume", "--run", "a")
    assert "num_iterations = 2" in config.read_text()


@pytest.mark.parametrize(
    ("provider", "options"),
    [
        (None, {}),
        ("dummy", {"protocol": "debate", "trainer": "ei"}),
        ("openai", {"model": "m", "dataset": "builtin:python"}),
        (None, {"sets": ["rl.lr=1e-3", "agents.prover.model_name=builtin:tea"]}),
        (None, {"sets": ["agents.prover.lora_alpha=8", "agents.verifier.lora_alpha=8"]}),
    ],
)
def test_a_new_configuration_says_what_its_options_say_also_without_its_marks(
    tmp_path: Path, provider: str | None, options: dict[str, Any]
) -> None:
    file, every = tmp_path / "c.toml", tmp_path / "every.toml"
    init_command(file, provider=provider, runs=tmp_path, **options)
    every.write_text(re.sub(r"(?m)^#(?! )", "", file.read_text()))
    expected = plan(overrides(**options), provider, tmp_path).params
    for one in (file, every):
        assert plan(overrides(one), None, tmp_path).params == expected
    words = " ".join(file.read_text().replace("\n#", "").split())
    for address, parameter in parameters().items():
        # An agent's name is that of its table.
        is_left_out = address == "agents.AGENT.name"
        assert is_left_out or f"{parameter.description} ({values_of(parameter)})" in words


def test_a_file_that_exists_is_left_alone(run_cli: RunCli, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("seed = 1\n")
    done = run_cli("init")
    assert done.returncode == 2
    assert "nip-fn init config-2.toml" in done.stderr
    assert (tmp_path / "config.toml").read_text() == "seed = 1\n"
    assert run_cli("init", "c.yaml").returncode == 2
