"""A budget against the provider's own bill: the real command, killed while answers are lost."""

import subprocess
import time
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from nip_fn_adapters.costs.prices import Price, Tokens, cost

from ..provider import Provider
from .conftest import COMMAND

KEY = "sk-of-the-budget-77c1"
PRICE = Price(prompt=1.0, cached=0.25, completion=4.0, training=3.0)
PRICES = "".join(
    f"[{table}.m]\nprompt = 1.0\ncached = 0.25\ncompletion = 4.0\ntraining = 3.0\n"
    for table in ("models", "fine_tuned")
)
# Far more than the budgets below can pay for.
TRAIN = (
    "train", "--provider", "openai", "--model", "m", "--seed", "5", "--iterations", "4",
    "--dataset", "builtin:python", "--prices", "prices.toml",
    "--set", "rl.rollouts_per_iteration=600", "--set", "dataset_options.max_test_size=400",
    "--set", "malt.num_responses_per_timestep=2", "--set", "text_rl.fine_tune_poll_seconds=0.05",
    "--set", "code_validation.system_prompt_version=v1", "--run", "a",
)  # fmt: skip


def losing(fault: str, share: float) -> dict[str, Any]:
    """A share of all answers is billed and lost; of several faults the first that strikes."""
    return {"fault": fault, "match": {"kind": "chat", "share": share}}


TRUNCATED = losing("reset-mid-body", 0.1)
MALFORMED, LOST = losing("malformed", 0.3), losing("lost", 0.3)
GATEWAY = losing("502-after", 0.3)
# One number is drawn for each request, so the second strikes at what the first has left of it.
ALL = (TRUNCATED, losing("malformed", 0.2), LOST, losing("504-after", 0.4))


class Ended(NamedTuple):
    """How a run within a budget ended: its exit code, and the provider's bill as a share of it."""

    returncode: int
    kills: int
    share: float


def spend(
    folder: Path, environment: dict[str, str], budget: float, kills: int, faults: tuple[Any, ...]
) -> Ended:
    """Run the command, kill it that often at random times, and let it end."""
    (folder / "prices.toml").write_text(PRICES)
    random, killed = Random(len(faults)), 0
    settings = {"key": KEY, "latency": [0.0, 0.1], "faults": faults, "reply_words": [40, 110]}
    with Provider(**settings) as provider:
        where = ("--base-url", provider.url, "--budget", str(budget))
        while True:
            begun = (folder / "runs/a/checkpoint.msgpack").exists()
            command = ("train", "--resume", *TRAIN[-2:]) if begun else TRAIN
            process = subprocess.Popen(
                [COMMAND, *command, *where],
                cwd=folder,
                env={**environment, "OPENAI_API_KEY": KEY},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            before = provider.counters()["requests"]
            while process.poll() is None and provider.counters()["requests"] == before:
                time.sleep(0.02)
            try:
                limit = random.uniform(0.0, 0.8) if killed < kills else 300.0
                _, told = process.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                killed += 1
                continue
            # Too many answers in a row may be lost for one request, and end a session.
            if process.returncode != 9:
                assert process.returncode in (0, 11), told.decode()
                break
        deadline = time.monotonic() + 5
        while provider.counters()["in_flight"] and time.monotonic() < deadline:
            time.sleep(0.05)
        return Ended(process.returncode, killed, bill(provider) / budget)


def bill(provider: Provider) -> float:
    """The dollars for all that the provider did, whether or not it was received."""
    told = provider.counters()
    names = ("prompt_tokens", "cached_tokens", "completion_tokens")
    trained = sum(job["_"]["tokens"] for job in provider.jobs() if not job["_"]["invalid"])
    return cost(Tokens(*(told[name] for name in names), trained=trained), PRICE) or 0.0


@pytest.mark.parametrize(
    ("budget", "kills", "faults"),
    [
        (0.02, 1, ALL),
        *(
            pytest.param(2.0, kills, faults, marks=pytest.mark.exhaustive)
            for kills, faults in [
                (0, ()),
                (10, (TRUNCATED,)),
                (10, (MALFORMED,)),
                (10, (LOST,)),
                (10, (GATEWAY,)),
            ]
        ),
    ],
)
def test_no_bill_exceeds_the_budget(
    tmp_path: Path,
    environment: dict[str, str],
    budget: float,
    kills: int,
    faults: tuple[Any, ...],
) -> None:
    ended = spend(tmp_path, environment, budget, kills, faults)
    print(f"budget {budget}, {kills} kills, {len(faults)} kinds of faults: {ended}")
    assert ended.returncode == 11
    # What a kill puts at risk counts as spent, so that a budget may be used up before the last one.
    assert min(kills, 3) <= ended.kills <= kills
    assert (0.0 if kills else 0.9) < ended.share <= 1.0
