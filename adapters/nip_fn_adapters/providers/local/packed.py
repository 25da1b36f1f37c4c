"""Training on packed rows (`nip_fn.training.packing`): the model reads every shared token once.

The steps are trl's: AdamW, a rate that falls linearly to zero, gradients clipped to a norm of 1,
`batch_size` rows for each process.  One thing differs, and not in expectation: a token that several
rows share has one draw of LoRA's dropout.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from nip_fn.training.packing import Packed, TokenRow, pack
from nip_fn.training.tuning import Job
from nip_fn_adapters.providers.local.attention import attend_in_blocks, attention_inputs, in_blocks
from nip_fn_adapters.providers.local.jobs import JobFiles
from nip_fn_adapters.providers.local.loading import LoadedJob
from nip_fn_adapters.providers.local.models import (
    FULL_ATTENTION,
    context_of,
    first_line,
    is_sharded,
    precision,
)
from nip_fn_adapters.providers.local.progress import progress_writer
from nip_fn_adapters.providers.local.reference import reference_scores
from nip_fn_adapters.providers.local.rows import Encoded, Floats
from nip_fn_adapters.providers.local.steps import (
    Batch,
    EndedTraining,
    Figures,
    Step,
    bare,
    batches,
    log_ratios,
    plain_scores,
)

MAX_TOKENS = 2048  # of a forest: memory grows with it
MAX_NORM = 1.0
# A packed token may differ by this many nats: far above rounding, far below what a mask that the
# model does not obey would do.  In 16 bits, with which single tokens differ by a tenth and more, it
# is the mean that may.
EXACT_NATS, COARSE_NATS = 1e-3, 0.05


class TokenScores(NamedTuple):
    """The tokens of a forest's replies, one reply after the other."""

    log_probabilities: Any  # [T], in nats
    are_likeliest: Any  # [T], True where no token is likelier


def score(model: Any, packed: Packed) -> TokenScores:
    """The tokens of a forest's replies; only the logits that predict them are computed."""
    import torch

    device = next(model.parameters()).device

    def tensor(array: Any) -> Any:
        return torch.as_tensor(array, device=device)

    nodes = np.concatenate([reply for row in packed.replies for reply in row])
    sources, index = np.unique(packed.parents[nodes], return_inverse=True)
    logits = model(
        input_ids=tensor(packed.tokens)[None],
        position_ids=tensor(packed.positions)[None],
        **attention_inputs(model, packed, device),
        logits_to_keep=tensor(sources),
        use_cache=False,
    ).logits[0]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    index, named = tensor(index), tensor(packed.tokens[nodes])
    return TokenScores(
        logits[index, named] - logits.logsumexp(-1)[index],
        logits.detach().argmax(-1)[index] == named,
    )


def forests(model: Any, rows: Sequence[TokenRow]) -> tuple[Packed, ...]:
    """The rows packed for the model: in small forests if each token meets all of its forest."""
    # A layer's matrices take about 24 · hidden² operations a token, its attention 4 · hidden for
    # each token that it meets, which processors do more slowly, by a half.
    hidden = getattr(model.config.get_text_config(), "hidden_size", None)
    # In blocks it meets its ancestors, in forests of any size: few large ones save start-up.
    return pack(rows, MAX_TOKENS, 1 / (4 * hidden) if hidden and not in_blocks(model) else 0.0)


def _scores(model: Any, rows: Sequence[TokenRow]) -> list[tuple[Floats, ...]]:
    """As `token_scores`, of a model that may have been loaded for it alone."""
    return token_scores(attend_in_blocks(model), rows)


def token_scores(model: Any, rows: Sequence[TokenRow]) -> list[tuple[Floats, ...]]:
    """The log-probability of each token of each row's replies, without gradients."""
    import torch

    by_row: dict[int, tuple[Floats, ...]] = {}
    model.eval()
    for packed in forests(model, rows):
        with torch.no_grad():
            scores = score(model, packed).log_probabilities.double().cpu().numpy()
        start = 0
        for row, replies in zip(packed.rows, packed.replies, strict=True):
            ends = start + np.cumsum([len(reply) for reply in replies])
            by_row[row] = tuple(np.split(scores[start : ends[-1]], ends[:-1] - start))
            start = ends[-1]
    return [by_row[row] for row in range(len(rows))]


def packing_problem(model: Any, encoded: Encoded) -> str:
    """The reason why the model cannot be trained on packed rows; "" if it can.

    Some rows are scored both ways, since not all models obey the mask and the positions given.
    """
    import torch

    config = model.config.get_text_config()
    layer_types, window = (
        getattr(config, "layer_types", None),
        getattr(config, "sliding_window", None),
    )
    if any(layer_type != FULL_ATTENTION for layer_type in layer_types or ()):
        return "it has layers without full attention"
    if layer_types is None and window is not None and window < encoded.max_length:
        return f"its attention reaches back {window} tokens only"
    if hasattr(config, "output_router_logits") and config.router_aux_loss_coef:
        return "its experts have a loss of their own, which depends on how often a token is read"
    if is_sharded():
        return "it is trained in parts on several devices"
    attend_in_blocks(model)
    sample = encoded.rows[:2] + encoded.rows[-1:]  # the first two are of one tree, as a rule
    try:
        packed = token_scores(model, sample)
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        return f"it does not take packed rows: {first_line(error)}"
    gaps = np.concatenate(
        [
            np.abs(packed_score - plain_score)
            for scores in zip(packed, plain_scores(model, sample), strict=True)
            for packed_score, plain_score in zip(*scores, strict=True)
        ]
    )
    is_coarse = model.dtype in (torch.bfloat16, torch.float16)
    gap, allowed = (gaps.mean(), COARSE_NATS) if is_coarse else (gaps.max(initial=0.0), EXACT_NATS)
    if not gap <= allowed:
        return f"packed, a token's log-probability differs by {gap:.2g} nats"
    return ""


def reads_forests(model: Any) -> bool:
    """True if the model scores a small forest as it does its rows, one by one, and in blocks.

    With a mask of all pairs instead, a large batch would take gigabytes.
    """
    rows = [TokenRow([0, 1], ([2, 3, 1], [3, 2])), TokenRow([0, 1, 2], ([2], [0]))]
    encoded = Encoded(rows, [(), ()], [(), ()], [(), ()], context_of(model) or sys.maxsize, 0, 0)
    return not packing_problem(model, encoded) and in_blocks(model)


def train_packed(job: Job, files: JobFiles, loaded: LoadedJob) -> EndedTraining:
    """Train on packed rows."""
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(mixed_precision=precision(), cpu=not torch.cuda.is_available())
    rows, model = loaded.encoded.rows, loaded.model
    with accelerator.autocast():  # as in training: equal weights give equal scores
        reads_reference = job.loss.reads_reference
        reference = reference_scores(job, loaded, _scores) if reads_reference else None
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, job.learning_rate, weight_decay=0.0, fused=True)
    wrapped, optimizer = accelerator.prepare(model.train(), optimizer)
    size = job.batch_size * accelerator.num_processes
    number, steps = job.num_epochs * -(-len(rows) // size), list[Step]()
    follow = progress_writer(files, number) if accelerator.is_main_process else None
    for step, (epoch, members) in enumerate(batches(job, loaded.encoded, size)):
        for group in optimizer.param_groups:
            group["lr"] = job.learning_rate * (1 - step / number)
        batch = Batch.of(loaded.encoded, reference, members)
        figures, forwarded = backward(job, wrapped, accelerator, batch)
        accelerator.clip_grad_norm_(weights, MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
        tokens = sum(len(sequence) for row in batch.rows for sequence in row.sequences)
        steps.append(Step(epoch, tokens, forwarded, figures))
        if follow is not None:
            values = ", ".join(f"{name} {value:.4g}" for name, value in figures._asdict().items())
            print(f"step {step + 1}/{number}: {values}")
            follow(step + 1, figures.loss)
    ratios: tuple[float, ...] = ()
    if reference is not None:
        trained = bare(accelerator, wrapped)
        with accelerator.autocast():
            ratios = log_ratios(loaded.encoded, reference, partial(token_scores, trained))
    return EndedTraining(model, wrapped, accelerator, tuple(steps), ratios)


def backward(job: Job, model: Any, accelerator: Any, batch: Batch) -> tuple[Figures, int]:
    """Add the gradients of a step's loss to those of the weights.

    Returns:
        The step's figures, and the number of tokens that were forwarded, by all processes.
    """
    import torch

    # The figures, and the tokens.
    total = torch.zeros(len(Figures._fields) + 1, dtype=torch.float64, device=accelerator.device)
    weighted = list(_parts(accelerator.unwrap_model(model), batch, accelerator))
    for index, (packed, rows, weight) in enumerate(weighted):
        # Processes bring their gradients together once a step, with the last forest.
        is_last = index == len(weighted) - 1
        with nullcontext() if is_last else accelerator.no_sync(model):
            scores = score(model, packed)
            figures = batch.figures(
                job.loss, batch.scores(rows, scores.log_probabilities), scores.are_likeliest
            )
            # Accelerate takes the mean over the processes; the loss is a sum over them.
            accelerator.backward(figures[0] * (weight * accelerator.num_processes))
        total[:-1] += weight * torch.stack([figure.detach().double() for figure in figures])
        total[-1] += len(packed.tokens)
    *means, forwarded = accelerator.reduce(total, "sum").tolist()
    return Figures(*means), int(forwarded)


def _parts(model: Any, batch: Batch, accelerator: Any) -> Iterator[tuple[Packed, list[int], float]]:
    """The forests of this process: each with its rows' indices in the batch, and a weight.

    All processes have as many; those that make up the number weigh nothing.
    """
    import torch

    processes, size = accelerator.num_processes, len(batch.rows)
    first, end = (size * (accelerator.process_index + i) // processes for i in (0, 1))
    mine = list(range(first, end))
    packs = forests(model, [batch.rows[row] for row in mine])
    for packed in packs:
        yield packed, [mine[row] for row in packed.rows], 1.0
    if processes > 1:
        number = torch.tensor(len(packs), device=accelerator.device)
        missing = int(accelerator.gather(number[None]).max()) - len(packs)
        (spare,) = forests(model, batch.rows[:1])
        for _ in range(missing):
            yield spare, [0], 0.0
