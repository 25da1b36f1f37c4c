"""The embedded sampler: real models, real batches."""

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from returns.result import Failure, Success

from nip_fn.chat import Message
from nip_fn.keys import fold_in, key
from nip_fn.reply import Completion
from nip_fn.requests import Request
from nip_fn_adapters.local.decode import Asked, Timings, decode
from nip_fn_adapters.local.models import Policy, encode_chat, load_policy, log_probability
from nip_fn_adapters.local.sampler import local_sampler

TINY = "builtin:tiny"


def request(text: str, seed: int = 0, *, replies: int = 2, temperature: float = 1.0) -> Request:
    """Replies to a chat of one user message."""
    return Request(
        model=TINY,
        adapter=None,
        chat=(Message("system", "You are Verifier."), Message("user", text)),
        keys=tuple(fold_in(key(seed), i) for i in range(replies)),
        temperature=temperature,
        max_tokens=24,
        agent="verifier",
        is_verifier=True,
    )


def sample(folder: Path, requests: Sequence[Request]) -> list[tuple[Completion, ...]]:
    """All requests, asked at once."""
    sampler = local_sampler(folder, max_rows=16)

    async def ask() -> list[tuple[Completion, ...]]:
        return [reply.unwrap() for reply in await asyncio.gather(*map(sampler, requests))]

    return asyncio.run(ask())


@pytest.fixture(scope="module")
def policy() -> Policy:
    """The base model."""
    return load_policy(TINY, Path("nowhere"), None).unwrap()


def test_a_reply_depends_on_its_key_and_chat_and_not_on_the_batch(tmp_path: Path) -> None:
    requests = [request("Decide now" + "." * i, seed=i) for i in range(20)]
    together = sample(tmp_path, requests)
    backwards = sample(tmp_path, requests[::-1])[::-1]
    alone = [sample(tmp_path, [one])[0] for one in requests[:4]]
    assert together == backwards
    assert together[:4] == alone
    assert sample(tmp_path, [request("Decide now", seed=99)]) != together[:1]


def test_draws_follow_the_softmax_of_the_logits(policy: Policy) -> None:
    chat = request("Decide now, with accept or reject.").chat
    tokens = encode_chat(policy.tokenizer, chat)
    number = 2000
    keys = tuple(fold_in(key(1), i) for i in range(number))
    drawn = decode(policy, [Asked(tokens, keys, 1.0, 1)], Timings())[0]
    counts = Counter(one.tokens[0] if one.tokens else policy.stops[0] for one in drawn)
    with torch.inference_mode():
        expected = torch.softmax(policy.model(torch.tensor([tokens])).logits[0, -1], -1).numpy()
    for token in np.argsort(expected)[-8:]:
        share, p = counts[int(token)] / number, expected[token]
        assert abs(share - p) < 4.5 * np.sqrt(p * (1 - p) / number) + 1e-9


def test_temperature_zero_is_greedy(policy: Policy) -> None:
    chats = [request(f"Is step {i} right?").chat for i in range(1, 5)]
    tokens = [encode_chat(policy.tokenizer, chat) for chat in chats]
    drawn = decode(policy, [Asked(t, (key(0),), 0.0, 16) for t in tokens], Timings())
    for ids, (reply,) in zip(tokens, drawn, strict=True):
        expected = policy.model.generate(
            torch.tensor([ids]), max_new_tokens=16, do_sample=False, temperature=None, top_k=None
        )[0, len(ids) :].tolist()
        stops = [i for i, token in enumerate(expected) if token in policy.stops]
        assert reply.tokens == expected[: stops[0] if stops else None]


def test_replies_that_end_by_themselves_and_those_that_are_cut(tmp_path: Path) -> None:
    from msgspec.structs import replace

    long = request("Decide now.", replies=8)
    (whole,) = sample(tmp_path, [long])
    (cut,) = sample(tmp_path, [replace(long, max_tokens=1)])
    assert {one.finish_reason for one in cut} <= {"length", "stop"}
    assert all(one.completion_tokens <= 1 for one in cut)
    for one, other in zip(cut, whole, strict=True):
        assert (other.text or "").startswith(one.text or "")
    assert any(one.finish_reason == "stop" for one in whole)
    assert all(one.model == TINY and one.prompt_tokens > 0 for one in whole)


def test_a_chat_that_does_not_fit_is_a_failure_that_names_the_cause(tmp_path: Path) -> None:
    sampler = local_sampler(tmp_path)

    async def ask() -> list[object]:
        short = request("Decide now.")
        long = request("Decide now. " * 2000)
        return list(await asyncio.gather(sampler(short), sampler(long)))

    short, long = asyncio.run(ask())
    assert isinstance(short, Success)
    assert isinstance(long, Failure)
    assert "do not fit" in long.failure()


def test_an_adapter_that_is_not_there_is_a_failure(tmp_path: Path) -> None:
    from msgspec.structs import replace

    sampler = local_sampler(tmp_path)

    async def ask() -> object:
        return await sampler(replace(request("Decide."), adapter="verifier-9-nothing"))

    answer = asyncio.run(ask())
    assert isinstance(answer, Failure)
    assert "verifier-9-nothing" in answer.failure()


def test_log_probability_is_the_sum_over_the_tokens_of_the_reply(policy: Policy) -> None:
    chat, reply = request("Decide now.").chat, "Decision: accept"
    prompt = encode_chat(policy.tokenizer, chat)
    tokens = policy.tokenizer.encode(reply, add_special_tokens=False)
    tokens.append(policy.tokenizer.eos_token_id)
    total = 0.0
    with torch.inference_mode():
        for i, token in enumerate(tokens):
            logits = policy.model(torch.tensor([prompt + tokens[:i]])).logits[0, -1]
            total += float(torch.log_softmax(logits, -1)[token])
    assert log_probability(policy, chat, reply) == pytest.approx(total, abs=1e-3)


def test_a_missing_package_is_named_with_the_command_that_mends_it() -> None:
    script = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from pathlib import Path\n"
        "from nip_fn_adapters.local.models import load_policy\n"
        "print(load_policy('builtin:tiny', Path(), None).failure())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "torch" in done.stdout
    assert 'pip install "nip-fn[local]"' in done.stdout


def test_importing_the_adapters_loads_no_heavy_package() -> None:
    script = (
        "import sys\n"
        "import nip_fn_adapters.local.sampler, nip_fn_adapters.local.tuner\n"
        "print(sorted({'torch', 'transformers', 'trl', 'peft'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
