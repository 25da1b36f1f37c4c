"""Direct preference optimisation (Rafailov et al. 2023, arXiv:2305.18290), by trl.

Two things are not left to trl:

- The reference policy is the one that the job names, scored once before the training.  By itself
  trl would take the base model for an adapter that it makes, a copy of the adapter for one it is
  given.
- The tokens are those that the sampler reads and draws.  By itself trl would tokenize whole chats,
  and train on whatever the chat template writes after the end token (often a line end).
"""

from typing import Any

from nip_fn.training.tuning import Job
from nip_fn_adapters.providers.local.loading import LoadedJob
from nip_fn_adapters.providers.local.models import is_sharded
from nip_fn_adapters.providers.local.reference import reference_scores
from nip_fn_adapters.providers.local.steps import plain_scores, row_sampler
from nip_fn_adapters.providers.local.weights import load_reference


def dpo_trainer(job: Job, loaded: LoadedJob, options: dict[str, Any]) -> Any:
    """trl's trainer for a job with preference rows.

    With `job.sft_weight` the loss is that of DPO plus so many times the mean negative
    log-probability of a token of the batch's chosen replies: in one training what MALT (Motwani et
    al. 2024) does in two, supervised fine-tuning on the good replies and then DPO.
    """
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    folders, encoded = loaded.folders, loaded.encoded

    class TokensTrainer(DPOTrainer):  # type: ignore[misc]
        def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
            return dataset  # tokens already

        def _get_train_sampler(self, *args: Any) -> Any:
            return row_sampler(job, encoded)

        def _precompute_ref_logps(self, dataset: Any, *args: Any) -> Any:
            with self.accelerator.autocast():  # as in training: equal weights give equal scores
                self.reference = reference_scores(job, loaded, plain_scores)
            sums = [[float(reply.sum()) for reply in replies] for replies in self.reference]
            names = ("ref_chosen_logps", "ref_rejected_logps")
            for name, column in zip(names, zip(*sums, strict=True), strict=True):
                dataset = dataset.add_column(name, list(column))
            return dataset

    rows = [
        dict(
            zip(
                ("prompt_ids", "chosen_ids", "rejected_ids"),
                (row.prompt, *row.replies),
                strict=True,
            )
        )
        for row in encoded.rows
    ]
    # A model in parts computes only within its training, and so needs a reference in parts, too.
    reference = load_reference(folders.base, folders.reference) if is_sharded() else None
    return TokensTrainer(
        model=loaded.model,
        ref_model=reference,
        # trl would turn off the LoRA's dropout, too, which is the job's own.
        args=DPOConfig(
            beta=job.beta,
            max_length=encoded.max_length,
            disable_dropout=False,
            precompute_ref_log_probs=reference is None,
            **_losses(job),
            **options,
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=loaded.tokenizer,
    )


def _losses(job: Job) -> dict[str, Any]:
    if not job.sft_weight:
        return {}
    return {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, job.sft_weight]}
