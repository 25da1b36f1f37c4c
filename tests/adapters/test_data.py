"""Data sets from real files of every kind, through to the splits that a run draws from."""

import csv
import io
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from returns.result import Failure

from nip_fn.code.fingerprint import fingerprint
from nip_fn.code.programs import Tests
from nip_fn.code.solutions import ROW_COLUMNS, PlacedSolution, datapoint_of
from nip_fn.code.statistics import leaks
from nip_fn.game.datapoint import SPLITS, content_hash
from nip_fn_adapters.data import files
from nip_fn_adapters.data.building import LeftOut
from nip_fn_adapters.data.opening import Data, open_data

from ..lazily import datasets
from .datafiles import (
    DIFFICULTIES,
    LOADERS,
    OWN,
    Rows,
    apps_rows,
    buggy_rows,
    code,
    opened,
    own_rows,
    params_of,
    refused,
    shape,
    to_csv,
    to_jsonl,
    to_parquet,
    to_saved,
    to_saved_alone,
)

pytestmark = [pytest.mark.usefixtures("folder"), pytest.mark.xdist_group("data")]


def alone(dataset: object, split: str) -> dict[str, int]:
    """The sizes of the splits where only one is used."""
    info = opened(dataset, only_split=split).info
    return {name: info.size(name) for name in SPLITS if info.size(name)}


def test_all_rows_of_a_file_are_tested_where_nothing_is_trained(folder: Path) -> None:
    path = to_jsonl(folder / "a.jsonl", own_rows())
    whole = opened(path).info
    sizes = {split: whole.size(split) for split in SPLITS}
    assert alone(path, "all") == alone(path, "auto") == {"test": sum(sizes.values())}
    for split in SPLITS:
        assert alone(path, split) == {split: sizes[split]}
    assert alone(to_jsonl(folder / "one.jsonl", own_rows()[:1]), "auto") == {"test": 1}
    bad = refused(path, only_split="dev")
    assert "'dev'" in str(bad)
    assert "all, train, validation, test" in str(bad)


def test_a_saved_split_keeps_its_name_and_all_of_its_rows(folder: Path) -> None:
    rows = [{"question": f"q{n}", "solution": code(n, 0), "label": n % 2} for n in range(30)]
    both = to_saved(folder / "both", train=rows[:10], test=rows[10:])
    assert alone(both, "auto") == alone(both, "test") == {"test": 20}
    assert alone(both, "train") == {"train": 10}
    assert alone(both, "all") == {"test": 30}
    three = to_saved(folder / "three", train=rows[:9], validation=rows[9:15], challenge=rows[15:])
    assert alone(three, "auto") == {"test": 6}
    assert alone(three, "validation") == {"validation": 6}
    assert alone(three, "challenge") == {"test": 15}
    assert "all, train, validation, challenge" in str(refused(three, only_split="test"))
    # Also where something is to be trained: its own test is no training data.
    info = opened(to_saved(folder / "tests", test=rows)).info
    assert (info.train_size, info.validation_size, info.test_size) == (0, 0, 30)


def test_rows_that_name_their_split_are_tested_on_their_own_test(folder: Path) -> None:
    rows = [
        {"question": f"q{n}", "solution": code(n, 0), "label": 1, "split": SPLITS[n % 3]}
        for n in range(30)
    ]
    path = to_jsonl(folder / "a.jsonl", rows)
    assert alone(path, "auto") == {"test": 10}
    assert alone(path, "train") == {"train": 10}
    assert alone(path, "all") == {"test": 30}


@pytest.mark.parametrize("name", ["builtin:tea", "builtin:bug-hunt"])
def test_generated_data_come_split(name: str) -> None:
    assert alone(name, "auto") == {"test": 1000}
    assert alone(name, "train") == {"train": 2000}
    assert alone(name, "all") == {"test": 3500}


def test_the_builtin_problems_come_in_one_piece() -> None:
    assert alone("builtin:python", "auto") == {"test": 744}


@pytest.mark.parametrize("form", OWN)
def test_every_form_of_file_holds_the_same_solutions(folder: Path, form: str) -> None:
    rows = [{**row, "split": "train"} for row in own_rows(40)]  # so that none is left out
    expected = opened(to_jsonl(folder / "expected.jsonl", rows))
    found = opened(OWN[form](folder, rows))
    assert found.report.rows == len(rows)
    assert shape(found) == shape(expected)
    assert {laid.solution.tests for laid in found.solutions()} == {
        Tests(function="f", inputs=("[1]", "[2]"), outputs=("1", "2"))
    }


@pytest.mark.parametrize("form", ["jsonl", "parquet", "saved alone", "saved in splits"])
def test_columns_may_hold_tables_and_lists(folder: Path, form: str) -> None:
    tests = [
        {"fn_name": "f", "inputs": [[1]], "outputs": [2]},
        {"function": "f", "inputs": ["[1]"], "outputs": ["2"]},
    ]
    origin = {"made_by": "mutation", "passed": 3}
    for n, table in enumerate(tests):
        rows = [
            {"question": f"q{k}", "solution": code(k, 0), "label": k % 2, "tests": table}
            | ({"origin": origin} if k % 2 else {"origin": {"made_by": "author", "how": "é"}})
            for k in range(60)
        ]
        (folder / str(n)).mkdir()
        found = opened(OWN[form](folder / str(n), rows), skip_bad_rows=False)
        (read,) = {laid.solution.tests for laid in found.solutions()}
        assert read == Tests(function="f", inputs=("[1]",), outputs=("2",))
        made = {laid.solution.origin.made_by for laid in found.solutions() if laid.solution.origin}
        assert made == {"mutation", "author"}


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "validation_share": st.sampled_from([0.0, 0.1, 0.4]),
        "test_share": st.sampled_from([0.0, 0.1, 0.4]),
        "balance_classes": st.booleans(),
        "difficulty": st.sampled_from(DIFFICULTIES),
        "reduce_shuffle_seed": st.integers(0, 5),
        "max_train_size": st.integers(1, 50),
        "max_test_size": st.integers(1, 50),
        "skip_bad_rows": st.just(True),
        "apps_difficulty": st.sampled_from([*DIFFICULTIES, "all"]),
        "apps_solution_number": st.integers(0, 2),
        "apps_exclude_flagged": st.booleans(),
    },
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`made(loader)` is a data set for that loader, made once."""
    places: dict[str, Path] = {}

    def make(loader: str) -> Path:
        if loader not in places:
            places[loader] = LOADERS[loader](tmp_path_factory.mktemp("loader"))
        return places[loader]

    return make


def check_splits(laid: Iterable[PlacedSolution]) -> None:
    """Nothing is in two splits."""
    seen: dict[tuple[str, str], str] = {}
    for split, _, one in laid:
        question = " ".join(one.question.split())
        for what in (("p", one.problem_id), ("q", question), ("f", fingerprint(one.solution))):
            assert seen.setdefault(what, split) == split, what


def check_accounts(data: Data, laid: list[PlacedSolution]) -> None:
    """Every row that was read is in a split, or counted."""
    report = data.report
    left_out = sum(one.right + one.buggy for one in report.left_out)
    assert report.rows == len(laid) + report.bad + left_out
    assert len({one.id for one in laid}) == len(laid)


def check_drawing(data: Data, laid: list[PlacedSolution]) -> None:
    """Positions are 0, 1, ... and what is drawn is what is told of."""
    drawn = []
    for split in SPLITS:
        points = data.source(split, range(data.info.size(split)))
        assert [point.id for point in points] == [one.id for one in laid if one.split == split]
        drawn += points
    assert drawn == [datapoint_of(one.solution) for one in laid]
    assert data.info.hash == content_hash(drawn)


def check_balance(laid: Iterable[PlacedSolution]) -> None:
    """In every first part of a split, right and buggy ones are equal in number, or nearly."""
    for split in SPLITS:
        surplus = 0
        for one in laid:
            if one.split == split:
                surplus += 1 if one.solution.label else -1
                assert abs(surplus) <= 1
        assert surplus == 0


@pytest.mark.parametrize("loader", LOADERS)
@given(options=OPTIONS)
@settings(max_examples=settings().max_examples // 3)
def test_no_option_lets_splits_share_anything(
    loader: str, made: Callable[[str], Path], options: dict[str, Any]
) -> None:
    found = open_data(params_of(made(loader), **options))
    if isinstance(found, Failure):
        assert "none of its rows can be used" in str(found.failure())
        return
    data: Data = found.unwrap()
    laid = list(data.solutions())
    check_splits(laid)
    check_accounts(data, laid)
    check_drawing(data, laid)
    assert not list(leaks(laid))
    if options.get("balance_classes"):
        check_balance(laid)
    wanted = {options.get("difficulty")}
    if "apps" in loader:
        wanted |= {options.get("apps_difficulty", "all")} - {"all"}
    assert all(one.solution.difficulty in wanted for one in laid) or wanted == {None}


@pytest.mark.parametrize("options", [{}, {"balance_classes": True, "difficulty": "interview"}])
def test_the_builtin_problems_are_split_as_others_are(options: dict[str, Any]) -> None:
    data = opened("builtin:python", **options)
    laid = list(data.solutions())
    check_splits(laid)
    check_accounts(data, laid)
    check_drawing(data, laid)
    assert {one.split for one in laid} == set(SPLITS)
    assert all(one.solution.tests for one in laid)
    if options:
        check_balance(laid)


def test_a_limit_takes_as_many_of_each_label_as_long_as_both_last(folder: Path) -> None:
    rows = [{"question": f"q{n}", "solution": f"f({n})", "label": int(n < 10)} for n in range(40)]
    path = to_jsonl(folder / "own.jsonl", rows)
    for name in (str(path), f"{_module(folder, rows)}:POINTS"):
        data = opened(name, only_split="all")
        labels = [point.label for point in data.source("test", range(40))]
        assert labels == [0, 1] * 10 + [0] * 20


def _module(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """A file of Python that makes the rows' datapoints."""
    path = folder / "points.py"
    path.write_text(
        "from nip_fn import make_datapoint\n"
        f"POINTS = [make_datapoint(r['question'], **r) for r in {rows!r}]\n"
    )
    return path


PROSE = [
    {"question": f"Is {n} even?", "solution": "It is not, I fear.", "label": n % 2}
    for n in range(40)
]


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        (PROSE, "prose"),
        ([{**row, "solution": str(n)} for n, row in enumerate(PROSE)], "prose"),
        (own_rows(), "code"),
        ([*own_rows(10), *PROSE[:20]], "code"),  # half of them
        ([*[{**row, "tests": None} for row in own_rows(9)], *PROSE], "prose"),
    ],
)
def test_a_data_set_is_code_or_prose_as_a_whole(folder: Path, rows: Any, kind: str) -> None:
    path = to_jsonl(folder / "own.jsonl", rows)
    data = opened(path)
    assert data.report.kind == kind
    for split in SPLITS:
        points = data.source(split, range(data.info.size(split)))
        assert {point.kind for point in points} <= {kind}
    other = "code" if kind == "prose" else "prose"
    said = opened(path, kind=other)
    assert said.source("train", (0,))[0].kind == said.report.kind == other
    assert said.info.hash != data.info.hash  # a run is not resumed in other words


def test_equal_answers_to_two_questions_are_two_problems_in_prose(folder: Path) -> None:
    data = opened(to_jsonl(folder / "own.jsonl", PROSE))  # all have one answer
    assert min(data.info.train_size, data.info.validation_size, data.info.test_size) > 0
    assert not list(leaks(data.solutions()))


def test_datapoints_of_ones_own_are_taken_for_what_they_are(folder: Path) -> None:
    path = _module(folder, PROSE)
    assert opened(f"{path}:POINTS").report.kind == "prose"
    assert opened(f"{path}:POINTS", kind="code").source("train", (0,))[0].kind == "code"


@pytest.mark.parametrize("loader", LOADERS)
def test_a_data_set_has_more_than_one_split(loader: str, made: Callable[[str], Path]) -> None:
    assert len({one.split for one in opened(made(loader)).solutions()}) > 1


@given(order=st.permutations(range(40)), balance=st.booleans())
@settings(max_examples=20)
def test_the_order_of_rows_in_a_file_does_not_matter(order: list[int], balance: bool) -> None:
    rows = own_rows(20)[:40]
    one = opened(to_jsonl(Path("a.jsonl"), rows), balance_classes=balance)
    Path("a.jsonl").unlink()
    other = opened(to_jsonl(Path("a.jsonl"), [rows[n] for n in order]), balance_classes=balance)
    assert one.info == other.info


def test_a_split_is_in_an_order_of_its_own_for_each_seed(folder: Path) -> None:
    path = to_jsonl(folder / "a.jsonl", own_rows())
    one, other = (opened(path, reduce_shuffle_seed=seed) for seed in (1, 2))
    assert shape(one) == shape(other)
    for split in SPLITS:
        ours, theirs = (
            [point.id for point in data.source(split, range(data.info.size(split)))]
            for data in (one, other)
        )
        assert sorted(ours) == sorted(theirs)
        assert ours != theirs
    assert one.info.hash != other.info.hash


def test_a_size_limit_changes_nothing_but_how_far_a_run_reads(folder: Path) -> None:
    path = to_jsonl(folder / "a.jsonl", own_rows())
    assert opened(path, max_train_size=3, max_test_size=2).info == opened(path).info


def test_rows_may_say_which_split_they_are_of(folder: Path) -> None:
    rows = [
        {"question": f"q{n}", "solution": code(n, 0), "label": 1, "split": SPLITS[n % 3]}
        for n in range(30)
    ]
    data = opened(to_jsonl(folder / "a.jsonl", rows))
    assert {(one.split, one.solution.wanted) for one in data.solutions()} == {
        (split, split) for split in SPLITS
    }


def test_saved_splits_are_kept_and_what_crosses_them_is_left_out(folder: Path) -> None:
    rows = [
        {"question": f"q{n}", "solution": code(n, 0), "label": n % 2, "problem_id": n}
        for n in range(60)
    ]
    crossing = [
        {**rows[40], "solution": code(40, 7)},  # the problem of a test row
        {**rows[41], "problem_id": 700, "solution": code(700, 0)},  # its question
        {"question": "q702", "solution": code(42, 0, "x"), "label": 0},  # nearly its solution
    ]
    data = opened(to_saved(folder / "a", train=rows[:40] + crossing, test=rows[40:]))
    assert data.report.left_out == (LeftOut("crossing", right=1, buggy=2),)
    train = [one for one in data.solutions() if one.split == "train"]
    assert len(train) == 40
    held_out = {one.solution.question for one in data.solutions() if one.split != "train"}
    assert held_out == {f"q{n}" for n in range(40, 60)}
    assert data.info.validation_size > 0 < data.info.test_size  # both from "test"


def test_flagged_problems_are_in_only_if_wanted(folder: Path) -> None:
    path = to_saved_alone(folder / "a", buggy_rows(10, 40))
    without, all_of_them = (opened(path, apps_exclude_flagged=wanted) for wanted in (True, False))
    assert without.report.rows < all_of_them.report.rows
    flagged = {f"{row['apps_split']}/{row['apps_problem_id']}"
               for row in buggy_rows(10, 40) if row["flags"]}  # fmt: skip
    assert not flagged & {one.solution.problem_id for one in without.solutions()}


def test_windows_line_ends_are_gone_and_prose_is_kept(folder: Path) -> None:
    for path in (
        to_saved_alone(folder / "a", buggy_rows()),
        to_jsonl(folder / "b.jsonl", apps_rows()),
    ):
        laid = list(opened(path).solutions())
        assert laid
        for one in laid:
            assert "\r" not in one.solution.question + one.solution.solution
            assert "Größe" in one.solution.question
            assert "日本" in one.solution.question


def hub(tables: Mapping[str, Rows], calls: list[Any]) -> Callable[..., Any]:
    """A `datasets.load_dataset` that reaches a hub with these tables."""

    def load(name: str, **options: Any) -> Any:
        calls.append((name, options))
        return datasets.DatasetDict(
            {split: datasets.Dataset.from_list(list(rows)) for split, rows in tables.items()}
        )

    return load


def test_buggy_apps_comes_from_the_hub(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    tables, calls = {"train": buggy_rows(0, 20), "test": buggy_rows(20, 40)}, list[Any]()
    monkeypatch.setattr("datasets.load_dataset", hub(tables, calls))
    found = opened("hf:lrhammond/buggy-apps")
    assert calls == [("lrhammond/buggy-apps", {})]
    assert shape(found) == shape(opened(to_saved(folder / "saved", **tables)))
    assert found.info.name == "hf:lrhammond/buggy-apps"


def test_tables_without_rows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.load_dataset", hub({"train": [], "test": []}, []))
    assert "holds no rows" in refused("hf:nobody/nothing")


def test_a_data_set_that_a_script_made_is_read_as_the_hub_converted_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = list[Any]()
    converted = hub({"train": apps_rows()}, calls)

    def load(name: str, **options: Any) -> Any:
        if not options:
            raise RuntimeError("Dataset scripts are no longer supported, but found apps.py")
        return converted(name, **options)

    monkeypatch.setattr("datasets.load_dataset", load)
    assert opened("hf:codeparrot/apps").report.rows > 0
    assert calls == [("codeparrot/apps", {"revision": "refs/convert/parquet"})]


@pytest.mark.parametrize(
    "error", [ConnectionError("Couldn't reach\nthe hub"), RuntimeError("else"), KeyError("x")]
)
def test_without_the_hub_one_line_says_how_to_do_without(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def load(name: str, **options: Any) -> Any:
        raise error

    monkeypatch.setattr("datasets.load_dataset", load)
    line = refused("hf:lrhammond/buggy-apps")
    assert type(error).__name__ in line
    assert "hf download --repo-type dataset lrhammond/buggy-apps --local-dir" in line


def test_without_the_library_one_line_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    path = to_parquet(folder / "a.parquet", own_rows())
    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for name in ("hf:codeparrot/apps", str(folder), str(path)):
        assert "pip install 'nip-fn[data]'" in refused(name)


def test_a_clone_of_apps_is_read_beside_the_script_that_made_it(folder: Path) -> None:
    to_jsonl(folder / "apps/train.jsonl", apps_rows(0, 20))
    to_jsonl(folder / "apps/test.jsonl", apps_rows(20, 40))
    (folder / "apps/apps.py").write_text("import datasets\n")
    (folder / "apps/README.md").write_text("---\nlicense: mit\n---\n# APPS\n")
    found = opened(folder / "apps")
    assert {one.solution.problem_id.split("/")[0] for one in found.solutions()} == {"train", "test"}
    saved = to_saved(folder / "saved", train=apps_rows(0, 20), test=apps_rows(20, 40))
    assert shape(found) == shape(opened(saved))


def test_csv_rows_are_those_of_the_csv_module(folder: Path) -> None:
    path = to_csv(folder / "a.csv", own_rows())
    expected = list(csv.DictReader(io.StringIO(path.read_text("utf-8"), newline="")))
    assert [row.unwrap() for _, row in files.csv_rows(path)] == expected


def test_columns_that_nothing_is_read_from_are_told(folder: Path) -> None:
    rows = [{**row, "author": "me", "größe": 1} for row in own_rows()]
    for form, make in OWN.items():
        (folder / form).mkdir()
        assert opened(make(folder / form, rows)).report.unused == ("author", "größe"), form
    assert set(own_rows()[0]) <= set(ROW_COLUMNS)
