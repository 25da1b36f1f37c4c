"""Enumeration of a local model's replies: the probabilities that its sampler draws with."""

import asyncio
from collections import Counter
from math import exp, fsum
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
from nip_fn_adapters.providers.local.models import (
    encode_chat,
    encode_reply,
    token_log_probabilities,
)
from nip_fn_adapters.providers.local.policy import LoadedPolicy, load_policy
from nip_fn_adapters.providers.local.sampler import local_sampler

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


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_each_reply_has_the_probability_that_a_plain_forward_pass_gives(
    policy: LoadedPolicy, temperature: float
) -> None:
    prompt = encode_chat(policy.tokenizer, request().chat)
    shorter = prompt[:1] + prompt[-8:]  # padded, in one batch with the other
    batch = [DecodeRequest(tokens, (), temperature, 12) for tokens in (prompt, shorter)]
    for asked, enumerated in zip(batch, enumerate_replies(policy, batch, 1e-3), strict=True):
        assert len(enumerated.replies) > 5
        assert fsum(reply.probability for reply in enumerated.replies) <= 1 + 1e-9
        for reply in enumerated.replies:
            tokens = encode_reply(policy.tokenizer, reply.text)
            if temperature == 1 and reply.finish_reason == "stop":
                log_probability = token_log_probabilities(policy.model, asked.tokens, tokens).sum()
                assert reply.probability == pytest.approx(exp(log_probability), rel=1e-3, abs=1e-4)


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
