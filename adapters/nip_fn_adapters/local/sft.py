"""Supervised fine-tuning, by trl: the loss is that of the reply's tokens, its end included.

As in DPO, the tokens are those that the sampler reads and draws, and trl prepares none of them.
"""

from typing import Any

from nip_fn_adapters.local.rows import Encoded


def sft_trainer(policy: Any, tokenizer: Any, encoded: Encoded, options: dict[str, Any]) -> Any:
    """trl's trainer for a job with supervised rows: the mean loss over a batch's reply tokens."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    return SFTTrainer(
        model=policy,
        args=SFTConfig(
            max_length=encoded.max_length,
            dataset_kwargs={"skip_prepare_dataset": True},  # tokens and labels already
            **options,
        ),
        train_dataset=Dataset.from_list(encoded.rows),
        processing_class=tokenizer,
    )
