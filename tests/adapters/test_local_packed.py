"""Training on packed rows: the losses and gradients of trl, which trains every row by itself."""

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stdout
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from msgspec.structs import replace

from nip_fn.game.chat import Chat, Message
from nip_fn.game.tokens import SampledTokens
from nip_fn.training import packing
from nip_fn.training.canary import canary_metrics
from nip_fn.training.losses import (
    DPO,
    IPO,
    SFT,
    Clipped,
    Loss,
    PolicyGradient,
    SimPO,
)
from nip_fn.training.packing import Packed, TokenRow
from nip_fn.training.rows import Row, imitated, preference
from nip_fn.training.tuning import Job
from nip_fn_adapters.providers.local import attention, train, weights
from nip_fn_adapters.providers.local import packed as packed_training
from nip_fn_adapters.providers.local.attention import attend_in_blocks
from nip_fn_adapters.providers.local.jobs import JobFiles, write_job
from nip_fn_adapters.providers.local.loading import load_job
from nip_fn_adapters.providers.local.models import (
    load_base,
    load_model,
    load_tokenizer,
    token_log_probabilities,
)
from nip_fn_adapters.providers.local.packed import backward, packing_problem, token_scores
from nip_fn_adapters.providers.local.reference import reference_scores
from nip_fn_adapters.providers.local.rows import Encoded, encode_rows
from nip_fn_adapters.providers.local.steps import Batch, plain_scores
from nip_fn_adapters.providers.local.train import Trained
from nip_fn_adapters.providers.local.weights import load_reference

from ..lazily import accelerate, functional, torch
from .tiny_llama import CHARACTERS, SPECIAL, make_tiny_llama
from .training import make_job
from .trl_losses import trl_trainer

# One worker: they share a server that trainings are forked from, and trl's imports.
pytestmark = pytest.mark.xdist_group("trainings")

# Whole trees in one forest, a bound that cuts them, and attention in many small blocks.
READINGS = {"whole": {}, "cut": {"max_tokens": 60}, "blocks": {"block_cost": 0}}


def read_as(reading: str, patch: pytest.MonkeyPatch) -> None:
    """Pack and attend in that way."""
    patch.setattr(packed_training, "MAX_TOKENS", READINGS[reading].get("max_tokens", 2048))
    patch.setattr(packing, "BLOCK_COST", READINGS[reading].get("block_cost", packing.BLOCK_COST))
    patch.setattr(packing, "BLOCK_STEP", 16)


def make_gpt2(folder: Path) -> Path:
    """A GPT-2 with random weights: its positions are learnt, and no part is always float32."""
    from transformers import GPT2Config, GPT2LMHeadModel

    make_tiny_llama(folder)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(SPECIAL) + len(CHARACTERS),
        n_positions=256,
        n_embd=32,
        n_layer=2,
        n_head=2,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def tree(name: str, rounds: int) -> Iterator[tuple[Chat, str, str]]:
    """The pairs of replies of a ragged tree, as MALT's are: each prompt goes on from an earlier."""
    chat: Chat = (Message("system", f"be good. {name}"),)
    for turn in range(rounds):
        ask = (*chat, Message("user", "a" * (3 * turn + 1)))
        yield ask, f"yes {turn}", "no"
        yield ask, f"yes {turn}{turn}", f"yes {turn}"
        chat = (*ask, Message("assistant", f"yes {turn}"))


SHAPES = {
    "ragged trees": (("one", 3), ("two", 1), ("three", 2)),
    "one tree": (("one", 3),),
    "trees of one prompt": (("a", 1), ("b", 1), ("c", 1)),
}


def make_rows(shape: str, loss: Loss) -> tuple[Row, ...]:
    """Rows for a training by that loss."""
    pairs = [pair for name, rounds in SHAPES[shape] for pair in tree(name, rounds)]
    match loss:
        case SFT():
            return tuple(imitated(chat, chosen) for chat, chosen, _ in pairs)
        case PolicyGradient() | Clipped():
            return tuple(
                Row(
                    *(chat, (chosen, rejected, "other"), (0.7, -1.1, 0.1 * len(chosen))),
                    tuple(map(sampled, (chosen, rejected, "other"))),
                )
                for chat, chosen, rejected in pairs
            )
    return tuple(preference(*pair) for pair in pairs)


def sampled(reply: str) -> SampledTokens:
    """The tokens of a reply, which was sampled without an end token."""
    ids = [len(SPECIAL) + CHARACTERS.index(character) for character in reply]
    return SampledTokens.of(ids, [SAMPLED] * len(ids))


class Case:
    """A job of one step, loaded twice: for trl, and to be packed."""

    def __init__(self, job: Job, run: Path, dtype: "torch.dtype") -> None:
        job = replace(job, batch_size=len(job.rows))
        files = JobFiles(run, job.name)
        files.folder.mkdir(parents=True, exist_ok=True)
        self.job = job
        torch.manual_seed(0)
        plain = load_job(job, files)
        torch.manual_seed(0)
        self.loaded = load_job(job, files)
        has_trl = job.loss in BY_TRL.values()
        self.trainer = trl_trainer(job, files, plain) if has_trl else None
        self.plain = plain.model
        self.reference = load_reference(*self.loaded.folders[::2]).to(dtype)
        for model in (self.loaded.model, self.plain):
            model.to(dtype)
            # A LoRA's product is nought at first: the policy shall not be the reference.
            torch.manual_seed(1)
            for name, weight in model.named_parameters():
                if weight.requires_grad:
                    weight.data += torch.randn_like(weight) * (0.1 if "lora" in name else 0.01)

    def by_trl(self) -> tuple[float, dict[str, Any]]:
        """The loss, and the gradients by weight."""
        batch = self.trainer.data_collator(list(self.trainer.train_dataset))
        labels = batch.get("labels")
        number = None if labels is None else (labels != -100).sum()
        model = self.trainer.model.train()
        loss = self.trainer.compute_loss(model, batch, num_items_in_batch=number)
        loss.backward()
        return float(loss.detach()), gradients(model)

    def by_torch(self) -> tuple[float, dict[str, Any]]:
        """The same of plain torch, one reply after the other, by the formulas of the papers."""
        model, rows = self.plain.train(), self.loaded.encoded.rows
        replies = [
            Reply(
                *(
                    log_probabilities(policy, row.prompt, reply)
                    for policy in (model, self.reference)
                ),
                weight,
            )
            for row, weights in zip(rows, self.loaded.encoded.weights, strict=True)
            for reply, weight in zip(row.replies, weights, strict=True)
        ]
        counts = [len(row.replies) for row in rows]
        loss = FORMULAS[type(self.job.loss)](self.job.loss, replies, counts)
        loss.backward()
        return float(loss.detach()), gradients(model)

    def packed(self) -> tuple[float, dict[str, Any]]:
        """The same of packed rows."""
        encoded = self.loaded.encoded
        reference = token_scores(self.reference, encoded.rows)
        batch = Batch.of(encoded, reference, range(len(encoded.rows)))
        model = attend_in_blocks(self.loaded.model.train())
        figures, forwarded = backward(self.job, model, accelerate.Accelerator(cpu=True), batch)
        self.forwarded = forwarded
        return figures.loss, gradients(model)


class Reply(NamedTuple):
    """The log-probabilities of a reply's tokens, with their gradients, and its weight."""

    policy: Any
    reference: Any
    weight: float


def dpo(loss: DPO, replies: list[Reply], counts: list[int]) -> Any:
    """Equation 7 of Rafailov et al. (2023), and the supervised loss of MALT."""
    pairs = list(zip(replies[::2], replies[1::2], strict=True))
    total = 0
    for chosen, rejected in pairs:
        ratios = [(reply.policy - reply.reference.detach()).sum() for reply in (chosen, rejected)]
        total = total - functional.logsigmoid(loss.beta * (ratios[0] - ratios[1])) / len(pairs)
    return total + loss.sft_weight * sft(SFT(), [chosen for chosen, _ in pairs], counts)


def ipo(loss: IPO, replies: list[Reply], counts: list[int]) -> Any:
    """Equation 17 of Azar et al. (2023), of mean log-ratios."""
    ratios = [(reply.policy - reply.reference.detach()).mean() for reply in replies]
    pairs = list(zip(ratios[::2], ratios[1::2], strict=True))
    return sum((good - bad - 1 / (2 * loss.beta)) ** 2 for good, bad in pairs) / len(pairs)


def simpo(loss: SimPO, replies: list[Reply], counts: list[int]) -> Any:
    """Equation 6 of Meng et al. (2024)."""
    means = [loss.beta * reply.policy.mean() for reply in replies]
    pairs = list(zip(means[::2], means[1::2], strict=True))
    return -sum(functional.logsigmoid(good - bad - loss.margin) for good, bad in pairs) / len(pairs)


def sft(loss: SFT, replies: list[Reply], counts: list[int]) -> Any:
    """The mean cross-entropy of a token."""
    return -torch.cat([reply.policy for reply in replies]).mean()


def reinforce(loss: PolicyGradient, replies: list[Reply], counts: list[int]) -> Any:
    """Minus the mean of advantages times log-probabilities, whose gradient is Williams's."""
    return -sum(reply.weight * reply.policy.sum() for reply in replies) / sum(counts)


def clipped(loss: Clipped, replies: list[Reply], counts: list[int]) -> Any:
    """Equation 7 of Schulman et al. (2017), token by token, with k3."""
    total: Any = 0
    for reply in replies:
        for policy, reference in zip(reply.policy, reply.reference.detach(), strict=True):
            ratio = (policy - SAMPLED).exp()
            kept = ratio.clamp(1 - loss.low, 1 + loss.high)
            total = total - torch.minimum(ratio * reply.weight, kept * reply.weight)
            total = total + loss.kl * ((reference - policy).exp() - (reference - policy) - 1)
    return total / sum(counts)


FORMULAS: dict[type, Callable[[Any, list[Reply], list[int]], Any]] = {
    DPO: dpo,
    IPO: ipo,
    SimPO: simpo,
    SFT: sft,
    PolicyGradient: reinforce,
    Clipped: clipped,
}
SAMPLED = -2.5  # the log-probability that every token was recorded with


def log_probabilities(model: Any, prompt: list[int], reply: list[int]) -> Any:
    """Of the reply's tokens after the prompt, with their gradients."""
    logits = model(torch.tensor([prompt + reply])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1)[range(len(reply)), reply]


def gradients(model: Any) -> dict[str, Any]:
    """The gradients by the names of the weights."""
    return {name: w.grad.clone() for name, w in model.named_parameters() if w.requires_grad}


def difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The norm of the difference of two gradients, relative to that of the first."""
    assert one.keys() == other.keys()
    assert one
    norm = sum(float((grad**2).sum()) for grad in one.values()) ** 0.5
    assert norm > 1e-3
    return sum(float(((grad - other[name]) ** 2).sum()) for name, grad in one.items()) ** 0.5 / norm


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_gpt2(tmp_path_factory.mktemp("gpt2"))


@pytest.fixture(scope="module")
def lineage(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two LoRAs of large random weights, "first" and "second"."""
    run = tmp_path_factory.mktemp("run")
    job = replace(make_job(llama), rows=make_rows("one tree", DPO()))
    for seed, name in enumerate(("first", "second")):
        lora = load_job(job, JobFiles(run, name)).model
        torch.manual_seed(seed)
        for weight in lora.parameters():
            if weight.requires_grad:
                weight.data = torch.randn_like(weight) * 0.1
        lora.save_pretrained(run / "adapters" / name)
    return run


HELD_OUT = tuple(preference(*pair) for pair in tree("unseen", 3))
BY_TRL: dict[str, Loss] = {
    "dpo": DPO(beta=0.5),
    "dpo with sft": DPO(beta=0.5, sft_weight=0.25),
    "ipo": IPO(beta=0.5),
    "sft": SFT(),
}
LOSSES: dict[str, Loss] = {
    **BY_TRL,
    "simpo": SimPO(),
    "policy gradient": PolicyGradient(),
    "clipped": Clipped(low=0.1, kl=0.3),
}


def make_case(
    model: Path, run: Path, method: str, shape: str, use_lora: bool, dtype: "torch.dtype"
) -> Case:
    job = replace(
        make_job(model),
        rows=make_rows(shape, LOSSES[method]),
        use_lora=use_lora,
        loss=LOSSES[method],
    )
    return Case(job, run, dtype)


def combined(*axes: Iterable[Any], fast: Callable[..., bool]) -> list[Any]:
    """All combinations; `make test` runs those of which `fast` is true."""
    return [
        pytest.param(*values, marks=() if fast(*values) else pytest.mark.exhaustive)
        for values in product(*axes)
    ]


@pytest.mark.parametrize(
    ("shape", "reading", "method", "use_lora"),
    combined(
        SHAPES,
        READINGS,
        BY_TRL,
        [True, False],
        fast=lambda shape, reading, method, use_lora: (
            (method == "dpo" and use_lora) or (shape, reading) == ("ragged trees", "blocks")
        ),
    ),
)
def test_losses_and_gradients_are_those_of_trl(
    llama: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    shape: str,
    use_lora: bool,
    reading: str,
) -> None:
    read_as(reading, monkeypatch)
    case = make_case(llama, tmp_path, method, shape, use_lora, torch.float32)
    (loss, expected), (packed_loss, packed) = case.by_trl(), case.packed()
    assert packed_loss == pytest.approx(loss, rel=1e-5)
    assert difference(expected, packed) < 1e-5


@pytest.mark.parametrize(
    ("reading", "method", "use_lora"),
    combined(
        READINGS,
        LOSSES,
        [True, False],
        fast=lambda reading, method, use_lora: use_lora or reading == "blocks",
    ),
)
def test_in_double_precision_nothing_is_left_of_the_difference(
    gpt2: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    use_lora: bool,
    reading: str,
) -> None:
    """To plain torch, one reply after the other: trl's own losses are of single precision."""
    read_as(reading, monkeypatch)
    case = make_case(gpt2, tmp_path, method, "ragged trees", use_lora, torch.float64)
    (loss, expected), (packed_loss, packed) = case.by_torch(), case.packed()
    assert packed_loss == pytest.approx(loss, rel=1e-10)
    assert difference(expected, packed) < 1e-10


def test_a_large_model_computes_its_activations_again_and_trains_alike(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_as("blocks", monkeypatch)
    expected = make_case(llama, tmp_path, "dpo", "ragged trees", True, torch.float32).by_trl()
    monkeypatch.setattr(weights, "LARGE", 1000)
    case = make_case(llama, tmp_path, "dpo", "ragged trees", True, torch.float32)
    assert case.loaded.model.is_gradient_checkpointing
    for loss, gradient in (case.packed(), case.by_trl()):
        assert loss == pytest.approx(expected[0], rel=1e-5)
        assert difference(expected[1], gradient) < 1e-5


def sibling_visible(packed: Packed) -> Packed:
    """Every token sees all that stand before it, as in one text."""
    return packed._replace(ends=np.full_like(packed.ends, len(packed.ends)))


def one_sibling_visible(packed: Packed) -> Packed:
    """The first token with siblings is seen by one of them."""
    first = next(k for k, end in enumerate(packed.ends) if end < len(packed.ends))
    ends = packed.ends.copy()
    ends[first] += 1
    return packed._replace(ends=ends)


def position_off_by_one(packed: Packed) -> Packed:
    """The first reply stands one place too far."""
    positions = packed.positions.copy()
    positions[packed.replies[0][0]] += 1
    return packed._replace(positions=positions)


def loss_from_its_own_place(packed: Packed) -> Packed:
    """A token is predicted where it stands instead of at its parent."""
    return packed._replace(parents=np.arange(len(packed.tokens)))


@pytest.mark.parametrize(
    "mutate",
    [
        sibling_visible,
        one_sibling_visible,
        position_off_by_one,
        loss_from_its_own_place,
    ],
)
@pytest.mark.parametrize(
    ("method", "reading"),
    combined(
        ["dpo", "sft"],
        ["whole", "blocks"],
        fast=lambda method, reading: (method == "dpo") == (reading == "blocks"),
    ),
)
def test_a_wrong_mask_position_or_loss_would_show(
    llama: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mutate: Callable[[Packed], Packed],
    reading: str,
    method: str,
) -> None:
    """The comparisons above fail by far if a forest is read wrongly."""
    read_as(reading, monkeypatch)
    case = make_case(llama, tmp_path, method, "ragged trees", True, torch.float32)
    (loss, expected), real = case.by_trl(), packing.pack

    def pack(*arguments: Any) -> tuple[Packed, ...]:
        return tuple(mutate(packed) for packed in real(*arguments))

    monkeypatch.setattr(packed_training, "pack", pack)
    packed_loss, packed = case.packed()
    assert abs(packed_loss - loss) > 1e-6 * loss
    assert difference(expected, packed) > 1e-4


def do(job: Job, run: Path, *, packed: bool) -> tuple[Trained, str]:
    """A whole training in this process, and what it prints."""
    files = JobFiles(run, job.name)
    write_job(files, job)
    printed = io.StringIO()
    with redirect_stdout(printed):
        done = train.train_job(job, files, threads=1, plain=not packed)
    assert done is not None
    return done, printed.getvalue()


@pytest.mark.parametrize("method", BY_TRL)
def test_a_whole_training_ends_where_trls_does(llama: Path, tmp_path: Path, method: str) -> None:
    job = replace(
        make_job(llama),
        rows=make_rows("ragged trees", LOSSES[method]),
        loss=LOSSES[method],
        learning_rate=1e-2,
        batch_size=5,
        num_epochs=3,
    )
    (packed, told), (plain, reason) = (
        do(job, tmp_path, packed=is_packed) for is_packed in (True, False)
    )
    assert "step 9/9: loss " in told
    assert "each row is trained on by itself, by trl: as asked for" in reason
    for one, other in zip(packed.scores, plain.scores, strict=True):
        assert one.after == pytest.approx(other.after, abs=1e-3)
    assert dict(canary_metrics(packed.scores, (0.0,) * len(packed.scores)))["canary_shift"] > 0.01
    unseen = encode_rows(load_tokenizer(llama), HELD_OUT, None).rows
    held_out = [plain_scores(one.model, unseen) for one in (packed, plain)]
    for one, other in zip(*held_out, strict=True):
        for reply, same in zip(one, other, strict=True):
            assert reply.sum() == pytest.approx(same.sum(), abs=1e-3)
    report, expected = dict(packed.report), dict(plain.report)
    assert report.keys() == expected.keys()
    forwarded, tokens = report.pop("forwarded_tokens"), expected.pop("forwarded_tokens")
    assert tokens == report["train_tokens"]
    assert forwarded < tokens / 2
    for name, value in report.items():
        assert value == pytest.approx(expected[name], rel=1e-3, abs=1e-4), name


@pytest.mark.parametrize(
    ("score", "use_lora", "reference", "start"),
    combined(
        [token_scores, plain_scores],
        [True, False],
        [None, "first", "second"],
        [None, "first", "second"],
        fast=lambda score, use_lora, reference, start: score is token_scores or start == "first",
    ),
)
def test_the_reference_is_the_policy_that_the_job_names(
    llama: Path,
    lineage: Path,
    monkeypatch: pytest.MonkeyPatch,
    start: Any,
    reference: Any,
    use_lora: bool,
    score: Any,
) -> None:
    """Whether it is the model before its training, its base, or that with another LoRA.

    No second copy of the base is loaded but where the training changes the base itself.
    """
    job = replace(
        make_job(llama),
        name="third-0",
        rows=make_rows("one tree", DPO()),
        start=start,
        reference=reference,
        use_lora=use_lora,
    )
    loaded = load_job(job, JobFiles(lineage, job.name))
    before = state_of(loaded.model)
    with monkeypatch.context() as patch:
        if use_lora:
            patch.delattr("nip_fn_adapters.providers.local.reference.load_reference")
        scores = reference_scores(job, loaded, score)
    assert state_of(loaded.model) == before
    named = load_model(loaded.folders.base, loaded.folders.reference).eval()
    for row, replies in zip(loaded.encoded.rows, scores, strict=True):
        for reply, values in zip(row.replies, replies, strict=True):
            expected = token_log_probabilities(named, row.prompt, reply)
            assert values == pytest.approx(expected.numpy(), abs=1e-4)


def state_of(model: Any) -> dict[str, tuple[bool, float]]:
    """Of each weight: whether it is trained, and the sum of its squares."""
    return {
        name: (weight.requires_grad, float((weight**2).sum()))
        for name, weight in model.named_parameters()
    }


def problem_of(model: Any, length: int = 20) -> str:
    """The reason why a model cannot be trained on packed rows of that length."""
    rows = [
        TokenRow([1, 2, 3], ([4] * (length - 3), [5] * (length - 3))),
        TokenRow([1, 2, 3, 4], ([6, 2], [7, 2])),
    ]
    return packing_problem(model.eval(), Encoded(rows, [(), ()], [(), ()], [(), ()], length, 0, 0))


def test_models_that_see_all_that_the_mask_shows_them_are_packed(llama: Path, gpt2: Path) -> None:
    assert problem_of(load_base(llama)) == problem_of(load_base(gpt2)) == ""


def test_a_model_that_does_not_hand_on_the_blocks_is_refused(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = attention._attend
    monkeypatch.setattr(
        attention, "_attend", lambda *args, blocks=None, **options: real(*args, **options)
    )
    assert "packed, a token's log-probability differs" in problem_of(load_base(llama))


def test_an_attention_that_was_chosen_is_kept(llama: Path) -> None:
    """A model may need it: that of Gemma 2, for example, is capped, which torch's cannot be."""
    model = load_base(llama)
    model.set_attn_implementation("eager")
    assert "packed" in problem_of(model)  # it adds the mask instead of obeying it
    assert model.config._attn_implementation == "eager"


SMALL = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


def test_models_that_do_not_are_refused_with_a_reason() -> None:
    import transformers as hf

    torch.manual_seed(0)
    window = hf.MistralForCausalLM(
        hf.MistralConfig(**SMALL, num_key_value_heads=2, intermediate_size=32, sliding_window=8)
    )
    assert problem_of(window) == "its attention reaches back 8 tokens only"
    assert problem_of(window, length=8) == ""
    mixed = hf.Qwen2ForCausalLM(
        hf.Qwen2Config(
            **SMALL,
            num_key_value_heads=2,
            intermediate_size=32,
            use_sliding_window=True,
            max_window_layers=1,
        )
    )
    assert problem_of(mixed) == "it has layers without full attention"
    experts = hf.MixtralForCausalLM(
        hf.MixtralConfig(
            **SMALL,
            num_key_value_heads=2,
            intermediate_size=32,
            num_local_experts=2,
            router_aux_loss_coef=0.1,
        )
    )
    assert "experts" in problem_of(experts)
    states = hf.MambaForCausalLM(
        hf.MambaConfig(vocab_size=40, hidden_size=16, num_hidden_layers=2, initializer_range=0.5)
    )
    assert problem_of(states) == "it has layers without full attention"
    by_distance = hf.BloomForCausalLM(
        hf.BloomConfig(vocab_size=40, hidden_size=16, n_layer=2, n_head=2, initializer_range=0.5)
    )
    assert "packed" in problem_of(by_distance)
