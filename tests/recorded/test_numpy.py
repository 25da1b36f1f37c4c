"""A run derives the same under every NumPy that the package allows."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def oldest_numpy() -> str:
    """The least version of the range in pyproject.toml, as MAJOR.MINOR."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (wanted,) = (text for text in project["dependencies"] if text.startswith("numpy"))
    found = re.match(r"numpy>=(\d+\.\d+)", wanted)
    assert found
    return found[1]


@pytest.mark.exhaustive
def test_the_oldest_numpy_derives_the_same_runs_and_replays_every_recording(tmp_path: Path) -> None:
    oldest = oldest_numpy()
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", tmp_path]
    installed = subprocess.run(
        [sys.executable, *install, f"numpy=={oldest}.*"], capture_output=True, text=True
    )
    if installed.returncode != 0:
        pytest.skip(f"NumPy {oldest} cannot be installed here: {installed.stderr.strip()[-200:]}")

    def output(*arguments: str, folder: str) -> str:
        """Output of Python with the packages of a folder before those that are installed."""
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": folder},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    version = output("-c", "import numpy; print(numpy.__version__)", folder=str(tmp_path))
    assert version.startswith(f"{oldest}.")
    # The digest of a run, and the hash of its recording.
    run = ("-m", "tests.core.games")
    assert output(*run, folder=str(tmp_path)) == output(*run, folder="")
    replays = ("-m", "pytest", "-p", "no:cacheprovider", "tests/recorded/test_recorded.py")
    assert "passed" in output(*replays, folder=str(tmp_path))
