"""The embedded sampler: real models, real batches."""

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from returns.result import Result, Success

from nip_fn.errors import Problem
from nip_fn.game.chat import Message
from nip_fn.game.reply import Completion
from nip_fn.keys import fold_in, key
from nip_fn.run.ports import Sampler, Served
from nip_fn.run.request import Request
from nip_fn.training.tuning import Probe
from nip_fn_adapters.providers.local.decode import DecodeRequest, Timings, decode
from nip_fn_adapters.providers.local.draw import nucleus, penalise
from nip_fn_adapters.providers.local.models import encode_chat
from nip_fn_adapters.providers.local.policy import LoadedPolicy, load_policy, log_probabilities
from nip_fn_adapters.providers.local.sampler import _batches, _Row, local_sampler

from ..lazily import torch, transformers
from .tiny_llama import CONTEXT, ask, chat, make_tiny_llama

Answer = Result[tuple[Completion, ...], Problem]


def sample_all(folder: Path, requests: Sequence[Request], **options: int) -> list[Answer]:
    """The answers to requests that are all asked at once."""
    sampler = local_sampler(folder, **options)

    async def ask_all() -> list[Answer]:
        return list(await asyncio.gather(*map(sampler, requests)))

    return asyncio.run(ask_all())


def sample(folder: Path, requests: Sequence[Request]) -> list[tuple[Completion, ...]]:
    """The replies to requests that are all asked at once."""
    return [answer.unwrap() for answer in sample_all(folder, requests, max_batch_rows=16)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with random weights."""
    return make_tiny_llama(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def policy(model: Path) -> LoadedPolicy:
    """The same, loaded."""
    return load_policy(str(model), Path("nowhere"), None).unwrap()


def next_logits(policy: LoadedPolicy, tokens: list[int]) -> "torch.Tensor":
    """The model's logits of the token after these, `[V]`."""
    with torch.inference_mode():
        logits: torch.Tensor = policy.model(torch.tensor([tokens])).logits[0, -1]
    return logits


def test_a_reply_depends_on_its_key_and_chat_and_not_on_the_batch(
    model: Path, tmp_path: Path
) -> None:
    requests = [
        ask(model, "decide." + "x" * i, num_replies=1 + i % 4, max_tokens=16 + i) for i in range(40)
    ]
    together = sample(tmp_path, requests)
    backwards = sample(tmp_path, requests[::-1])[::-1]
    alone = [sample(tmp_path, [request])[0] for request in requests[:4]]
    assert together == backwards
    assert together[:4] == alone
    (other,) = sample(tmp_path, [replace(requests[3], keys=requests[3].keys[::-1])])
    assert other == together[3][::-1]
    assert len({one.text for one in together[3]}) == 4
    assert sample(tmp_path, [ask(model, "decide.", seed=99, num_replies=1)]) != together[:1]


def test_more_replies_than_fit_side_by_side_come_in_the_order_of_their_keys(
    model: Path, tmp_path: Path
) -> None:
    request = ask(model, "many", num_replies=19)
    (many,) = sample(tmp_path, [request])
    pieces = [replace(request, keys=(one,)) for one in request.keys]
    assert [piece[0] for piece in sample(tmp_path, pieces)] == list(many)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_draws_follow_the_softmax_of_the_logits(policy: LoadedPolicy, temperature: float) -> None:
    """Chi-square of the first two tokens; the second given the likeliest first."""
    tokens, number = encode_chat(policy.tokenizer, chat("accept or reject?")), 6000
    keys = [fold_in(key(1), i) for i in range(number)]
    batch = [
        DecodeRequest(tokens, tuple(keys[at : at + 8]), temperature, 2)
        for at in range(0, number, 8)
    ]
    drawn = [reply.tokens for row in decode(policy, batch, Timings()) for reply in row]
    first = Counter(reply[0] for reply in drawn)
    likeliest = max(set(first) - set(policy.stops), key=first.__getitem__)
    second = Counter(reply[1] for reply in drawn if reply[0] == likeliest)
    assert _chi_square(first, policy, tokens, temperature) < 1.0
    assert _chi_square(second, policy, [*tokens, likeliest], temperature) < 1.0


def _chi_square(
    counts: Counter[int], policy: LoadedPolicy, tokens: list[int], temperature: float
) -> float:
    """The statistic over the value that one test in a thousand would exceed by chance."""
    logits = next_logits(policy, tokens)
    expected = torch.softmax(logits / temperature, -1).double().numpy() * counts.total()
    observed = np.array([counts[i] for i in range(len(expected))], dtype=float)
    common = expected >= 5
    expected = np.append(expected[common], expected[~common].sum() + 1e-9)
    observed = np.append(observed[common], observed[~common].sum())
    statistic = ((observed - expected) ** 2 / np.maximum(expected, 1.0)).sum()
    free = len(expected) - 1
    return float(statistic / (free * (1 - 2 / (9 * free) + 3.1 * np.sqrt(2 / (9 * free))) ** 3))


def test_temperature_zero_is_greedy_also_beside_chats_that_are_not(policy: LoadedPolicy) -> None:
    tokens = [encode_chat(policy.tokenizer, chat("right" + "?" * i)) for i in range(1, 9)]
    batch = [
        DecodeRequest(t, (key(0), key(1)), 0.0 if i % 2 else 1.0, 16) for i, t in enumerate(tokens)
    ]
    for asked, replies in zip(batch[1::2], decode(policy, batch, Timings())[1::2], strict=True):
        generated = policy.model.generate(
            torch.tensor([asked.tokens]),
            attention_mask=torch.ones(1, len(asked.tokens), dtype=torch.long),
            max_new_tokens=16,
            do_sample=False,
        )
        expected = generated[0, len(asked.tokens) :].tolist()
        assert [reply.tokens for reply in replies] == [expected, expected]


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9])
def test_draws_follow_the_probabilities_within_the_nucleus(
    policy: LoadedPolicy, top_p: float, temperature: float
) -> None:
    """First tokens: none from outside, each as often as the renormalised probability says."""
    tokens, number = encode_chat(policy.tokenizer, chat("accept or reject?")), 6000
    keys = [fold_in(key(2), i) for i in range(number)]
    batch = [
        DecodeRequest(tokens, tuple(keys[at : at + 8]), temperature, 1, top_p)
        for at in range(0, number, 8)
    ]
    drawn = [reply.tokens[0] for row in decode(policy, batch, Timings()) for reply in row]
    _assert_as_often(drawn, _nucleus(next_logits(policy, tokens), temperature, top_p))


def _assert_as_often(drawn: Sequence[int], expected: np.ndarray) -> None:
    """Each token within four and a half standard deviations; none where the probability is 0."""
    counts = np.bincount(drawn, minlength=len(expected))
    deviation = np.sqrt(len(drawn) * expected * (1 - expected))
    assert (np.abs(counts - len(drawn) * expected) <= 4.5 * deviation).all()


def test_the_penalty_comes_first_then_the_temperature_then_the_nucleus(
    policy: LoadedPolicy,
) -> None:
    """Beside a longer chat: the number that pads the shorter one gets no penalty as a token."""
    model = deepcopy(policy.model)
    with torch.no_grad():
        weights = model.get_input_embeddings().weight
        weights[0] = weights[policy.tokenizer.convert_tokens_to_ids(":")]
    policy = policy._replace(model=model)
    tokens, longer = (encode_chat(policy.tokenizer, chat(text)) for text in ("no", "no" * 9))
    keys = tuple(fold_in(key(6), i) for i in range(6000))
    batch = [DecodeRequest(prompt, keys, 2.0, 1, 0.95, 3.0) for prompt in (tokens, longer)]
    drawn = [reply.tokens[0] for reply in decode(policy, batch, Timings())[0]]
    logits = next_logits(policy, tokens)[None]
    penalised = transformers.RepetitionPenaltyLogitsProcessor(3.0)(torch.tensor([tokens]), logits)[
        0
    ]
    assert penalised[0] == logits[0, 0] > 1
    _assert_as_often(drawn, _nucleus(penalised, 2.0, 0.95))


def _nucleus(logits: "torch.Tensor", temperature: float, top_p: float) -> np.ndarray:
    """The probabilities of the smallest likely enough set, scaled up to 1; 0 elsewhere."""
    scaled = logits.double().numpy() / temperature
    probabilities = np.exp(scaled - scaled.max())
    probabilities /= probabilities.sum()
    likeliest = np.argsort(-probabilities)
    size = 1 + int(np.searchsorted(probabilities[likeliest].cumsum(), top_p))
    probabilities[likeliest[size:]] = 0
    return np.asarray(probabilities / probabilities.sum())


def test_every_token_of_a_reply_is_in_the_nucleus_of_its_place(policy: LoadedPolicy) -> None:
    tokens = encode_chat(policy.tokenizer, chat("why?"))
    asked = DecodeRequest(tokens, tuple(fold_in(key(3), i) for i in range(8)), 1.0, 12, 0.4)
    for reply in decode(policy, [asked], Timings())[0]:
        for at, token in enumerate(reply.tokens):
            logits = next_logits(policy, tokens + reply.tokens[:at])
            assert _nucleus(logits, 1.0, 0.4)[token] > 0


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [
        (1e-9, [0, 1, 0, 0]),
        (0.375, [0, 1, 0, 0]),
        (0.376, [0, 1, 1, 0]),
        (0.75, [0, 1, 1, 0]),
        (0.751, [1, 1, 1, 0]),
        (1.0, [1, 1, 1, 1]),
    ],
)
def test_the_nucleus_is_the_smallest_set_that_reaches_top_p(top_p: float, kept: list[int]) -> None:
    probabilities = torch.tensor([[[0.125, 0.375, 0.375, 0.125]]])
    left = nucleus(probabilities, torch.tensor([[[top_p]]], dtype=torch.float64))
    assert torch.equal(left, probabilities * torch.tensor(kept))


def test_top_p_and_penalty_of_one_change_nothing(model: Path, tmp_path: Path) -> None:
    plain = [ask(model, "x" * i) for i in range(6)]
    ones = [replace(request, top_p=1.0, repetition_penalty=1.0) for request in plain]
    assert sample(tmp_path, ones) == sample(tmp_path, plain)


def test_neighbours_that_ask_for_more_change_no_draw_of_the_others(policy: LoadedPolicy) -> None:
    tokens = encode_chat(policy.tokenizer, chat("same"))
    batch = [DecodeRequest(tokens, (fold_in(key(4), i),), float(i % 3), 24) for i in range(60)]
    mixed = [
        asked._replace(top_p=0.3, repetition_penalty=1.5) if i % 2 else asked
        for i, asked in enumerate(batch)
    ]
    alone, beside = (decode(policy, asked, Timings()) for asked in (batch, mixed))
    assert beside[::2] == alone[::2]
    assert beside[1::2] != alone[1::2]


def test_a_tiny_top_p_is_greedy(model: Path, tmp_path: Path) -> None:
    requests = [ask(model, "x" * i, top_p=1e-6) for i in range(6)]
    greedy = [replace(request, top_p=None, temperature=0.0) for request in requests]
    assert sample(tmp_path, requests) == sample(tmp_path, greedy)


def test_the_penalty_is_that_of_transformers(policy: LoadedPolicy) -> None:
    prompts = [encode_chat(policy.tokenizer, chat("penalty" * i)) for i in range(1, 4)]
    for tokens in prompts:
        logits = next_logits(policy, tokens)[None]
        for penalty in (0.5, 1.0, 1.3, 50.0):
            expected = transformers.RepetitionPenaltyLogitsProcessor(penalty)(
                torch.tensor([tokens]), logits
            )
            got = penalise(logits[None], torch.tensor([[tokens]]), torch.tensor([[[penalty]]]))
            assert torch.equal(got[0], expected)


def test_greedy_replies_with_a_penalty_are_those_of_transformers(policy: LoadedPolicy) -> None:
    """The penalty counts the prompt and the reply, but no padding and no other reply."""
    tokens = [encode_chat(policy.tokenizer, chat("right" + "?" * i)) for i in range(1, 13)]
    penalties = [(1.0, 1.2, 0.8, 3.0)[i % 4] for i in range(12)]
    batch = [
        DecodeRequest(prompt, (key(0), key(1)), float(i % 3 == 0), 16, repetition_penalty=penalty)
        for i, (prompt, penalty) in enumerate(zip(tokens, penalties, strict=True))
    ]
    for asked, replies in zip(batch, decode(policy, batch, Timings()), strict=True):
        if asked.temperature:
            continue
        generated = policy.model.generate(
            torch.tensor([asked.tokens]),
            attention_mask=torch.ones(1, len(asked.tokens), dtype=torch.long),
            max_new_tokens=16,
            do_sample=False,
            repetition_penalty=asked.repetition_penalty,
        )
        expected = generated[0, len(asked.tokens) :].tolist()
        assert [reply.tokens for reply in replies] == [expected, expected]


def test_a_huge_penalty_leaves_no_repetition(policy: LoadedPolicy) -> None:
    """A token that occurred is worth 0 at best, so any other of positive logit goes before it."""
    tokens = encode_chat(policy.tokenizer, chat("aaa"))
    asked = DecodeRequest(tokens, tuple(fold_in(key(5), i) for i in range(8)), 0.05, 8)
    without, with_penalty = (
        _needless_repetitions(policy, asked._replace(repetition_penalty=penalty))
        for penalty in (1.0, 1e6)
    )
    assert without > 0
    assert with_penalty == 0


def _needless_repetitions(policy: LoadedPolicy, asked: DecodeRequest) -> int:
    """The repetitions in a reply at which another token has a logit clearly above 0."""
    count = 0
    for reply in decode(policy, [asked], Timings())[0]:
        for at, token in enumerate(reply.tokens):
            before = asked.tokens + reply.tokens[:at]
            others = np.delete(next_logits(policy, before).numpy(), before)
            count += token in before and others.max() > 1
    return count


def test_a_reply_depends_on_its_own_options_and_not_on_its_neighbours(
    model: Path, tmp_path: Path
) -> None:
    options: list[dict[str, float | None]] = [
        {},
        {"top_p": 0.5},
        {"repetition_penalty": 1.3},
        {"temperature": 0.0, "repetition_penalty": 1.5},
        {"temperature": None, "top_p": 0.9, "repetition_penalty": 0.9},
    ]
    requests = [
        ask(model, "mix" + "x" * i, num_replies=1 + i % 2, max_tokens=16 + i, **options[i % 5])
        for i in range(40)
    ]
    together = sample(tmp_path, requests)
    assert together == sample(tmp_path, requests[::-1])[::-1]
    assert together[:10] == [sample(tmp_path, [request])[0] for request in requests[:10]]
    assert together != sample(tmp_path, [replace(one, top_p=None) for one in requests])
    assert together != sample(tmp_path, [replace(one, repetition_penalty=None) for one in requests])


@pytest.mark.parametrize("do_sample", [True, False])
def test_what_a_request_leaves_open_is_as_the_model_says_if_it_says_to_sample(
    tmp_path: Path, do_sample: bool
) -> None:
    model = make_tiny_llama(tmp_path / "model")
    said = {"temperature": 0.7, "top_p": 0.6, "repetition_penalty": 1.4}
    config = {"do_sample": do_sample, "eos_token_id": 2, **said}
    (model / "generation_config.json").write_text(json.dumps(config))
    meant = said if do_sample else dict.fromkeys(said, 1.0)
    for name in said:
        given = {**dict.fromkeys(said, 0.9), name: None}
        left_open = [ask(model, "x" * i, **given) for i in range(6)]
        asked_for = [replace(request, **{name: meant[name]}) for request in left_open]
        assert sample(tmp_path, left_open) == sample(tmp_path, asked_for)
        assert sample(tmp_path, left_open) != sample(
            tmp_path, [replace(request, **{name: 0.9}) for request in left_open]
        )


def test_replies_that_end_by_themselves_and_those_that_are_cut(model: Path, tmp_path: Path) -> None:
    requests = [ask(model, "x" * i, num_replies=8, max_tokens=60) for i in range(4)]
    cut = sample(tmp_path, [replace(request, max_tokens=5) for request in requests])
    replies = list(chain.from_iterable(sample(tmp_path, requests)))
    assert {reply.finish_reason for reply in replies} == {"stop", "length"}
    for whole, short in zip(replies, chain.from_iterable(cut), strict=True):
        assert 0 < whole.completion_tokens <= 60
        if whole.finish_reason == "length":
            assert whole.completion_tokens == 60
        stops_early = whole.finish_reason == "stop" and whole.completion_tokens <= 5
        assert short.finish_reason == ("stop" if stops_early else "length")
        assert short.completion_tokens == min(5, whole.completion_tokens)
        assert (whole.text or "").startswith(short.text or "")


def test_prompts_read_as_a_forest_give_the_replies_of_prompts_read_apart(
    policy: LoadedPolicy,
) -> None:
    """Prompts that share a beginning, are equal, or hold one another, and the shortest there is."""
    texts = ["", "a", "a", "ab", "abc", "b" * 40, "b" * 39 + "c", "x"]
    prompts = [encode_chat(policy.tokenizer, chat(text)) for text in texts]
    prompts += [prompts[0][:1], prompts[5][:20]]
    batch = [
        DecodeRequest(tokens, tuple(fold_in(key(7), i, j) for j in range(3)), 1.0, 8 + 2 * i)
        for i, tokens in enumerate(prompts)
    ]
    assert policy.reads_forests
    apart = decode(policy._replace(reads_forests=False), batch, Timings())
    for replies in (
        decode(policy, batch, Timings()),
        decode(policy, batch[::-1], Timings())[::-1],
        [decode(policy, [asked], Timings())[0] for asked in batch],
    ):
        for reply, expected in zip(chain(*replies), chain(*apart), strict=True):
            assert (reply.tokens, reply.ended) == (expected.tokens, expected.ended)
            # Sums in another order, which a policy's ratio to itself may feel, but nobody else.
            np.testing.assert_allclose(
                reply.log_probabilities, expected.log_probabilities, rtol=0, atol=1e-5
            )


def test_a_prompts_token_is_forwarded_once(
    policy: LoadedPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, real = list[int](), policy.model.forward

    def forward(tokens: "torch.Tensor", **inputs: object) -> object:
        read.append(tokens.numel())
        return real(tokens, **inputs)

    monkeypatch.setattr(policy.model, "forward", forward)
    prompts = [encode_chat(policy.tokenizer, chat("same" * 5 + end)) for end in "abcd"]
    distinct = {tuple(tokens[: i + 1]) for tokens in prompts for i in range(len(tokens))}
    batch = [DecodeRequest(tokens, (key(i),), 1.0, 4) for i, tokens in enumerate(prompts)]
    decode(policy, batch, Timings())
    assert read[0] == len(distinct) < sum(map(len, prompts)) / 2


def test_a_model_that_cannot_read_forests_answers_as_it_would_by_itself(tmp_path: Path) -> None:
    """Its attention was chosen: `eager` adds a mask instead of obeying it."""
    model = make_tiny_llama(tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "attn_implementation": "eager"}))
    policy = load_policy(str(model), Path("nowhere"), None).unwrap()
    assert not policy.reads_forests
    batch = [
        DecodeRequest(encode_chat(policy.tokenizer, chat("right" + "?" * i)), (key(0),), 0.0, 12)
        for i in range(4)
    ]
    for asked, (reply,) in zip(batch, decode(policy, batch, Timings()), strict=True):
        before = list(asked.tokens)
        for token in reply.tokens:
            assert token == int(next_logits(policy, before).argmax())
            before.append(token)


def test_a_reply_says_who_wrote_it_and_what_it_cost(model: Path, tmp_path: Path) -> None:
    sampler = local_sampler(tmp_path)
    request = ask(model, "abc")
    replies = asyncio.run(_ask(sampler, request)).unwrap()
    prompt = len(["<bos>", "<system>", *"be good.", "<end>", "\n", "<user>"])
    prompt += len([*"abc", "<end>", "\n", "<assistant>"])
    assert {reply.prompt_tokens for reply in replies} == {prompt}
    assert {reply.model for reply in replies} == {str(model)}
    timings = sampler.timings
    assert timings.prompt_tokens == 4 * prompt
    assert timings.completion_tokens == sum(reply.completion_tokens for reply in replies)
    assert 0 < timings.model < timings.total
    assert 0 < timings.share_outside < 1


async def _ask(sampler: Sampler, request: Request) -> Answer:
    return await sampler(request)


def test_what_cannot_be_answered_is_a_failure_that_names_the_cause(
    model: Path, tmp_path: Path
) -> None:
    fits = "x" * (CONTEXT - 24 - 16)
    answers = sample_all(
        tmp_path,
        [
            ask(model, fits),
            ask(model, fits + "xx"),
            ask(model, "refuse"),
            ask(model, "a", adapter="verifier-9-nothing"),
            ask(Path("nowhere"), "a"),
        ],
    )
    assert isinstance(answers[0], Success)
    causes = [str(answer.failure()) for answer in answers[1:]]
    for cause, word in zip(
        causes, (f"holds {CONTEXT}", "I refuse", "verifier-9-nothing", "nowhere"), strict=True
    ):
        assert word in cause
        assert "\n" not in cause


def test_the_event_loop_goes_on_while_the_model_works(model: Path, tmp_path: Path) -> None:
    sampler = local_sampler(tmp_path)

    async def turns() -> int:
        asked = asyncio.gather(*(sampler(ask(model, "x" * i, max_tokens=50)) for i in range(40)))
        count = 0
        while not asked.done():
            await asyncio.sleep(0.001)
            count += 1
        return count

    assert asyncio.run(turns()) > 20


def test_few_models_stay_loaded_and_an_evicted_one_answers_as_before(
    model: Path, tmp_path: Path
) -> None:
    other = make_tiny_llama(tmp_path / "other", seed=1)
    requests = [ask(one, "a") for one in (model, other, model)]
    sampler = local_sampler(tmp_path, max_models=1)
    one, two, three = (asyncio.run(_ask(sampler, request)).unwrap() for request in requests)
    assert one == three
    assert [reply.text for reply in one] != [reply.text for reply in two]


def test_probes_are_scored_token_by_token(
    model: Path, policy: LoadedPolicy, tmp_path: Path
) -> None:
    reply = "no bug."
    prompt, tokens = encode_chat(policy.tokenizer, chat("a")), [*reply, "<end>"]
    expected = []
    for token in policy.tokenizer.convert_tokens_to_ids(tokens):
        with torch.inference_mode():
            logits = policy.model(torch.tensor([prompt])).logits[0, -1]
        expected.append(float(torch.log_softmax(logits, -1)[token]))
        prompt = [*prompt, token]
    assert log_probabilities(policy, chat("a"), reply) == pytest.approx(expected, abs=1e-3)
    assert log_probabilities(policy, chat("a"), reply, limit=2) == pytest.approx(expected[:2])

    async def score() -> Served:
        probes = (Probe(chat("a"), reply),) * 2
        return (await local_sampler(tmp_path).score_probes(str(model), None, probes)).unwrap()

    served = asyncio.run(score())
    assert served.scores == pytest.approx(2 * expected, abs=1e-3)
    assert served.dtype == "float32"


def test_a_missing_package_is_named_with_the_command_that_mends_it() -> None:
    script = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from pathlib import Path\n"
        "from nip_fn_adapters.providers.local.policy import load_policy\n"
        "print(load_policy('any', Path(), None).failure())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "torch" in done.stdout
    assert 'pip install "nip-fn[local]"' in done.stdout


def test_importing_the_adapters_loads_no_heavy_package() -> None:
    script = (
        "import sys\n"
        "import nip_fn_adapters.providers.local.sampler, nip_fn_adapters.providers.local.tuner\n"
        "print(sorted({'torch', 'transformers', 'trl', 'peft'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("max_tokens", [1, 300, 1000])
def test_batches_hold_all_rows_and_no_more_tokens_than_allowed(max_tokens: int) -> None:
    sizes = [(1 + i % 3, 5 + 7 * i % 90, 1 + 11 * i % 40) for i in range(60)]
    rows = [
        _Row(i, DecodeRequest([0] * length, (key(i),) * width, 1.0, limit))
        for i, (width, length, limit) in enumerate(sizes)
    ]
    batches = list(_batches(rows, 8, max_tokens))
    assert sorted(row.place for batch in batches for row in batch) == list(range(60))
    for batch in batches:
        (width,) = {len(row.encoded.keys) for row in batch}
        prompt = max(len(row.encoded.tokens) for row in batch)
        reply = max(row.encoded.max_tokens for row in batch)
        assert len(batch) <= 8
        assert len(batch) == 1 or len(batch) * (prompt + width * reply) <= max_tokens


# --------------------------------------------------------------------- the probability of a verdict


@pytest.mark.parametrize(
    ("temperature", "top_p", "penalty"), [(1.0, 1.0, 1.0), (0.5, 0.9, 1.0), (2.0, 1.0, 1.5)]
)
def test_watched_tokens_have_the_probabilities_by_which_tokens_are_drawn(
    policy: LoadedPolicy, temperature: float, top_p: float, penalty: float
) -> None:
    prompt = encode_chat(policy.tokenizer, chat("decide."))
    keys = tuple(fold_in(key(7), i) for i in range(4))
    watched = list(range(6, len(policy.tokenizer)))
    asked = DecodeRequest(prompt, keys, temperature, 6, top_p, penalty)
    for reply in decode(policy, [asked], Timings(), watched)[0]:
        assert len(reply.watched) == len(reply.tokens)
        for index, weights in enumerate(reply.watched):
            context = [*prompt, *reply.tokens[:index]]
            logits = next_logits(policy, context)[None, None]
            penalised = penalise(
                logits, torch.tensor(context)[None, None], torch.tensor([[[penalty]]])
            )
            expected = _nucleus(penalised[0, 0], temperature, top_p)[watched]
            ratio = np.array(weights) / sum(weights)
            np.testing.assert_allclose(ratio, expected / expected.sum(), atol=1e-5)


def test_of_the_likeliest_token_the_probability_is_1(policy: LoadedPolicy) -> None:
    prompt = encode_chat(policy.tokenizer, chat("decide."))
    watched = list(range(len(policy.tokenizer)))
    (reply,) = decode(policy, [DecodeRequest(prompt, (key(1),), 0.0, 6)], Timings(), watched)[0]
    assert reply.watched == np.eye(len(watched))[reply.tokens].tolist()


def test_a_verdict_of_an_embedded_model_has_its_probability(tmp_path: Path) -> None:
    """That of one token against one other, both of them a whole verdict; none is drawn in vain."""
    policy = load_policy("builtin:tea", Path("nowhere"), None).unwrap()
    instructions = Message("system", "You are the verifier."), Message("user", "Saucers. Decide.")
    request = replace(
        ask(Path("builtin:tea"), "", num_replies=40, max_tokens=24),
        chat=instructions,
        decisions=("reject", "accept"),
        record_tokens=True,
    )
    ((completions),) = sample(tmp_path, [request])
    prompt = encode_chat(policy.tokenizer, instructions)
    verdicts = [c for c in completions if (c.text or "").startswith("Decision: ")]
    assert verdicts
    stated = [f"Decision: {verdict}" for verdict in request.decisions]
    tokens = [policy.tokenizer.encode(text, add_special_tokens=False)[0] for text in stated]
    first = next_logits(policy, prompt)[tokens].double().softmax(-1).numpy()
    for completion in verdicts:
        assert completion.verdict_probabilities == pytest.approx(tuple(first), abs=1e-5)
    others = {c.verdict_probabilities for c in completions if "Decision" not in (c.text or "")}
    assert others <= {()}
    (unrecorded,) = sample(tmp_path, [replace(request, record_tokens=False)])
    assert {completion.verdict_probabilities for completion in unrecorded} == {()}
