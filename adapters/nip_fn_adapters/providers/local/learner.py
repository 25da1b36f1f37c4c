"""A model that samples and learns in this process, for scripts: no run, no file, no server."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model

from nip_fn.game.reply import Completion
from nip_fn.game.tokens import SampledTokens
from nip_fn.keys import Key, permutation
from nip_fn.training.losses import Loss, LossFunction
from nip_fn.training.trainer import ChatAt, Rows
from nip_fn.trees.grow import Query
from nip_fn_adapters.providers.local.decode import DecodeRequest, Timings, decode
from nip_fn_adapters.providers.local.models import encode_chat
from nip_fn_adapters.providers.local.packed import forests, score, token_scores
from nip_fn_adapters.providers.local.policy import LoadedPolicy, load_policy
from nip_fn_adapters.providers.local.rows import encode_rows
from nip_fn_adapters.providers.local.steps import Batch

MOST_CHATS = 96  # that are decoded together


def sample(
    policy: LoadedPolicy,
    queries: Sequence[Query],
    chat: ChatAt,
    *,
    max_tokens: int,
    temperature: float = 1.0,
    name: str = "",
) -> list[list[Completion]]:
    """A reply of the model for each key of each query.

    Args:
        policy: The model, as `load_policy` returns it.
        queries: Positions in games.
        chat: The chat that the model replies to there.
        max_tokens: The length of the longest reply.
        temperature: 0 for the likeliest token.
        name: The name of the model, which the replies bear.
    """
    requests = [
        DecodeRequest(
            encode_chat(policy.tokenizer, chat(q.datapoint, q.episode, q.agent)),
            *(q.keys, temperature, max_tokens),
        )
        for q in queries
    ]
    batches = (requests[n : n + MOST_CHATS] for n in range(0, len(requests), MOST_CHATS))
    return [
        [
            Completion(
                policy.tokenizer.decode(reply.tokens, skip_special_tokens=True).strip(),
                "stop" if reply.ended else "length",
                model=name,
                tokens=SampledTokens.of(reply.tokens, reply.log_probabilities),
            )
            for reply in replies
        ]
        for batch in batches
        for replies in decode(policy, batch, Timings())
    ]


class Learner:
    """A language model with a LoRA of its own, and an optimiser (Adam).  Mutable: it learns."""

    def __init__(self, model: str, *, rank: int = 16, learning_rate: float = 1e-3) -> None:
        """Load a model: `builtin:NAME`, a folder, or one of the hub.

        Raises:
            UnwrapFailedError: There is no such model.
        """
        self.name, policy = model, load_policy(model, Path(), None).unwrap()
        lora = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear")
        self.policy = policy._replace(model=get_peft_model(policy.model, lora))
        self._weights = [w for w in self.policy.model.parameters() if w.requires_grad]
        self.optimizer = torch.optim.Adam(self._weights, learning_rate)

    def replies(
        self, queries: Sequence[Query], chat: ChatAt, *, max_tokens: int, temperature: float = 1.0
    ) -> list[list[Completion]]:
        """A reply for each key of each query: a `BatchSampler`, once chat and limits are given."""
        self.policy.model.eval()
        return sample(
            self.policy,
            queries,
            chat,
            max_tokens=max_tokens,
            temperature=temperature,
            name=self.name,
        )

    def learn(self, rows: Rows, loss: Loss | LossFunction, key: Key, *, batch_size: int) -> None:
        """Take a step for each batch of rows; the reference policy is the model without its LoRA.

        Args:
            rows: What to learn from.
            loss: What to minimise.
            key: Of the order of the rows; consumed.
            batch_size: Rows of a step.
        """
        model, encoded = self.policy.model, encode_rows(self.policy.tokenizer, rows, None)
        reference = None
        if getattr(loss, "reads_reference", True):
            with model.disable_adapter():
                reference = token_scores(model, encoded.rows)
        model.train()
        order = permutation(key, len(encoded.rows))
        for start in range(0, len(order), batch_size):
            batch = Batch.of(encoded, reference, order[start : start + batch_size])
            for packed in forests(model, batch.rows):
                tokens = score(model, packed)
                share: Any = loss(batch.scores(packed.rows, tokens.log_probabilities))
                share.backward()
            torch.nn.utils.clip_grad_norm_(self._weights, 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
