"""Direct preference optimisation (Rafailov et al. 2023, arXiv:2305.18290), by trl.

Two things are not left to trl:

- The reference policy is the one that the job names, as a frozen model of its own.  By itself trl
  would take the base model for an adapter that it makes, a copy of the adapter for one it is given.
- The tokens are those that the sampler reads and draws.  By itself trl would tokenize whole chats,
  and train on whatever the chat template writes after the end token (often a line end).
"""

from typing import Any

from nip_fn.training.jobs import Job
from nip_fn_adapters.local.models import token_log_probabilities
from nip_fn_adapters.local.rows import Encoded

KL_ROWS = 64  # the KL is estimated from at most this many rows: each costs two forward passes


def dpo_trainer(
    job: Job,
    policy: Any,
    reference: Any,
    tokenizer: Any,
    encoded: Encoded,
    options: dict[str, Any],
) -> Any:
    """trl's trainer for a job with preference rows.

    With `job.sft_weight` the loss is that of DPO plus so many times the mean negative
    log-probability of a token of the batch's chosen replies: in one training what MALT (Motwani et
    al. 2024) does in two, supervised fine-tuning on the good replies and then DPO.
    """
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    class TokensTrainer(DPOTrainer):  # type: ignore[misc]
        def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
            return dataset  # tokens already

    return TokensTrainer(
        model=policy,
        ref_model=reference,
        # trl would turn off the LoRA's dropout, too, which is the job's own.
        args=DPOConfig(
            beta=job.beta,
            max_length=encoded.max_length,
            disable_dropout=False,
            **_losses(job),
            **options,
        ),
        train_dataset=Dataset.from_list(encoded.rows),
        processing_class=tokenizer,
    )


def _losses(job: Job) -> dict[str, Any]:
    if not job.sft_weight:
        return {}
    return {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, job.sft_weight]}


def kl_per_reply(policy: Any, reference: Any, rows: list[dict[str, list[int]]]) -> float:
    """An estimate of KL(policy ‖ reference) per reply, in nats, on the chosen replies.

    The k3 estimator of Schulman (2020, "Approximating KL divergence"), r − 1 − ln r with
    r = reference / policy, for each token of a reply; their sum over it; the mean over the rows.
    It is never negative.  The replies are the data's, not the policy's own, so it is biased to the
    extent that the policy would reply otherwise.
    """
    # Evenly spaced: the rows of one tree stand together, and resemble one another.
    some = rows[:: -(-len(rows) // KL_ROWS)]
    total = 0.0
    for row in some:
        prompt, reply = row["prompt_ids"], row["chosen_ids"]
        named = token_log_probabilities(reference, prompt, reply)
        log_ratio = named - token_log_probabilities(policy, prompt, reply)
        total += float((log_ratio.expm1() - log_ratio).sum())
    return total / len(some)
