"""`nip-fn export`: what other programs make of a run."""

import csv
import json
import math
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nip_fn.export.arrays import TEXT_DTYPE
from nip_fn_adapters import load_run
from nip_fn_adapters.recording import exports
from nip_fn_adapters.recording.runs import Columns

from .conftest import SMALL, RunCli, call_cli

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "adapters" / "nip_fn_adapters" / "base_models" / "tea"
INSPECT = ROOT / ".venv-inspect" / "bin" / "python"  # an environment of its own
READ = """
import json, sys
from inspect_ai.log import read_eval_log
for path in sys.argv[1:]:
    log = read_eval_log(path)
    events = [event.event for sample in log.samples for event in sample.events]
    scored = [sample for sample in log.samples if "verdict" in sample.scores]
    verdicts = {sample.id: sample.scores["verdict"].value for sample in scored}
    print(json.dumps({"task": log.eval.task, "status": log.status, "samples": len(log.samples),
                      "replies": events.count("model"), "verdicts": verdicts}))
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that has been exported to everything."""
    folder = tmp_path_factory.mktemp("export")
    assert call_cli(folder, "train", *SMALL, "--run", "r").returncode == 0
    formats = "inspect,trl,openai,csv,parquet,arrays,json,yaml"
    done = call_cli(folder, "export", "r", "--to", formats)
    assert done.returncode == 0, done.stderr
    files = {Path(line) for line in done.stdout.splitlines()}
    place = folder / "runs" / "r"
    assert files == {path for path in (place / "export").rglob("*") if path.is_file()}
    return place


def rows_of(columns: Columns) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def test_tables_have_the_rows_of_the_run(exported: Path) -> None:
    from pyarrow import parquet

    run = load_run(exported).unwrap()
    tables = {name: getattr(run, name)() for name in ("games", "rounds", "pairs", "metrics")}
    for name, columns in tables.items():
        with (exported / "export" / "csv" / f"{name}.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        table = parquet.read_table(exported / "export" / "parquet" / f"{name}.parquet")
        assert len(rows) == table.num_rows == len(next(iter(columns.values())))
        assert table.to_pydict() == columns
        assert list(rows[0]) == list(columns)


def test_trl_trains_on_the_rows(exported: Path) -> None:
    """Each file loads with as many rows as its jobs had, and `DPOTrainer` takes a step on them."""
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import DPOConfig, DPOTrainer

    run = load_run(exported).unwrap()
    for agent in ("prover", "verifier"):
        path = exported / "export" / "trl" / f"{agent}-preferences.jsonl"
        rows = load_dataset("json", data_files=str(path), split="train", cache_dir=exported / "c")
        trained = [row for one in run.stages("sample") for row in dict(one.rows)[agent]]
        assert len(rows) == len(trained) > 0
        assert [row["chosen"][0]["content"] for row in rows] == [row.replies[0] for row in trained]
    settings = {"max_steps": 1, "per_device_train_batch_size": 2, "report_to": "none"}
    trainer = DPOTrainer(
        AutoModelForCausalLM.from_pretrained(MODEL),
        args=DPOConfig(str(exported / "trl"), use_cpu=True, save_strategy="no", **settings),
        train_dataset=rows.select(range(2)),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
    )
    assert trainer.train().training_loss == pytest.approx(0.6931, abs=1e-3)  # ln 2, at the start


def test_openai_takes_the_rows(exported: Path) -> None:
    files = sorted((exported / "export" / "openai").iterdir())
    assert [path.name for path in files] == [
        f"{agent}-preferences-{iteration}.jsonl"
        for agent in ("prover", "verifier")
        for iteration in (0, 1)
    ]
    for line in files[0].read_text().splitlines():
        row = json.loads(line)
        assert set(row) == {"input", "preferred_output", "non_preferred_output"}
        assert row["preferred_output"] != row["non_preferred_output"]


FORMULAS = (
    *("=1+1", '=HYPERLINK("http://a.example";"b")', "+1+1", "-1+1", "@SUM(A1)", "\t=1+1", "\r=1+1"),
    *("  =1+1", "\n@A1", "\u00a0=1+1", "＝1+1"),
)
WORDS = ("yes", "a = b", "'", "1+1", "é", "")


def test_no_text_of_a_table_is_a_formula(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyarrow import csv as arrow

    texts = [*FORMULAS, *WORDS]
    columns: Columns = {"text": texts, "number": [-1.5] * len(texts), "none": [None] * len(texts)}
    monkeypatch.setattr(exports, "TABLES", {"games": lambda run: columns})
    (file,) = exports.to_csv(load_run(exported).unwrap(), tmp_path)
    with file.open(newline="") as opened:
        rows = list(csv.reader(opened))[1:]
    assert [row[0] for row in rows] == [*(f"'{text}" for text in FORMULAS), *WORDS]
    assert {tuple(row[1:]) for row in rows} == {("-1.5", "")}
    options = arrow.ParseOptions(newlines_in_values=True)
    read = arrow.read_csv(file, parse_options=options)
    assert read["text"].to_pylist() == [row[0] for row in rows]
    assert set(read["number"].to_pylist()) == {-1.5}


def test_arrays_load_without_pickle(exported: Path) -> None:
    run = load_run(exported).unwrap()
    with np.load(exported / "export" / "arrays" / "test-0.npz", allow_pickle=False) as arrays:
        wanted = run.to_arrays("test", 0)
        assert set(wanted) < set(arrays)
        for name, array in wanted.items():
            assert arrays[name].shape == array.shape
            if array.dtype != TEXT_DTYPE:
                np.testing.assert_array_equal(arrays[name], array)
        ends, spoken = arrays["text_ends"], arrays["raw_message"]
        texts = [bytes(text).decode() for text in np.split(arrays["text_bytes"], ends[:-1])]
    assert [texts[index] for index in spoken[spoken >= 0]] == [
        text for text in wanted["raw_message"].flat if text is not None
    ]


def test_an_inspect_log_holds_each_reply_once_and_branches_where_the_tree_does(
    exported: Path,
) -> None:
    run = load_run(exported).unwrap()
    for stage in run.stages():
        name = f"r_{stage.stage}-{stage.iteration}.eval"
        with zipfile.ZipFile(exported / "export" / "inspect" / name) as archive:
            header = json.loads(archive.read("header.json"))
            summaries = json.loads(archive.read("summaries.json"))
            samples = [
                json.loads(archive.read(f"samples/{one['id']}_epoch_{one['epoch']}.json"))
                for one in summaries
            ]
        assert len(samples) == len(stage.batch.trees)
        for tree, sample in zip(stage.batch.trees, samples, strict=True):
            events = [event["event"] for event in sample["events"]]
            replies = sum(map(len, tree.utterances_N))
            leaves = len(set(range(len(tree.parent_N))) - set(tree.parent_N.tolist()))
            assert (events.count("model"), events.count("branch")) == (replies, leaves - 1)
            assert events.count("span_begin") == events.count("span_end")
        if stage.stage == "test":
            shown = {s["name"]: s["metrics"] for s in header["results"]["scores"]}
            accuracy = dict(run.state.rows[0].metrics)["accuracy"]
            if stage.iteration == 0:
                assert shown["verdict"]["accuracy"]["value"] == pytest.approx(accuracy)
                n = len(samples)
                error = math.sqrt(accuracy * (1 - accuracy) / (n - 1))
                assert shown["verdict"]["stderr"]["value"] == pytest.approx(error)
        usage = header["stats"]["model_usage"].values()
        said = [said for tree in stage.batch.trees for turn in tree.utterances_N for said in turn]
        for name, field in (
            ("input_tokens", "prompt_tokens"),
            ("output_tokens", "completion_tokens"),
        ):
            total = sum(getattr(one, field) for one in said)
            assert sum(one[name] for one in usage) == total
            of_samples = [one for sample in samples for one in sample["model_usage"].values()]
            assert sum(one[name] for one in of_samples) == total


@pytest.mark.skipif(not INSPECT.exists(), reason="Inspect is not installed (make .venv-inspect)")
def test_the_real_inspect_reads_the_logs(exported: Path) -> None:
    logs = sorted((exported / "export" / "inspect").iterdir())
    read = subprocess.run(
        [INSPECT, "-c", READ, *logs], capture_output=True, text=True, check=True, cwd=exported
    )
    run = load_run(exported).unwrap()
    stages = {f"{one.stage}-{one.iteration}": one for one in run.stages()}
    for line in read.stdout.splitlines():
        found = json.loads(line)
        stage = stages[found["task"].rpartition("/")[2]]
        assert found["status"] == "success"
        assert found["samples"] == len(stage.batch.trees)
        assert found["replies"] == sum(len(u) for t in stage.batch.trees for u in t.utterances_N)
        if stage.stage == "test":
            letters = {None: "N", True: "C", False: "I"}
            games = rows_of(run.games())
            wanted = {
                game["datapoint"]: letters[game["correct"]]
                for game in games
                if (game["stage"], game["iteration"]) == ("test", stage.iteration)
            }
            assert found["verdicts"] == wanted


def test_a_format_that_is_none_is_refused(run_cli: RunCli) -> None:
    done = run_cli("export", "r", "--to", "trl,excel")
    assert (done.returncode, "'excel' is no format" in done.stderr) == (2, True)
    assert run_cli("export", "nothing", "--to", "trl").returncode == 3
