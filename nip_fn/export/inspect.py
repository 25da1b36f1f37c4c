"""A stage as a log of Inspect (inspect.aisi.org.uk), without Inspect: dialogues and trees.

A log is a zip archive of JSON files: `header.json`, `summaries.json`, and a file for each sample.
A tree is one sample.  Its main line goes to the child that is worth most to the verifier at each
node; every other child is a branch, anchored at its parent.  Written for the format of version 2,
read by Inspect 0.3.285.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from nip_fn.game.chat import Chat, plain
from nip_fn.game.decision import ACCEPT, NO_DECISION, REJECT
from nip_fn.game.episode import Utterance
from nip_fn.metrics.stage import verdict
from nip_fn.run.replay import AnnotatedTree, StageForest, annotate
from nip_fn.trees.rollouts import dialogue_of
from nip_fn.trees.tree import ROOT

Json = dict[str, Any]
FORMAT_VERSION = 2  # of the format


def inspect_log(stage: StageForest, run: str, digest: str) -> dict[str, Json | list[Json]]:
    """The files of the log of a stage, by name.

    Args:
        stage: The test or the iteration.
        run: The name of its run.
        digest: The digest of the run, which the log carries.
    """
    params, epochs = stage.params, dict[str, int]()
    samples = []
    for index in range(len(stage.batch.trees)):
        id = stage.datapoint(index).id
        epochs[id] = epochs.get(id, 0) + 1
        samples.append(_sample(stage, index, epochs[id]))
    about = {
        "created": _time(0),
        "task": f"nip-fn/{run}/{stage.stage}-{stage.iteration}",
        "dataset": {
            "name": params.dataset,
            "samples": len(epochs),
            "sample_ids": list(epochs),
        },
        "model": ", ".join(dict.fromkeys(agent.model_name for agent in params.agents)),
        "config": {"epochs": max(epochs.values(), default=1)},
        "metadata": {
            "protocol": params.interaction_protocol,
            "trainer": params.trainer,
            "seed": params.seed,
            "digest": digest,
        },
        **{name: _id(digest, stage.stage, stage.iteration, name) for name in _IDS},
    }
    results = {
        "total_samples": len(samples),
        "completed_samples": len(samples),
        "scores": [_score(name, samples) for name in _scores(samples)],
    }
    kept = ("id", "epoch", "input", "target", "scores", "metadata")
    summaries = [
        {
            **{name: sample[name] for name in kept},
            "completed": True,
            "message_count": len(sample["messages"]),
        }
        for sample in samples
    ]
    stats = {"model_usage": _model_usage(event for sample in samples for event in sample["events"])}
    header = {
        "version": FORMAT_VERSION,
        "status": "success",
        "eval": about,
        "results": results,
        "stats": stats,
    }
    return {
        "_journal/start.json": {"version": FORMAT_VERSION, "eval": about, "plan": {}},
        **{f"samples/{sample['id']}_epoch_{sample['epoch']}.json": sample for sample in samples},
        "summaries.json": summaries,
        "header.json": header,
    }


_IDS = ("eval_id", "run_id", "task_id")


def _id(*address: object) -> str:
    return blake2b(repr(address).encode(), digest_size=11).hexdigest()


def _time(seconds: int) -> str:
    # A recording holds no clock for its replies: events are told apart by seconds of an old day.
    hours, rest = divmod(seconds, 3600)
    return f"2000-01-{1 + hours // 24:02}T{hours % 24:02}:{rest // 60:02}:{rest % 60:02}+00:00"


def _scores(samples: list[Json]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for sample in samples for name in sample["scores"]))


def _score(name: str, samples: list[Json]) -> Json:
    """The headline number of a score: the mean, of verdicts the share of right ones.

    Its standard error is that of independent samples, s / √n.
    """
    scored = [sample["scores"][name]["value"] for sample in samples if name in sample["scores"]]
    numbers = [float(value == "C") if isinstance(value, str) else value for value in scored]
    title = "accuracy" if any(isinstance(value, str) for value in scored) else "mean"
    values = {title: fmean(numbers)}
    if numbers[1:]:
        values["stderr"] = stdev(numbers) / sqrt(len(numbers))
    metrics = {key: {"name": key, "value": value} for key, value in values.items()}
    return {"name": name, "scorer": name, "metrics": metrics, "scored_samples": len(numbers)}


# ------------------------------------------------------------------------------------- a sample


class _Events:
    """The events of a sample, each with its place in time."""

    def __init__(self, sample: str) -> None:
        self._sample = sample
        self.recorded: list[Json] = []

    def add(self, event: str, span: str, **fields: Any) -> None:
        """Append an event."""
        number = len(self.recorded)
        self.recorded.append(
            {
                "event": event,
                "uuid": self.id(number),
                "span_id": span,
                "timestamp": _time(number + 1),
                "working_start": float(number),
                "pending": False,
                **fields,
            }
        )

    def id(self, *address: object) -> str:
        """An identifier that follows from the sample."""
        return _id(self._sample, *address)


def _sample(stage: StageForest, index: int, epoch: int) -> Json:
    batch, point = stage.batch, stage.datapoint(index)
    marked = annotate(stage, index)
    names = [agent.name for agent in batch.protocol.agents]
    events = _Events(f"{stage.stage}-{stage.iteration}-{index}")
    solvers, game = events.id("solvers"), events.id("game")
    events.add("span_begin", solvers, id=solvers, parent_id=None, type="solvers", name="solvers")
    events.add("span_begin", game, id=game, parent_id=solvers, type="agent", name="game")
    for _ in _nodes(stage, index, marked, names, events, ROOT, game):
        pass
    events.add("span_end", game, id=game)
    events.add("span_end", solvers, id=solvers)
    main = [
        event for event in events.recorded if event["event"] == "model" and event["span_id"] == game
    ]
    label = dialogue_of(marked.tree, point).label
    task = point.question + (f"\n\n{point.solution}" if point.solution else "")
    return {
        "id": point.id,
        "epoch": epoch,
        "input": task,
        "target": "" if label is None else "accept" if label == ACCEPT else "reject",
        "messages": [{"role": "user", "content": task}, *(_message(event) for event in main)],
        "scores": _values(stage, index, marked, names),
        "metadata": {
            "stage": stage.stage,
            "iteration": stage.iteration,
            "tree": index,
            "views": dict(point.views),
        },
        "model_usage": _model_usage(events.recorded),
        "events": events.recorded,
    }


def _model_usage(events: Iterable[Json]) -> dict[str, dict[str, int]]:
    """The tokens of all replies among the events, failed attempts included, by model."""
    totals: dict[str, Counter[str]] = {}
    for event in events:
        if event["event"] == "model":
            totals.setdefault(event["model"], Counter()).update(event["output"]["usage"])
    return {model: dict(total) for model, total in totals.items()}


def _message(event: Json) -> Json:
    message = event["output"]["choices"][0]["message"]
    return {**message, "content": f"{event['role']}: {message['content']}"}


def _values(
    stage: StageForest, index: int, marked: AnnotatedTree, names: list[str]
) -> dict[str, Json]:
    """The verdict of a dialogue; the expected reward of each agent at the root of a tree."""
    tree, point = marked.tree, stage.datapoint(index)
    scores: dict[str, Json] = {
        f"expected reward of {name}": {"value": float(value)}
        for name, value in zip(names, marked.value_NA[ROOT], strict=True)
    }
    if max(map(len, marked.children_N)) > 1:
        return scores
    dialogue = dialogue_of(tree, point)
    ruling = verdict(dialogue)
    # Inspect's letters for correct, incorrect and no answer.
    value = "N" if ruling == NO_DECISION else "C" if ruling == dialogue.label else "I"
    words = {ACCEPT: "accept", REJECT: "reject"}.get(ruling, "neither")
    answer = "" if ruling == NO_DECISION else words
    return {"verdict": {"value": value, "answer": answer}, **scores}


def _nodes(
    stage: StageForest,
    index: int,
    marked: AnnotatedTree,
    names: list[str],
    events: _Events,
    node: int,
    span: str,
) -> Iterator[None]:
    """Record a node and all below it; the recursion is as deep as a game is long."""
    tree, batch = marked.tree, stage.batch
    for utterance in tree.utterances_N[node]:
        parent = int(tree.parent_N[node])
        chat = batch.prompt(index, parent, utterance.agent)
        events.add("model", span, **_reply(utterance, names[utterance.agent], chat))
    marks, end = marked.marks.get(node, ()), tree.status_N[node]
    if marks or end != "open":
        worth = dict(zip(names, marked.value_NA[node].tolist(), strict=True))
        data = {"node": node, "expected reward": worth, "end": end, "marks": list(marks)}
        events.add("info", span, source="nip-fn", data=data)
    children = marked.children_N[node]
    if children:
        # The verifier is trusted: what is best for it is the line to read first.
        judge = next(i for i, a in enumerate(batch.protocol.agents) if a.role == "verifier")
        best, *siblings = sorted(children, key=lambda child: -marked.value_NA[child][judge])
        anchor = f"node {node}"
        if siblings:
            events.add("anchor", span, anchor_id=anchor, source="nip-fn")
        yield from _nodes(stage, index, marked, names, events, best, span)
        for child in siblings:
            branch = events.id("branch", child)
            name = " ".join((f"node {child}", *marked.marks.get(child, ())))
            events.add("span_begin", branch, id=branch, parent_id=span, type="branch", name=name)
            events.add("branch", branch, from_anchor=anchor)
            yield from _nodes(stage, index, marked, names, events, child, branch)
            events.add("span_end", branch, id=branch)
    yield


def _reply(utterance: Utterance, name: str, chat: Chat) -> Json:
    """A reply with the chat that it was given to, as the call of a model."""
    total = utterance.prompt_tokens + utterance.completion_tokens
    message = {"role": "assistant", "content": utterance.raw, "source": "generate"}
    return {
        "model": utterance.model or "none",
        "role": name,
        "input": plain(chat),
        "tools": [],
        "tool_choice": "none",
        "config": {},
        "output": {
            "model": utterance.model or "none",
            "choices": [
                {
                    "message": message,
                    "stop_reason": "max_tokens" if utterance.token_limit else "stop",
                }
            ],
            "usage": {
                "input_tokens": utterance.prompt_tokens,
                "output_tokens": utterance.completion_tokens,
                "total_tokens": total,
            },
        },
        **({"error": utterance.error} if utterance.error else {}),
    }
