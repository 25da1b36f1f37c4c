"""Transcripts as files: `RUN/transcripts/STAGE-ITERATION.yaml` (or `.json`), one a stage."""

import json
from pathlib import Path
from typing import Any

import yaml

from nip_fn.export.transcripts import transcript
from nip_fn.protocols.registry import protocol_of
from nip_fn.run.events import Event, Replied
from nip_fn.run.state import RunState, sample_batch_of
from nip_fn.trees.rollouts import leaf_games
from nip_fn_adapters.store import replace_file

FOLDER = "transcripts"


class TranscriptFiles:
    """Follows a run; writes the games of a stage as soon as the last reply is in."""

    def __init__(self, run: Path) -> None:
        """Write into the run's folder."""
        self._folder = run / FOLDER

    def __call__(self, state: RunState, event: Event) -> None:
        """Take note of one event and the state after it."""
        if not isinstance(event, Replied) or state.num_waiting:
            return
        protocol, harvest = protocol_of(state.params), sample_batch_of(state)
        records = [
            transcript(protocol, rollout)
            for index, root in enumerate(harvest.forest)
            for rollout in leaf_games(root, harvest.datapoint(index), harvest.keys[index])
        ]
        kind = state.params.text_rl.transcript_format
        self._folder.mkdir(exist_ok=True)
        path = self._folder / f"{state.stage}-{state.iteration}.{kind}"
        replace_file(path, _written(records, kind).encode())


def _written(records: list[dict[str, Any]], kind: str) -> str:
    if kind == "json":
        return json.dumps(records, indent=2, ensure_ascii=False) + "\n"
    return str(yaml.dump(records, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100))


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Texts of several lines as blocks, as one would write them."""


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _block)
