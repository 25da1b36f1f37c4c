"""Sampling of next tokens, from a model's logits and a uniform number for each reply.

Letters of shapes: P chats, K replies to each, N tokens so far, V vocabulary.
"""

from typing import Any


def penalise(logits: Any, context: Any, penalty: Any) -> Any:
    """The logits `[P, K, V]`, less likely for each token that occurs in `context` `[P, K, N]`.

    There, once however often it occurs: logit / penalty if the logit is positive, logit · penalty
    if it is negative (Keskar et al. 2019, "CTRL", section 4.1, as vLLM and transformers do it for
    negative logits).  `penalty` is `[P, 1, 1]`; 1 leaves every bit as it is.
    """
    import torch

    scores = logits.gather(-1, context)
    return logits.scatter(-1, context, torch.where(scores < 0, scores * penalty, scores / penalty))


def nucleus(probabilities: Any, top_p: Any) -> Any:
    """The probabilities `[..., V]`, 0 outside the nucleus; what is left is not scaled up to 1.

    The nucleus is the smallest set of likeliest tokens whose total probability is at least `top_p`,
    a number above 0 for each `[..., 1]` (Holtzman et al. 2020, "The Curious Case of Neural Text
    Degeneration").  It has a token at least; of equally likely ones, that with the lower number.
    """
    import torch

    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    likelier = ordered.cumsum(-1, dtype=torch.float64) - ordered
    return probabilities.scatter(-1, order, ordered.masked_fill(likelier >= top_p, 0.0))


def next_probabilities(logits: Any, temperature: Any, top_p: Any) -> Any:
    """The probabilities `[P, K, V]` by which the next tokens are drawn, up to a common factor.

    `logits` is `[P, K, V]`, `temperature` and `top_p` are `[P, 1, 1]`.  If `top_p` is None or 1, no
    token is left out; if the temperature is 0, it is the likeliest token.
    """
    import torch

    greedy = temperature == 0
    probabilities = (logits.float() / torch.where(greedy, 1.0, temperature)).softmax(-1)
    if top_p is not None:
        asks = (top_p < 1)[:, 0, 0]
        probabilities[asks] = nucleus(probabilities[asks], top_p[asks])
    if bool(greedy.any()):
        likeliest = logits.argmax(-1, keepdim=True)
        certain = torch.zeros_like(probabilities).scatter(-1, likeliest, 1.0)
        return torch.where(greedy, certain, probabilities)
    return probabilities


def choose(probabilities: Any, uniforms: Any) -> Any:
    """The next tokens `[P, K]`: for `uniforms` u the first whose cumulative probability exceeds u.

    `probabilities` is `[P, K, V]`; they need not add up to 1.
    """
    import torch

    # In float64: in float32, the small probabilities of a large vocabulary are lost in the sum.
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    # Scaled to what is there: neither a nucleus nor rounded probabilities sum to 1.
    target = uniforms[..., None] * cumulative[..., -1:]
    tokens = torch.searchsorted(cumulative, target, right=True)[..., 0]
    # A number close to 1 may be rounded up to the total, and then lies past the last token.
    return tokens.clamp_(max=probabilities.shape[-1] - 1)


def log_probabilities(logits: Any, tokens: Any) -> Any:
    """The log-probabilities `[P, K]` of the tokens `[P, K]`, in nats, at temperature 1.

    `logits` is `[P, K, V]`; in float32.
    """
    logits = logits.float()
    return logits.gather(-1, tokens[..., None])[..., 0] - logits.logsumexp(-1)
