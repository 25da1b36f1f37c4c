"""The examples run, and print what they promise."""

import subprocess
import sys
from pathlib import Path

from nip_fn.config.hosting import is_hosted, is_trained, server_url
from nip_fn_adapters.selfhosted.needs import needs_of
from nip_fn_adapters.serving.wire import Needs
from nip_fn_cli.config import read_table
from nip_fn_cli.session import plan

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *arguments: str) -> str:
    """What an example prints."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_compose_plays_grows_and_selects() -> None:
    output = run("compose.py")
    assert "rewards (0.0, 1.0), the game is decided" in output
    values = [line for line in output.splitlines() if "expected" not in line and " prover " in line]
    root, *others = values
    assert root.split()[0] == "0"
    assert len(others) >= 2
    assert " rather than " in output


def test_a_protocol_of_ones_own_is_checked_grown_and_selected_from_in_under_60_lines() -> None:
    assert len((EXAMPLES / "own_protocol.py").read_text("utf-8").splitlines()) < 60
    lines = run("own_protocol.py").splitlines()
    assert [line.partition(":")[0] for line in lines] == ["defender", "prosecutor", "verifier"]
    assert all(" rather than " in line for line in lines)


def test_the_settings_for_open_weights_are_a_run(tmp_path: Path) -> None:
    params = plan(read_table(EXAMPLES / "open_weights.toml").unwrap(), None, tmp_path).params
    assert all(is_hosted(agent) and is_trained(params, agent) for agent in params.agents)
    assert params.rl.lr == 1e-5
    (url,) = {server_url(agent) for agent in params.agents}
    assert needs_of(params, url) == Needs("Qwen/Qwen2.5-7B-Instruct", 16, max_loras=2)
