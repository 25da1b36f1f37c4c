"""The reference policy of a training: its log-probabilities, once for the whole job."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nip_fn.training.packing import TokenRow
from nip_fn.training.tuning import Job
from nip_fn_adapters.providers.local.loading import LoadedJob
from nip_fn_adapters.providers.local.models import is_lora
from nip_fn_adapters.providers.local.rows import Floats
from nip_fn_adapters.providers.local.weights import load_reference

ReplyScores = list[tuple[Floats, ...]]  # of each row: the tokens of each reply


def reference_scores(
    job: Job, loaded: LoadedJob, score: Callable[[Any, Sequence[TokenRow]], ReplyScores]
) -> ReplyScores:
    """The scores of all rows under the reference policy that the job names.

    It shares the weights of the model to be trained wherever they hold its base as it is: a second
    copy of the base is loaded only if all weights are trained, or if the base has another adapter
    merged into it, and for no longer than this takes.

    Args:
        job: The job.
        loaded: Its model, not trained yet, and its rows.
        score: A way to score rows with a model.
    """
    model, rows, (base, start, reference) = loaded.model, loaded.encoded.rows, loaded.folders
    if reference == start:
        return score(model, rows)  # equal weights give equal scores
    is_on_base = start is None or (is_lora(start) and not job.stack)
    if job.use_lora and is_on_base and (reference is None or is_lora(reference)):
        with _as_reference(model, reference):
            return score(model, rows)
    return score(load_reference(base, reference), rows)


@contextmanager
def _as_reference(model: Any, reference: Path | None) -> Iterator[None]:
    """The model for the while with the reference's LoRA, or with none, in place of its own."""
    if reference is None:
        with model.disable_adapter():
            yield
        return
    model.load_adapter(reference, "reference")
    model.set_adapter("reference")
    try:
        yield
    finally:
        model.set_adapter("default")
        model.delete_adapter("reference")
