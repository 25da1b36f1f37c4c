"""The door to a run: `load_run`, and what it gives."""

from collections import Counter
from pathlib import Path

import pytest
from returns.primitives.exceptions import UnwrapFailedError
from returns.result import Failure

from nip_fn.config.codec import from_dict
from nip_fn.game.decision import NO_DECISION
from nip_fn.run import checkpoint
from nip_fn.run.digest import digest
from nip_fn_adapters import Run, load_run
from nip_fn_adapters.recording.runs import begun
from nip_fn_adapters.recording.store import CHECKPOINT


@pytest.fixture(scope="module")
def run(recorded_run: Path) -> Run:
    return load_run(recorded_run).unwrap()


def test_a_run_is_found_by_its_folder_its_file_and_its_name(recorded_run: Path, run: Run) -> None:
    file, name = recorded_run / CHECKPOINT, recorded_run.name
    assert load_run(file).unwrap().digest == run.digest
    assert load_run(name, runs=recorded_run.parent).unwrap().digest == run.digest
    problem = load_run("another", runs=recorded_run.parent).failure()
    assert "no such run" in str(problem)
    assert name in str(problem)


def test_unwrapping_a_failure_shows_its_problem(recorded_run: Path) -> None:
    with pytest.raises(UnwrapFailedError, match=r"^another: there is no such run; the runs in "):
        load_run("another", runs=recorded_run.parent).unwrap()
    with pytest.raises(UnwrapFailedError, match=r"^seed: "):  # any result of ours
        from_dict({"seed": "many"}).unwrap()
    with pytest.raises(UnwrapFailedError, match=r"^$"):
        Failure("of another library").unwrap()


def test_a_run_that_was_stopped_at_once_has_all_columns(recorded_run: Path, tmp_path: Path) -> None:
    whole, recording = load_run(recorded_run).unwrap(), begun(recorded_run / CHECKPOINT).unwrap()
    (tmp_path / CHECKPOINT).write_bytes(checkpoint.write(recording.events[:1]))
    stopped = load_run(tmp_path).unwrap()
    for table in (Run.games, Run.rounds, Run.pairs, Run.metrics, Run.usage):
        assert table(stopped) == {name: [] for name in table(whole)}
        assert list(table(stopped)) == list(table(whole))


def test_a_damaged_file_is_a_problem_and_a_torn_one_is_a_shorter_run(
    recorded_run: Path, tmp_path: Path
) -> None:
    data = (recorded_run / CHECKPOINT).read_bytes()
    file = tmp_path / CHECKPOINT
    file.write_bytes(data[:-3])
    torn = load_run(file).unwrap()
    assert torn.recording.torn
    assert torn.replayed.num_events == len(torn.recording.events)
    file.write_bytes(data[:99] + bytes([data[99] ^ 1]) + data[100:])
    assert str(file) in str(load_run(file).failure())


def test_it_is_the_run_derived_again(run: Run) -> None:
    assert run.faults == ()
    assert run.digest == digest(run.state)
    assert run.params.rl.num_iterations == 2
    assert [(one.stage, one.iteration) for one in run.stages()] == [
        ("test", 0),
        ("sample", 0),
        ("sample", 1),
        ("test", 2),
    ]


def test_games_agree_with_transcripts_arrays_and_metrics(run: Run) -> None:
    games, transcripts = run.games(), run.transcripts()
    assert {len(column) for column in games.values()} == {len(transcripts)}
    assert games["end"] == [game["end"] for game in transcripts]
    assert games["datapoint"] == [game["datapoint"] for game in transcripts]
    arrays = run.to_arrays()
    ends = (arrays["done"] | arrays["terminated"]) & ~arrays["padding"]
    decided = arrays["decision"].min(axis=-1)[ends]
    assert [NO_DECISION if one is None else one for one in games["decision"]] == decided.tolist()
    metrics = run.metrics()
    for iteration in (0, 2):
        (at,) = [
            index
            for index, row in enumerate(
                zip(metrics["iteration"], metrics["stage"], metrics["name"], strict=True)
            )
            if row == (iteration, "test", "accuracy")
        ]
        tested = [
            correct is True
            for correct, stage, number in zip(
                games["correct"], games["stage"], games["iteration"], strict=True
            )
            if (stage, number) == ("test", iteration)
        ]
        assert sum(tested) / len(tested) == pytest.approx(metrics["value"][at])


def test_one_stage_can_be_looked_at_alone(run: Run) -> None:
    arrays = run.to_arrays("test", 2)
    assert len(arrays["y"]) == len(run.rollouts("test", 2)) == 4
    assert {game["iteration"] for game in run.transcripts(iteration=1)} == {1}


def test_wrong_verdicts_are_the_decided_games_that_are_not_correct(run: Run) -> None:
    wrong = run.wrong_verdicts(stage=None)
    assert len(wrong.games) == run.games()["correct"].count(False) > 0
    assert all(game.rollout.decision is not None and game.is_wrong for game in wrong.games)
    assert dict(wrong.datapoints) == Counter(game.rollout.datapoint.id for game in wrong.games)
    assert {game.stage.stage for game in run.wrong_verdicts().games} == {"test"}


def test_pairs_and_rounds_hold_the_words(run: Run) -> None:
    pairs, rounds = run.pairs(), run.rounds()
    assert len(pairs["agent"]) > 0
    assert all(
        more > less
        for more, less in zip(pairs["chosen_value"], pairs["rejected_value"], strict=True)
    )
    assert {*pairs["chosen"], *pairs["rejected"]} <= set(rounds["text"])
    assert len({len(column) for column in rounds.values()}) == 1


def test_usage_counts_every_stage_and_prices_none_of_the_dummy_s(run: Run) -> None:
    usage = run.usage()
    assert set(usage["name"]) == {"prover", "verifier"}
    assert sum(usage["completion_tokens"]) > 0
    assert sum(usage["trained_tokens"]) > 0
    assert set(usage["dollars"]) == {0.0}


def test_its_representations_are_short_and_escaped(run: Run) -> None:
    assert "nip, malt, small" in repr(run)
    assert len(repr(run)) < 300
    html = run._repr_html_()
    assert html.count("<table>") == 2
    strange = Run(Path("<b>/checkpoint.msgpack"), run.recording, run.replayed)
    assert "<b>" not in strange._repr_html_()
