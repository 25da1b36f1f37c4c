"""Protocols, trainers, selectors and data sets of a user's own, by reference."""

import json
from pathlib import Path

import pytest

from nip_fn.params.data import DatasetParameters
from nip_fn_adapters import load_run
from nip_fn_adapters.extensions import load_dataset, load_extension, register, source_hash
from nip_fn_cli.shown.exits import Exit

from .conftest import SMALL, RunCli

GAME = """
from nip_fn.protocols.nip import nip
from {rules} import ROUNDS

def GAME(params):
    return nip(params)._replace(name="mine", max_message_rounds=ROUNDS)
"""
DATA = """
from nip_fn.game.datapoint import make_datapoint

def POINTS():
    for i in range(80):
        yield make_datapoint(f"p{i}", f"Is {i} even?", f"return {i % 2 == 0}", i % 2)
"""
BROKEN = "x = 1\nraise RuntimeError('no luck')\n"


@pytest.fixture
def game(tmp_path: Path) -> str:
    """A reference to a protocol that lies in two files."""
    # Names of this test alone: modules and registries live as long as the process.
    rules = f"rules_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{rules}.py").write_text("ROUNDS = 3\n")
    (tmp_path / f"{tmp_path.name}.py").write_text(GAME.format(rules=rules))
    return f"{tmp_path.name}.py:GAME"


def trained(run_cli: RunCli, *options: str) -> dict[str, object]:
    """The facts of a run and of its replay, which must derive it again."""
    done = run_cli("train", *SMALL, *options, "--run", "a")
    assert done.returncode == 0, done.stderr
    replayed = run_cli("replay", "runs/a", "--json")
    assert replayed.returncode == 0, replayed.stderr
    assert "warning" not in replayed.stderr
    facts: dict[str, object] = json.loads(replayed.stdout)
    assert facts["digests_match"]
    return facts


def test_a_protocol_of_ones_own_is_trained_recorded_and_replayed(
    run_cli: RunCli, tmp_path: Path, game: str
) -> None:
    trained(run_cli, "--protocol", game)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        assert "you have not named before" in str(load_run("a").failure())
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path / ".config"))  # the command's
        run = load_run("a").unwrap()
    assert run.protocol.name == "mine"
    assert max(run.games()["rounds"]) == 3
    ((reference, recorded),) = run.recording.events[0].sources  # type: ignore[union-attr]
    assert reference == game
    assert len(recorded) == 16


def test_a_protocol_that_has_changed_is_named_and_not_resumed(
    run_cli: RunCli, tmp_path: Path, game: str
) -> None:
    trained(run_cli, "--protocol", game)
    file = tmp_path / game.partition(":")[0]
    file.write_text(file.read_text() + "# another comment\n")
    changed = "its source has changed since the run was started (recorded "
    refused = run_cli("replay", "runs/a")
    assert refused.returncode == 8
    assert f"{game}: {changed}" in refused.stderr
    assert "and was not loaded; restore the source, or " in refused.stderr
    replayed = run_cli("replay", "runs/a", "--trust")
    assert replayed.returncode == 0
    assert f"warning: {game}: {changed}" in replayed.stderr
    # It has been named now.
    assert run_cli("replay", "runs/a").returncode == 0
    checkpoint = tmp_path / "runs/a/checkpoint.msgpack"
    before = checkpoint.read_bytes()
    refused = run_cli("train", "--resume", "--run", "a")
    assert refused.returncode == 2
    assert "restore the source, or start a new run" in refused.stderr
    assert checkpoint.read_bytes() == before


def test_a_change_of_what_the_source_imports_is_noticed(
    run_cli: RunCli, tmp_path: Path, game: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        before = source_hash(game).unwrap()
        (tmp_path / "unrelated.py").write_text("x = 1\n")
        assert source_hash(game).unwrap() == before
        (rules,) = tmp_path.glob("rules_*.py")
        rules.write_text("ROUNDS = 4\n")
        assert source_hash(game).unwrap() != before


def test_a_protocol_that_is_missing_is_named_with_what_to_do(
    run_cli: RunCli, tmp_path: Path, game: str
) -> None:
    trained(run_cli, "--protocol", game)
    (tmp_path / game.partition(":")[0]).unlink()
    for command in (("replay", "runs/a"), ("train", "--resume", "--run", "a")):
        failed = run_cli(*command)
        assert failed.returncode != 0
        (line,) = failed.stderr.strip().splitlines()
        assert f"there is no file {game.partition(':')[0]}" in line
        assert "put it back" in line


def test_a_data_set_of_ones_own_is_split_by_problem(run_cli: RunCli, tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text(DATA)
    facts = trained(run_cli, "--dataset", "data.py:POINTS")
    assert facts["dataset"] == "data.py:POINTS"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path / ".config"))  # the command's
        data = load_dataset("data.py:POINTS", DatasetParameters()).unwrap()
    sizes = [len(split) for split in (data.train, data.validation, data.test)]
    assert sum(sizes) == 80
    assert all(sizes)


def test_a_trainer_of_ones_own_is_trained_and_replayed(run_cli: RunCli, tmp_path: Path) -> None:
    (tmp_path / "own_trainer.py").write_text(
        "import nip_fn as nip\nfrom nip_fn.selectors import cap, every\n"
        "TRAINER = nip.malt(nip.chain(every(), cap(3)), k=2)\n"
    )
    facts = trained(run_cli, "--trainer", "own_trainer.py:TRAINER")
    assert facts["iterations"][0]["sample.verifier.pairs"] > 0  # type: ignore[index]


MIXED = """
import nip_fn as nip

COMPARES = nip.malt(nip.chain(nip.selectors.every()), k=3)

def update(batch, state, key):
    made = COMPARES.update(batch, state, key)
    rows = {
        group: (*(nip.training.imitated(row.prompt, row.replies[0]) for row in own[:3]), *own[3:])
        for group, own in made.rows.items()
    }
    return made._replace(rows=rows)

T = COMPARES._replace(update=update)
"""


def test_a_trainer_whose_rows_do_not_fit_their_loss_is_refused_before_a_reply_is_paid(
    run_cli: RunCli, tmp_path: Path
) -> None:
    (tmp_path / "mixed.py").write_text(MIXED)
    refused = run_cli("train", "--trainer", "mixed.py:T", *SMALL, "--run", "a")
    assert refused.returncode == Exit.USAGE, refused.stderr
    (line,) = refused.stderr.strip().splitlines()
    assert "mixed.py:T: iteration 0: rows fit their loss: update: row 0 of its update" in line
    assert "weighs its replies +1, and dpo compares replies" in line
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("address", "value"),
    [("pair_selection_method", "interval(0.4)"), ("value_backup", "discounted(0.5)")],
)
def test_a_selector_or_a_backup_of_ones_own_selects_and_reselects(
    run_cli: RunCli, tmp_path: Path, address: str, value: str
) -> None:
    (tmp_path / f"own_{address}.py").write_text(f"import nip_fn as nip\nVALUE = nip.{value}\n")
    option = ("--set", f"malt.{address}=own_{address}.py:VALUE")
    facts = trained(run_cli, *option)
    assert facts["iterations"][0]["sample.verifier.pairs"] > 0  # type: ignore[index]
    compared = json.loads(run_cli("replay", "runs/a", *option, "--json").stdout)
    assert compared["changed"] == []
    assert all(row["in_both"] == row["selected"] for row in compared["selections"])


def test_a_protocol_of_ones_own_is_tested_beside_the_verifier_alone(
    run_cli: RunCli, game: str
) -> None:
    small = ("--provider", "dummy", "--set", "dataset_options.max_test_size=5")
    tested = run_cli("eval", *small, "--protocol", game, "--protocol", "solo_verifier", "--json")
    assert tested.returncode == 0, tested.stderr
    assert [one["protocol"] for one in json.loads(tested.stdout)["tests"]] == [
        game,
        "solo_verifier",
    ]


def test_a_module_is_found_in_the_working_directory(run_cli: RunCli, tmp_path: Path) -> None:
    package = tmp_path / "games_of_one_test"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "short.py").write_text(GAME.format(rules="games_of_one_test.rules"))
    (package / "rules.py").write_text("ROUNDS = 3\n")
    trained(run_cli, "--protocol", "games_of_one_test.short:GAME")


@pytest.mark.parametrize(
    ("option", "reference", "words"),
    [
        ("--protocol", "nowhere.py:GAME", ["interaction_protocol", "nowhere.py:GAME", "no file"]),
        ("--protocol", "no_such_package.x:GAME", ["no_such_package.x", "no module"]),
        ("--protocol", "mine.py:GAM", ["mine.py:GAM", "defines no GAM", "GAME"]),
        ("--protocol", "mine.py:NUMBER", ["mine.py:NUMBER", "type int"]),
        ("--protocol", "mine.py:GAME", ["mine.py:GAME", "type int", "a Protocol"]),
        ("--protocol", "broken.py:GAME", ["broken.py:GAME", "RuntimeError: no luck", "line 2"]),
        ("--trainer", "mine.py:NUMBER", ["trainer", "type int", "Trainer"]),
        ("--dataset", "mine.py:WORDS", ["dataset", "type str", "Datapoint"]),
        ("--dataset", "mine.py:NUMBER", ["dataset", "not iterable"]),
        ("--set", "malt.pair_selection_method=mine.py:NUMBER", ["pair_selection", "selector"]),
        ("--set", "malt.value_backup=mine.py:NUMBER", ["value_backup", "backup"]),
        ("--set", "malt.value_backup=leafs", ["value_backup", "not a backup", "'leaves'"]),
    ],
)
def test_a_reference_that_cannot_be_used_is_one_line(
    run_cli: RunCli, tmp_path: Path, option: str, reference: str, words: list[str]
) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    (tmp_path / "mine.py").write_text("NUMBER = 1\nWORDS = ['a']\ndef GAME(params): return 1\n")
    failed = run_cli("train", *SMALL, option, reference)
    assert failed.returncode == 2
    (line,) = failed.stderr.strip().splitlines()
    assert all(word in line for word in words), line
    assert not (tmp_path / "runs").exists()


def test_a_redefined_protocol_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    from nip_fn.protocols.registry import PROTOCOLS

    file = tmp_path / "redefined.py"
    for name in ("first", "second"):
        file.write_text(
            "from nip_fn.protocols.nip import nip\n"
            f"def GAME(params): return nip(params)._replace(name={name!r})\n"
        )
        assert load_extension(f"{file}:GAME", trust=True).unwrap().reference == f"{file}:GAME"
        register({"interaction_protocol": f"{file}:GAME"}).unwrap()  # named by now
        from nip_fn.params.run import HyperParameters

        assert PROTOCOLS[f"{file}:GAME"](HyperParameters()).name == name
