"""Python in a fresh process."""

import os
import subprocess
import sys
from pathlib import Path


def printed(*arguments: str, hash_seed: str, given: str = "") -> str:
    """What `python ARGUMENTS` prints in the project's folder, with that seed of string hashes."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        input=given,
        encoding="utf-8",
        capture_output=True,
        check=True,
        timeout=60,
    ).stdout
