"""What is published: the wheel and the source archive, each installed in an empty environment.

Builds and installs with pip, so these are for `make test-all`.
"""

import os
import re
import subprocess
import tarfile
import venv
import zipfile
from collections.abc import Mapping
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"nip_fn": "", "adapters/nip_fn_adapters": "adapters/", "cli/nip_fn_cli": "cli/"}
EXTRAS = ("api", "data", "local", "ray", "serve")
SMALL = ("--set", "rl.rollouts_per_iteration=20", "--set", "dataset_options.max_test_size=20")
MEGABYTES = 8.0  # four embedded models, 180 problems, and the code

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.xdist_group("wheel"),
    pytest.mark.timeout(3000),  # pip unpacks torch
]


def run(*words: str | Path, cwd: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*map(str, words)],
        cwd=cwd,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=1500,
    )


def empty_environment(folder: Path) -> Path:
    """The programs of a new environment that has pip and nothing else."""
    venv.create(folder, with_pip=True)
    return folder / "bin"


def install(programs: Path, *what: str) -> None:
    """Install packages of the versions that are developed with."""
    pinned = ("--quiet", "--no-compile", "--constraint", str(ROOT / "constraints.txt"))
    done = run(programs / "pip", "install", *pinned, *what, cwd=programs)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The two files, by their endings: one of what git tracks, the wheel out of that one."""
    place = tmp_path_factory.mktemp("built")
    source, dist = place / "source", place / "dist"
    for name in tracked("."):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    programs = empty_environment(place / "venv")
    install(programs, "hatchling")
    build(programs, "sdist", dist, source)
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        archive.extractall(place / "unpacked", filter="data")
    (unpacked,) = (place / "unpacked").iterdir()
    build(programs, "wheel", dist, unpacked)
    return {file.suffix: file for file in dist.iterdir()}


def build(programs: Path, target: str, dist: Path, source: Path) -> None:
    done = run(programs / "hatchling", "build", "-t", target, "-d", dist, cwd=source)
    assert done.returncode == 0, done.stderr


def tracked(*folders: str) -> list[str]:
    """The files that git tracks there."""
    return run("git", "ls-files", *folders, cwd=ROOT).stdout.splitlines()


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        return message_from_bytes(archive.read(name))


def test_the_wheel_has_all_files_of_the_packages_and_no_others(built: Mapping[str, Path]) -> None:
    with zipfile.ZipFile(built[".whl"]) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {
        name.removeprefix(prefix) for folder, prefix in PACKAGES.items() for name in tracked(folder)
    }
    assert inside == expected
    assert built[".whl"].stat().st_size < MEGABYTES * 2**20


def test_the_source_archive_has_all_that_is_tracked(built: Mapping[str, Path]) -> None:
    with tarfile.open(built[".gz"]) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert inside - {"PKG-INFO"} == set(tracked("."))


def test_the_metadata_say_who_may_use_it_and_with_what(built: Mapping[str, Path]) -> None:
    said = metadata(built[".whl"])
    assert said["License-Expression"] == "Apache-2.0"
    assert said["Requires-Python"] == ">=3.11"
    assert said["Author"]
    assert said["Keywords"]
    assert "Typing :: Typed" in said.get_all("Classifier", [])
    assert set(EXTRAS) <= set(said.get_all("Provides-Extra", []))


def test_an_empty_environment_grows_by_the_commands_that_doctor_gives(
    built: Mapping[str, Path], tmp_path: Path
) -> None:
    programs, folder = empty_environment(tmp_path / "venv"), tmp_path / "folder"
    folder.mkdir()

    def nip_fn(*words: str) -> "subprocess.CompletedProcess[str]":
        home = {"HOME": str(folder), "PATH": f"{programs}:/usr/bin:/bin", "COLUMNS": "200"}
        return run(programs / "nip-fn", *words, cwd=folder, **home)

    def lacking() -> set[str]:
        """The extras of which doctor finds a package missing."""
        return set(re.findall(r'pip install "nip-fn\[(\w+)\]"', nip_fn("doctor").stdout))

    install(programs, str(built[".whl"]))
    assert lacking() == set(EXTRAS)
    assert nip_fn("--version").stdout.split()[-1] in built[".whl"].name
    refused = nip_fn("train", "--iterations", "0")
    assert refused.returncode != 0
    assert "Traceback" not in refused.stderr
    assert 'pip install "nip-fn[local]"' in refused.stderr
    for number, extra in enumerate(("", *EXTRAS)):
        if extra:
            install(programs, f"nip-fn[{extra}]")
            assert extra not in lacking()
        name = f"run-{number}"
        train = ("train", "--provider", "dummy", "--iterations", "1", "--run", name)
        for words in ((*train, *SMALL), ("replay", f"runs/{name}"), ("report", name)):
            done = nip_fn(*words)
            assert done.returncode == 0, done.stderr
    assert nip_fn("doctor").returncode == 0
    done = nip_fn("train", "--iterations", "0", *SMALL)  # the embedded model
    assert done.returncode == 0, done.stderr
