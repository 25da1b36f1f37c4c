"""Supervised fine-tuning, by trl: the loss is that of the reply's tokens, its end included.

As in DPO, the tokens are those that the sampler reads and draws, and trl prepares none of them.
"""

from typing import Any

from nip_fn.training.tuning import Job
from nip_fn_adapters.providers.local.rows import Encoded
from nip_fn_adapters.providers.local.steps import row_sampler

IGNORED = -100  # the label of a token that has no loss


def sft_trainer(
    job: Job, policy: Any, tokenizer: Any, encoded: Encoded, options: dict[str, Any]
) -> Any:
    """trl's trainer for a job with supervised rows: the mean loss over a batch's reply tokens."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    class OrderedTrainer(SFTTrainer):  # type: ignore[misc]
        def _get_train_sampler(self, *args: Any) -> Any:
            return row_sampler(job, encoded)

    rows = [
        {
            "input_ids": row.prompt + row.replies[0],
            "labels": [IGNORED] * len(row.prompt) + row.replies[0],
        }
        for row in encoded.rows
    ]
    return OrderedTrainer(
        model=policy,
        args=SFTConfig(
            max_length=encoded.max_length,
            dataset_kwargs={"skip_prepare_dataset": True},  # tokens and labels already
            **options,
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
    )
