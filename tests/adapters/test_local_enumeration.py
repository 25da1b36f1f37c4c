"""Enumeration of a local model's replies: the probabilities that its sampler draws with."""

import asyncio
from collections import Counter
from math import fsum
from pathlib import Path

import pytest

from nip_fn.config.codec import from_dict
from nip_fn.game.episode import reset
from nip_fn.keys import fold_in, key
from nip_fn.params.run import HyperParameters
from nip_fn.prompts.chat import build_chat
from nip_fn.protocols.nip import VERIFIER
from nip_fn.protocols.registry import protocol_of
from nip_fn.run.request import Request
from nip_fn.worlds import tea
from nip_fn_adapters.providers.local.decode import DecodeRequest
from nip_fn_adapters.providers.local.enumeration import enumerate_replies, local_enumerator
from nip_fn_adapters.providers.local.models import encode_chat
from nip_fn_adapters.providers.local.policy import LoadedPolicy, load_policy
from nip_fn_adapters.providers.local.sampler import local_sampler

from ..lazily import torch

MODEL = "builtin:tea"


@pytest.fixture(scope="module")
def policy() -> LoadedPolicy:
    """The model that is shipped for the lady's tea."""
    return load_policy(MODEL, Path("nowhere"), None).unwrap()


def request(number: int = 1, *, temperature: float = 1.0, top_p: float = 1.0) -> Request:
    """The request for a verifier's first words, with so many keys."""
    table = {
        "dataset": "builtin:tea",
        "code_validation": {"system_prompt_version": "views"},
        "nip_protocol": {"max_message_rounds": 3},
        "agents": {"_default": {"model_name": MODEL, "model_provider": "local",
                                "use_supervisor_message": "first"}},
    }  # fmt: skip
    params: HyperParameters = from_dict(table).unwrap()
    protocol = protocol_of(params)
    point = tea.make_dataset(key(0), num_train=1, num_validation=0, num_test=0).train[0]
    return Request(
        model=MODEL,
        adapter=None,
        chat=build_chat(params, protocol, point, reset(point, key(1)), VERIFIER),
        keys=tuple(fold_in(key(2), index) for index in range(number)),
        temperature=temperature,
        top_p=top_p,
        repetition_penalty=None,
        max_tokens=12,
        agent="verifier",
        is_verifier=True,
        headers=(),
        decisions=(),
    )


def spelt_out(policy: LoadedPolicy, asked: DecodeRequest, floor: float) -> dict[str, float]:
    """The probability of each reply by plain forward passes over one path after the other."""
    found: dict[str, float] = {}
    waiting: list[tuple[list[int], float]] = [([], 1.0)]
    while waiting:
        path, probability = waiting.pop()
        if (path and path[-1] in policy.stops) or len(path) == asked.max_tokens:
            text = policy.tokenizer.decode(path, skip_special_tokens=True)
            found[text] = found.get(text, 0.0) + probability
            continue
        with torch.inference_mode():
            logits = policy.model(torch.tensor([asked.tokens + path])).logits[0, -1].double()
        nexts = (logits / asked.temperature).softmax(-1) * probability
        waiting += [
            ([*path, token], float(nexts[token]))
            for token in (nexts >= floor).nonzero()[:, 0].tolist()
        ]
    return found


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_each_reply_has_the_probability_that_plain_forward_passes_give(
    policy: LoadedPolicy, temperature: float
) -> None:
    prompt = encode_chat(policy.tokenizer, request().chat)
    shorter = prompt[:1] + prompt[-8:]  # padded, in one batch with the other
    batch = [DecodeRequest(tokens, (), temperature, 10) for tokens in (prompt, shorter)]
    for asked, enumerated in zip(batch, enumerate_replies(policy, batch, 5e-3), strict=True):
        found = {reply.text: reply.probability for reply in enumerated.replies}
        assert len(found) > 5
        assert fsum(found.values()) <= 1 + 1e-9
        assert found == pytest.approx(spelt_out(policy, asked, 5e-3), abs=1e-4)


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 0.8), (0.0, 1.0)])
def test_samples_have_the_enumerated_frequencies(
    tmp_path: Path, temperature: float, top_p: float
) -> None:
    number = 400
    asked = request(number, temperature=temperature, top_p=top_p)
    (enumerated,) = local_enumerator(MODEL, tmp_path, None).unwrap()([asked], 1e-3)
    drawn = asyncio.run(local_sampler(tmp_path)(asked)).unwrap()
    counts = Counter(completion.text for completion in drawn)
    probabilities = {reply.text: reply.probability for reply in enumerated.replies}
    if temperature == 0:
        assert probabilities == dict.fromkeys(counts, 1.0)
    if top_p < 1:
        assert enumerated.rest < 0.2
    for text, probability in probabilities.items():
        error = 4.5 * (probability * (1 - probability) / number) ** 0.5 + 1 / number
        assert counts[text] / number == pytest.approx(probability, abs=error)
    missing = sum(count for text, count in counts.items() if text not in probabilities) / number
    assert missing <= enumerated.rest + 4.5 * (enumerated.rest / number) ** 0.5 + 1 / number
