"""A forged, nested, empty or foreign checkpoint gets a line and an exit code, soon and in little
memory.
"""

import resource
import time
from pathlib import Path

import pytest

from nip_fn_adapters import load_run
from nip_fn_cli.shown.exits import Exit

from .conftest import call_cli
from .forging import forged
from .test_terminal import commands_in

SIZE = (
    "--provider", "dummy", "--seed", "5", "--iterations", "1",
    "--set", "rl.rollouts_per_iteration=12", "--set", "malt.num_responses_per_timestep=2",
    "--set", "nip_protocol.max_message_rounds=3", "--set", "dataset_options.max_test_size=3",
    "--set", "text_rl.test_scheme=all",
)  # fmt: skip
# Those that change nothing that a run of this size looks at, or say what it said before.
HARMLESS = (
    "malt.num_initial_ei_iterations = 0",
    "dataset 3 = 0",
    "run_started alone",
    " deep",  # nesting that the decoder skips, in a field after the last
    " = None",  # an optional parameter
    " field ",
)
LIMITS = {"seconds": 10.0, "kilobytes": 400_000}
SAMPLED = 12  # every so many kinds are tried in the ordinary suite


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The recording of an honest run that trains."""
    home = tmp_path_factory.mktemp("honest")
    done = call_cli(home, "train", *SIZE, "--run", "a")
    assert done.returncode == 0, done.stderr
    return (home / "runs/a/checkpoint.msgpack").read_bytes()


def look_at(kinds: list[tuple[str, bytes]], folder: Path) -> None:
    for name, data in kinds:
        path = folder / "checkpoint.msgpack"
        path.write_bytes(data)
        began, held = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        done = call_cli(folder, "replay", path)
        more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held
        assert time.monotonic() - began < LIMITS["seconds"], name
        assert more < LIMITS["kilobytes"], name
        assert commands_in(done.stdout + done.stderr) == [], name
        if done.returncode:
            *_, line = done.stderr.splitlines()
            assert line.startswith("nip-fn: "), name
            assert 20 < len(line) < 3000, name
            assert done.returncode in {4, 5, 6, 7, 8}, name
        else:
            assert any(part in name for part in HARMLESS), name


def test_a_forged_checkpoint_gets_a_line_and_an_exit_code(recorded: bytes, tmp_path: Path) -> None:
    kinds = list(forged(recorded))
    assert len(dict(kinds)) > 500
    look_at(kinds[::SAMPLED], tmp_path)


@pytest.mark.exhaustive
def test_so_does_each_kind(recorded: bytes, tmp_path: Path) -> None:
    look_at(list(forged(recorded)), tmp_path)


@pytest.mark.parametrize("size", [0, 5, 16])
def test_an_empty_recording_is_no_success(recorded: bytes, tmp_path: Path, size: int) -> None:
    run = tmp_path / "runs/a"
    run.mkdir(parents=True)
    (run / "checkpoint.msgpack").write_bytes(recorded[:size])
    for command in (("replay",), ("replay", "--json")):
        done = call_cli(tmp_path, *command, "runs/a")
        assert done.returncode == Exit.TRUNCATED, command
        assert done.stdout == ""
        assert "holds no event of a run; resume it with the settings" in done.stderr
    assert "holds no event" in str(load_run(run).failure())
    # The remedy works.
    again = call_cli(tmp_path, "train", *SIZE, "--run", "a", "--resume")
    assert again.returncode == 0, again.stderr
    assert (run / "checkpoint.msgpack").stat().st_size > 1000


@pytest.mark.parametrize(
    ("sets", "address"),
    [
        (("nip_protocol.max_message_rounds=500",), "nip_protocol.max_message_rounds"),
        (("nip_protocol.max_message_rounds=40",), "nip_protocol.max_message_rounds"),
        (("malt.num_responses_per_timestep=1000000",), "malt.num_responses_per_timestep"),
        (("rl.num_test_iterations=1000000000",), "rl.num_test_iterations"),
        (("rl.rollouts_per_iteration=1000000000",), "rl.rollouts_per_iteration"),
        (("rl.num_iterations=1000000000",), "rl.num_iterations"),
        (("agents.prover.num_responses=[2, 100000]",), "agents.prover.num_responses"),
    ],
)
def test_an_impossible_size_is_refused_before_anything_is_asked(
    tmp_path: Path, sets: tuple[str, ...], address: str
) -> None:
    arguments = [word for one in sets for word in ("--set", one)]
    for command in (
        ("train", "--provider", "dummy"),
        ("train", "--provider", "dummy", "--dry-run"),
    ):
        done = call_cli(tmp_path, *command, *arguments)
        assert done.returncode == Exit.USAGE, done.stderr
        assert f"nip-fn: {address}: " in done.stderr
        assert "set it to at most " in done.stderr
    assert not (tmp_path / "runs").exists()
