"""Training by trl's trainer, every row by itself: for models that cannot read packed rows."""

import math
import os
import shutil
from collections.abc import Iterator
from typing import Any

from nip_fn.training.tuning import Job
from nip_fn_adapters.providers.local.jobs import JobFiles
from nip_fn_adapters.providers.local.loading import LoadedJob
from nip_fn_adapters.providers.local.models import exit_on_failure, is_sharded, precision, require
from nip_fn_adapters.providers.local.progress import progress_writer
from nip_fn_adapters.providers.local.reference import reference_scores
from nip_fn_adapters.providers.local.steps import (
    Batch,
    EndedTraining,
    Figures,
    Step,
    bare,
    log_ratios,
    orders,
    plain_scores,
)
from nip_fn_adapters.providers.local.weights import load_reference


def train_plain(job: Job, files: JobFiles, loaded: LoadedJob) -> EndedTraining:
    """Train by trl's trainer, with the losses of packed training."""
    from transformers import TrainerCallback

    class Follow(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.is_world_process_zero:
                self.write = progress_writer(files, state.max_steps)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any, **_: Any) -> None:
            # The log at the end is a summary without a loss.
            if state.is_world_process_zero and "loss" in logs:
                self.write(state.global_step, float(logs["loss"]))

    exit_on_failure(require("datasets", "trl"))
    trainer = rows_trainer(job, files, loaded)
    trainer.add_callback(Follow())
    trainer.train()
    shutil.rmtree(files.folder / "trainer", ignore_errors=True)
    ratios: tuple[float, ...] = ()
    if trainer.reference is not None:
        model = bare(trainer.accelerator, trainer.model)
        ratios = log_ratios(
            loaded.encoded, trainer.reference, lambda rows: plain_scores(model, rows)
        )
    steps = tuple(trainer.steps)
    return EndedTraining(trainer.model, trainer.model_wrapped, trainer.accelerator, steps, ratios)


def rows_trainer(job: Job, files: JobFiles, loaded: LoadedJob) -> Any:
    """trl's trainer for the job, which computes the job's own loss of the rows of a step."""
    import torch
    from datasets import Dataset
    from torch.nn.utils.rnn import pad_sequence
    from torch.utils.data import Sampler
    from trl import SFTConfig, SFTTrainer

    encoded = loaded.encoded
    epochs = orders(job, encoded)

    class Order(Sampler[int]):  # type: ignore[misc]
        def __len__(self) -> int:
            return len(encoded.rows)

        def __iter__(self) -> Iterator[int]:
            return iter(next(epochs))

    def collate(examples: list[dict[str, int]]) -> dict[str, Any]:
        # The tokens are those that the sampler read and drew.  By itself trl would tokenize whole
        # chats, and train on what the chat template writes after the end token.
        members = [example["row"] for example in examples]
        sequences = [
            torch.tensor(sequence)
            for member in members
            for sequence in encoded.rows[member].sequences
        ]
        # Causal attention: what pads the end of a text is seen by none of its tokens.
        tokens = pad_sequence(sequences, batch_first=True)
        return {"input_ids": tokens, "rows": torch.tensor(members)}

    class RowsTrainer(SFTTrainer):  # type: ignore[misc]
        reference: Any = None

        def _get_train_sampler(self, *args: Any) -> Any:
            return Order()

        def get_train_dataloader(self) -> Any:
            # Called once, before the first step.
            self.steps: list[Step] = []
            if job.loss.reads_reference:
                self.reference = self._reference()
            return super().get_train_dataloader()

        def _reference(self) -> Any:
            with self.accelerator.autocast():  # as in training: equal weights give equal scores
                if not is_sharded():
                    return reference_scores(job, loaded, plain_scores)
                # A model in parts computes only within accelerate, its reference, too.
                folders = loaded.folders
                reference = load_reference(folders.base, folders.reference)
                model = self.accelerator.prepare_model(reference, evaluation_mode=True)
                return plain_scores(model, encoded.rows)

        def compute_loss(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
            members = inputs["rows"].tolist()
            everyone = self.accelerator.gather(inputs["rows"]).tolist()
            batch = Batch.of(encoded, self.reference, everyone)
            logits = model(input_ids=inputs["input_ids"], use_cache=False).logits
            policy, are_likeliest = _reply_scores(logits, inputs["input_ids"], encoded, members)
            scores = batch.scores([everyone.index(member) for member in members], policy)
            loss, *rest = batch.figures(job.loss, scores, are_likeliest)
            figures = torch.stack([loss.detach().double(), *rest])
            figures = self.accelerator.reduce(figures, "sum").tolist()
            read = sum(len(s) for member in everyone for s in encoded.rows[member].sequences)
            # In fractions of a step: rounding must not add the last step of an epoch to the next.
            epoch = math.floor(self.state.epoch + 1e-6)
            self.steps.append(Step(epoch, read, read, Figures(*figures)))
            # Accelerate takes the mean over the processes; the loss is a sum over them.
            return loss * self.accelerator.num_processes

    has_gpu, numbers = torch.cuda.is_available(), precision()
    # Otherwise accelerate's own configuration would decide, for the options that are not set below.
    os.environ["ACCELERATE_MIXED_PRECISION"] = numbers
    return RowsTrainer(
        model=loaded.model,
        args=SFTConfig(
            output_dir=str(files.folder / "trainer"),
            learning_rate=job.learning_rate,
            num_train_epochs=job.num_epochs,
            per_device_train_batch_size=job.batch_size,
            seed=job.seed,
            use_cpu=not has_gpu,
            bf16=numbers == "bf16",
            fp16=numbers == "fp16",
            gradient_checkpointing=False,
            dataloader_pin_memory=has_gpu,
            dataset_kwargs={"skip_prepare_dataset": True},
            remove_unused_columns=False,
            logging_steps=1,
            # The filter would hide the very losses that tell of a divergence.
            logging_nan_inf_filter=False,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_dict({"row": range(len(encoded.rows))}),
        data_collator=collate,
        processing_class=loaded.tokenizer,
    )


def _reply_scores(logits: Any, tokens: Any, encoded: Any, members: list[int]) -> tuple[Any, Any]:
    """`[T]` log-probabilities of the tokens of the members' replies, and if none was likelier."""
    import torch

    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    policy, are_likeliest, sequence = [], [], 0
    for member in members:
        prompt = len(encoded.rows[member].prompt)
        for reply in encoded.rows[member].replies:
            here = logits[sequence, prompt - 1 : prompt - 1 + len(reply)]
            named = tokens[sequence, prompt : prompt + len(reply)]
            chosen = here.gather(1, named[:, None])[:, 0]
            policy.append(chosen - here.logsumexp(-1))
            are_likeliest.append(here.detach().argmax(-1) == named)
            sequence += 1
    return torch.cat(policy), torch.cat(are_likeliest)
