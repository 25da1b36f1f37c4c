"""The rows of recorded runs, packed: within a pack, a training reads every distinct token once."""

import re

import pytest

from nip_fn.game.chat import Chat
from nip_fn.keys import key
from nip_fn.run.events import CreateJob
from nip_fn.run.state import EMPTY
from nip_fn.run.step import step
from nip_fn.training.packing import TokenRow, pack, tree_order
from nip_fn.training.tuning import Job

from .test_recorded import RECORDINGS, events_of

MALT = [name for name in RECORDINGS if "malt" in name or name.endswith("local.msgpack")]
STEP = 8  # rows


def jobs_of(name: str) -> list[Job]:
    """The trainings of a recorded run."""
    state, jobs = EMPTY, list[Job]()
    for event in events_of(name):
        state, effects = step(state, event)
        jobs += [effect.job for effect in effects if isinstance(effect, CreateJob)]
    return jobs


def tokens_of(job: Job) -> list[TokenRow]:
    """Its rows as tokens: words, and what is between them."""
    numbers: dict[str, int] = {}

    def encode(text: str) -> list[int]:
        return [numbers.setdefault(word, len(numbers)) for word in re.findall(r"\s+|\w+|.", text)]

    def render(chat: Chat) -> str:
        return "".join(f"<{message.role}> {message.content} <end> " for message in chat)

    rows = []
    for row in job.rows:
        prompt = encode(f"{render(row.prompt)}<assistant> ")
        rows.append(TokenRow(prompt, tuple(encode(f"{reply} <end>") for reply in row.replies)))
    return rows


def distinct(rows: list[TokenRow]) -> int:
    """The number of distinct tokens in their places, counted one by one in a trie."""
    root: dict[int, dict] = {}  # type: ignore[type-arg]
    count = 0
    for row in rows:
        for sequence in row.sequences:
            node = root
            for token in sequence:
                count += token not in node
                node = node.setdefault(token, {})
    return count


@pytest.mark.parametrize("name", MALT)
def test_each_step_of_a_recorded_training_reads_its_distinct_tokens_once(name: str) -> None:
    jobs = jobs_of(name)
    assert jobs
    for job in jobs:
        rows = tokens_of(job)
        order = tree_order([row.prompt for row in job.rows], key(job.seed))
        tokens = read = 0
        for start in range(0, len(order), STEP):
            members = [rows[row] for row in order[start : start + STEP]]
            (packed,) = pack(members, 10**6)
            assert len(packed.tokens) == distinct(members)
            tokens += sum(len(sequence) for row in members for sequence in row.sequences)
            read += len(packed.tokens)
        print(f"{name} {job.name}: {tokens / read:.2f} tokens of rows for each that is read")
        assert tokens / read > (1.5 if job.loss.name == "dpo" else 1.0)
