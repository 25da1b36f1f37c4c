"""Transcripts as files, one for each stage: `RUN/transcripts/STAGE-ITERATION.yaml` or `.json`."""

import json
from pathlib import Path
from typing import Any

import yaml

from nip_fn.export.transcripts import transcript
from nip_fn.run.events import Checked, Event, Replied
from nip_fn.run.stages import Growing
from nip_fn.run.state import RunState, sample_batch
from nip_fn.trees.rollouts import leaf_games
from nip_fn_adapters.durable import replace_file

FOLDER = "transcripts"


class TranscriptFiles:
    """An observer of a run that writes the games of a stage once its last reply is recorded."""

    def __init__(self, run: Path) -> None:
        """Write into a folder inside the run's folder."""
        self._folder = run / FOLDER

    def __call__(self, state: RunState, event: Event) -> None:
        """Write the stage's file if this event completed it; `state` is the one after the event."""
        # Once a stage, when its trees are whole: a file for each reply would be written a thousand
        # times, and one that grows would be torn by a crash.
        stage = state.stage
        if (
            not isinstance(event, Replied | Checked)
            or not isinstance(stage, Growing)
            or stage.num_waiting
        ):
            return
        batch = sample_batch(state, stage)
        records = [
            transcript(state.params, rollout)
            for tree in batch.trees
            for rollout in leaf_games(tree, batch.datapoints[tree.datapoint_index])
        ]
        extension = state.params.text_rl.transcript_format
        self._folder.mkdir(exist_ok=True)
        path = self._folder / f"{stage.name}-{state.iteration}.{extension}"
        replace_file(path, written(records, extension).encode())


def written(records: list[dict[str, Any]], extension: str) -> str:
    """The text of a file of transcripts with that extension, "json" or "yaml"."""
    if extension == "json":
        return json.dumps(records, indent=2, ensure_ascii=False) + "\n"
    return str(yaml.dump(records, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100))


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """A dumper that writes texts of several lines as blocks, as a person would."""


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _block)
