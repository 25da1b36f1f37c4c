"""A run's card for the Hugging Face hub: what it is, what came of it, and how to check that."""

import json
from collections.abc import Iterator

from nip_fn.export.curves import accuracy_curve, percent
from nip_fn.export.visible import visible
from nip_fn.params.run import HyperParameters
from nip_fn.run.digest import digest
from nip_fn.run.replay import Replayed

PLACE = "ORG/NAME"  # in commands, until the repository has a name


def model_card(name: str, replayed: Replayed, *, version: str, repository: str = PLACE) -> str:
    """The README.md of a repository that holds a run.

    Args:
        name: Of the run.
        replayed: The run, derived from its recording.
        version: Of nip-fn, that writes the card.
        repository: The repository.
    """
    state = replayed.state
    lineage = [(group, adapter) for group in state.groups for adapter in group.lineage]
    return "\n".join(
        (
            *_header(state.params, adapted=bool(lineage)),
            f"# {_inert(name)}",
            "",
            f"{_code(state.params.trainer)} of {_code(state.params.interaction_protocol)} on "
            f"{_code(state.dataset.name)}, recorded by nip-fn and written by its version "
            f"{version}. `checkpoint.msgpack` is the whole run: every reply, tree, selection and "
            "training, from which everything else here is derived.",
            "",
            "## What came of it",
            "",
            "| iteration | held-out accuracy | 95 % interval |",
            "|---|---|---|",
            *(
                f"| {point.x:g} | {percent(point.y)} | {percent(point.low or 0)} to "
                f"{percent(point.high or 0)} |"
                for point in accuracy_curve(state).points
            ),
            "",
            f"Digest: `{digest(state)}`. `nip-fn replay` derives the run again and compares it.",
            "",
            *(("## Adapters", "") if lineage else ()),
            *(
                f"- `adapters/{adapter.name}`: {adapter.loss} of {_code(group.name)} in "
                f"iteration {adapter.iteration}, on {_code(group.model)}, from "
                f"{_code(adapter.parent or 'the base')}"
                for group, adapter in lineage
            ),
            *(("",) if lineage else ()),
            "## How to use it",
            "",
            f"    nip-fn pull {repository} --run {_code(name)[1:-1]}",
            f"    nip-fn show {_code(name)[1:-1]}",
            "",
            "`data/` has the games, rounds, preference pairs, metrics and usage as tables, and the "
            "training rows as TRL takes them. `config.toml` is the configuration.",
            "",
        )
    )


def _header(params: HyperParameters, *, adapted: bool) -> Iterator[str]:
    """The metadata, which the hub reads as YAML, of which JSON is a part."""
    models = dict.fromkeys(agent.model_name for agent in params.agents)
    # Of the hub's own form; a folder, or an API's model, is nothing that it could link to.
    hosted = [name for name in models if name.count("/") == 1 and not name.startswith((".", "/"))]
    names = ("nip-fn", "prover-verifier-game", params.interaction_protocol, params.trainer)
    yield "---"
    if hosted:
        yield f"base_model: {json.dumps(hosted)}"
    if adapted:
        yield "library_name: peft"
    yield f"tags: {json.dumps(names)}"
    yield "---"


def _code(text: str) -> str:
    """A text as code, whatever it is."""
    return f"`{_inert(text).replace('`', chr(39))}`"


def _inert(text: str) -> str:
    return " ".join(visible(text).replace("<", "‹").replace("|", "¦").split())
