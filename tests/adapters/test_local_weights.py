"""The adapters of trainings: LoRAs trained further, LoRAs stacked, and whole models."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from nip_fn.run.ports import Tuned
from nip_fn.training.losses import SFT
from nip_fn.training.tuning import Job
from nip_fn_adapters.providers.local.jobs import JobFiles
from nip_fn_adapters.providers.local.models import load_adapter, load_base, load_model
from nip_fn_adapters.providers.local.policy import load_policy, probe_scores
from nip_fn_adapters.providers.local.weights import CONFIG, WEIGHTS, add_below

from ..lazily import safetensors, torch
from .forked import in_forked_process
from .tiny_llama import make_tiny_llama
from .training import make_job, make_trainer, supervised_rows, tune

# One worker: these share a server that trainings are forked from, and trl's imports.
pytestmark = pytest.mark.xdist_group("trainings")


def scores_of(run: Path, job: Job, adapters: list[str]) -> dict[str, tuple[float, ...]]:
    """The log-probabilities of the job's probes under each adapter, as a sampler loads it."""
    scores = {}
    for name in adapters:
        policy = load_policy(job.model, run / "adapters", name).unwrap()
        scores[name] = probe_scores(policy, job.probes)
    return scores


class Lineage(NamedTuple):
    """A run whose trainings build on one another; all score the same probes."""

    run: Path
    job: Job  # the first
    done: dict[str, Tuned]  # by the training's name
    fresh: dict[str, list[float]]  # what a fresh process says of the probes, by adapter

    def folder(self, name: str) -> Path:
        """The folder of a training's adapter."""
        return self.run / "adapters" / str(self.done[name].adapter)

    def config(self, name: str) -> dict[str, Any]:
        """The configuration of its LoRA."""
        found: dict[str, Any] = json.loads((self.folder(name) / CONFIG).read_text("utf-8"))
        return found


# Each training, what it starts from, and how it differs from the first.
PLAN: dict[str, tuple[str | None, dict[str, Any]]] = {
    "first": (None, {}),
    "further": ("first", {"reference": "first"}),
    "on_top": ("first", {"stack": True, "lora_rank": 3, "lora_alpha": 5}),
    "whole": ("first", {"use_lora": False, "learning_rate": 1e-3}),
    "on_top_twice": ("on_top", {"stack": True, "lora_rank": 2, "lora_alpha": 4}),
    "on_top_further": ("on_top", {"reference": "on_top"}),
    "whole_further": ("whole", {"use_lora": False, "learning_rate": 1e-3, "reference": "whole"}),
    "on_whole": ("whole", {}),
    "scratch": (None, {}),
}
BEGUN = (("first",), ("further", "on_top"), ("whole", "scratch"))
WAVES = (*BEGUN, ("on_top_twice", "on_top_further"), ("whole_further", "on_whole"))


@pytest.fixture(scope="module")
def lineage(tmp_path_factory: pytest.TempPathFactory) -> Lineage:
    """All trainings of the plan, and then a fresh process."""
    run = tmp_path_factory.mktemp("run")
    first = replace(make_job(make_tiny_llama(run / "model")), num_epochs=1)
    done: dict[str, Tuned] = {}
    for wave in WAVES:
        jobs = []
        for name in wave:
            start, changes = PLAN[name]
            changes = {**changes, "start": done[start].adapter if start else None}
            if "reference" in changes:
                changes["reference"] = done[changes["reference"]].adapter
            jobs.append(replace(first, name=f"verifier-{list(PLAN).index(name)}", **changes))
        for name, answer in zip(wave, tune(run, *jobs), strict=True):
            done[name] = answer.unwrap()
    names = [str(tuned.adapter) for tuned in done.values()]
    fresh = in_forked_process(scores_of, run, first, names)
    return Lineage(run, first, done, fresh)


@pytest.mark.parametrize("name", PLAN)
def test_a_fresh_process_loads_what_was_there_at_the_end_of_training(
    lineage: Lineage, name: str
) -> None:
    tuned = lineage.done[name]
    assert tuned.problem == ""
    after = [score.after for score in tuned.scores]
    assert lineage.fresh[str(tuned.adapter)] == pytest.approx(after, abs=1e-4, rel=0)


@pytest.mark.parametrize("name", [name for name, (start, _) in PLAN.items() if start])
def test_a_training_goes_on_from_all_that_came_before(lineage: Lineage, name: str) -> None:
    """It begins where the one before it ended, and does not end there."""
    start = str(PLAN[name][0])
    before = [score.before for score in lineage.done[name].scores]
    assert before == pytest.approx(lineage.fresh[str(lineage.done[start].adapter)], abs=1e-4, rel=0)
    moved = [abs(score.after - score.before) for score in lineage.done[name].scores]
    assert sum(moved) / len(moved) > 0.01


def test_training_from_scratch_knows_nothing_of_what_came_before(lineage: Lineage) -> None:
    first, scratch = lineage.done["first"], lineage.done["scratch"]
    assert str(scratch.adapter)[-8:] == str(first.adapter)[-8:]
    assert scratch.scores == first.scores


def test_a_stacked_adapter_is_one_lora_that_holds_the_earlier_one(
    lineage: Lineage,
) -> None:
    config, below = (
        lineage.config("on_top"),
        safetensors.load_file(lineage.folder("first") / WEIGHTS),
    )
    assert (config["r"], config["lora_alpha"]) == (4 + 3, 4 + 3)
    assert lineage.config("on_top_twice")["r"] == 4 + 3 + 2
    assert lineage.config("on_top_further")["r"] == 4 + 3
    for name, weight in safetensors.load_file(lineage.folder("on_top") / WEIGHTS).items():
        if "lora_A" in name:
            assert torch.equal(weight[:4], below[name])
        else:
            assert torch.equal(weight[:, :4], below[name] * (8 / 4))
    assert "model" not in {file.stem for file in lineage.folder("on_top").iterdir()}


def test_a_sum_of_two_loras_may_be_of_different_layers_and_scales(
    lineage: Lineage, tmp_path: Path
) -> None:
    """Its product in each layer is the sum of theirs, and nothing where there is none."""
    for number, (target, rank, config) in enumerate(
        [("q_proj", 2, {"use_rslora": True}), ("v_proj", 3, {})]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        whole = {**lineage.config("first"), "r": rank, "lora_alpha": 5, "target_modules": [target]}
        (folder / CONFIG).write_text(json.dumps({**whole, **config}), "utf-8")
        weights = safetensors.load_file(lineage.folder("first") / WEIGHTS)
        cut = {
            name: (weight[:rank] if "lora_A" in name else weight[:, :rank]).contiguous()
            for name, weight in weights.items()
            if target in name
        }
        safetensors.save_file(cut, folder / WEIGHTS, metadata={"format": "pt"})
    base = Path(lineage.job.model)
    expected = load_adapter(load_model(base, tmp_path / "0"), tmp_path / "1").merge_and_unload()
    add_below(tmp_path / "1", tmp_path / "0")
    summed = load_model(base, tmp_path / "1").state_dict()
    for name, weight in expected.state_dict().items():
        torch.testing.assert_close(summed[name], weight, atol=1e-6, rtol=1e-6)
    assert any(not torch.equal(summed[n], w) for n, w in load_base(base).state_dict().items())


def test_only_the_new_lora_of_a_stack_is_trained(lineage: Lineage) -> None:
    job = replace(lineage.job, start=lineage.done["first"].adapter, stack=True, lora_rank=3)
    trainer, _ = make_trainer(job, JobFiles(lineage.run, "verifier-20"))
    trained = {name: w for name, w in trainer.model.named_parameters() if w.requires_grad}
    assert all("lora_" in name for name in trained)
    assert {min(weight.shape) for weight in trained.values()} == {3}


def test_an_adapter_trained_further_has_the_dropout_of_its_new_job(
    lineage: Lineage,
) -> None:
    job = replace(lineage.job, start=lineage.done["first"].adapter, lora_dropout=0.5)
    trainer, _ = make_trainer(job, JobFiles(lineage.run, "verifier-24"))
    assert {getattr(module, "p", None) for module in trainer.model.modules()} - {None} == {0.5}


def test_all_weights_are_trained_without_a_lora(lineage: Lineage) -> None:
    """Also those of a model that an adapter was merged into, and into a model of its own."""
    for start in ("first", "whole"):
        job = replace(lineage.job, start=lineage.done[start].adapter, use_lora=False)
        trainer, _ = make_trainer(job, JobFiles(lineage.run, "verifier-21"))
        assert all(weight.requires_grad for weight in trainer.model.parameters())
    changed, base = (
        load_model(Path(lineage.job.model), folder).state_dict()
        for folder in (lineage.folder("whole"), lineage.folder("first"))
    )
    assert changed.keys() == base.keys()
    assert not any(torch.equal(changed[name], weight) for name, weight in base.items())


def test_a_whole_model_is_a_folder_of_weights_and_configuration_alone(lineage: Lineage) -> None:
    for name in ("whole", "whole_further", "on_whole"):
        files = {file.name: file for file in lineage.folder(name).iterdir()}
        assert set(files) == {"config.json", "generation_config.json", "model.safetensors"}
        base = Path(lineage.job.model) / "generation_config.json"
        assert files["generation_config.json"].read_bytes() == base.read_bytes()
        config = json.loads(files["config.json"].read_text("utf-8"))
        assert str(lineage.run) not in json.dumps({**config, "_name_or_path": ""})


def test_a_stack_on_no_plain_lora_is_a_failure_before_any_training(
    lineage: Lineage,
) -> None:
    folder = lineage.run / "adapters" / "verifier-x"
    folder.mkdir()
    (folder / CONFIG).write_text(json.dumps({**lineage.config("first"), "use_dora": True}), "utf-8")
    job = replace(lineage.job, name="verifier-22", start="verifier-x", stack=True)
    (answer,) = tune(lineage.run, job)
    assert "verifier-x" in str(answer.failure())
    assert "use_dora" in str(answer.failure())


def test_a_whole_model_is_fine_tuned_by_supervision_too(lineage: Lineage) -> None:
    job = replace(
        lineage.job,
        name="verifier-23",
        rows=supervised_rows(16),
        loss=SFT(),
        use_lora=False,
        learning_rate=1e-3,
        start=lineage.done["whole"].adapter,
    )
    (answer,) = tune(lineage.run, job)
    assert sum(score.after - score.before for score in answer.unwrap().scores) > 0
