"""trl's own losses on a job's rows: an independent computation to compare ours with."""

from typing import Any

from nip_fn.training.losses import DPO, IPO, SFT
from nip_fn.training.tuning import Job
from nip_fn_adapters.providers.local.jobs import JobFiles
from nip_fn_adapters.providers.local.loading import LoadedJob
from nip_fn_adapters.providers.local.reference import reference_scores
from nip_fn_adapters.providers.local.steps import plain_scores

from ..lazily import datasets, trl

IGNORED = -100  # the label of a token that has no loss
OPTIONS: dict[str, Any] = {
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "report_to": "none",
    "save_strategy": "no",
    "disable_tqdm": True,
}


def trl_trainer(job: Job, files: JobFiles, loaded: LoadedJob) -> Any:
    """trl's trainer for a job whose loss it has: dpo, dpo with sft, ipo, sft."""
    options = {
        **OPTIONS,
        "output_dir": str(files.folder / "trl"),
        "max_length": loaded.encoded.max_length,
        "per_device_train_batch_size": job.batch_size,
    }
    return (
        _sft(loaded, options) if isinstance(job.loss, SFT) else _preferences(job, loaded, options)
    )


def _preferences(job: Job, loaded: LoadedJob, options: dict[str, Any]) -> Any:
    class TokensTrainer(trl.DPOTrainer):  # type: ignore[misc]
        def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
            return dataset  # tokens already

        def _precompute_ref_logps(self, dataset: Any, *args: Any) -> Any:
            scores = reference_scores(job, loaded, plain_scores)
            sums = [[float(reply.sum()) for reply in replies] for replies in scores]
            names = ("ref_chosen_logps", "ref_rejected_logps")
            for name, column in zip(names, zip(*sums, strict=True), strict=True):
                dataset = dataset.add_column(name, list(column))
            return dataset

    names = ("prompt_ids", "chosen_ids", "rejected_ids")
    rows = [
        dict(zip(names, (row.prompt, *row.replies), strict=True)) for row in loaded.encoded.rows
    ]
    losses: dict[str, Any] = {"loss_type": "sigmoid"}
    match job.loss:
        case IPO():
            losses = {"loss_type": "ipo"}
        case DPO(sft_weight=weight) if weight:
            losses = {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, weight]}
    assert isinstance(job.loss, DPO | IPO)
    return TokensTrainer(
        model=loaded.model,
        args=trl.DPOConfig(
            beta=job.loss.beta,
            disable_dropout=False,
            precompute_ref_log_probs=True,
            **losses,
            **options,
        ),
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=loaded.tokenizer,
    )


def _sft(loaded: LoadedJob, options: dict[str, Any]) -> Any:
    rows = [
        {
            "input_ids": row.prompt + row.replies[0],
            "labels": [IGNORED] * len(row.prompt) + row.replies[0],
        }
        for row in loaded.encoded.rows
    ]
    return trl.SFTTrainer(
        model=loaded.model,
        args=trl.SFTConfig(dataset_kwargs={"skip_prepare_dataset": True}, **options),
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=loaded.tokenizer,
    )
