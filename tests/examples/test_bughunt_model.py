"""The scripted players from which the model of the bug hunt is warmed up."""

import importlib
import re
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from nip_fn.game.decision import SPECTRA
from nip_fn.game.reply import find_decision
from nip_fn.worlds.bughunt import CHECK, NUM_STEPS, VIEW, compared, split_of

EXAMPLES = Path(__file__).parents[2] / "examples"
STEP = re.compile(r"\b[a-j][0-9]\b")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """examples/make_bughunt_model.py as a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)
        return importlib.import_module("make_bughunt_model")


def turns(script: ModuleType, habits: str) -> list[Any]:
    return [*islice(script.lessons(1, getattr(script, habits), [NUM_STEPS]), 400)]


@pytest.mark.parametrize("habits", ["ABLE", "CARELESS"])
def test_no_step_that_is_held_out_is_in_the_warm_up(script: ModuleType, habits: str) -> None:
    for turn in turns(script, habits):
        texts = [*(message["content"] for message in turn.chat), turn.reply]
        steps = [step for text in texts for step in STEP.findall(text)]
        assert steps
        assert {split_of(step) for step in steps} == {"train"}


@pytest.mark.parametrize("habits", ["ABLE", "CARELESS"])
def test_the_verifiers_checks_follow_the_program_whatever_it_is_told(
    script: ModuleType, habits: str
) -> None:
    checks, lies = 0, 0
    for turn in turns(script, habits):
        if "You are Verifier" not in turn.chat[0]["content"]:
            continue
        shown = turn.chat[0]["content"].partition(VIEW)[2].split()
        pairs = zip(shown[1::3], shown[2::3], strict=True)
        true = {compared(place, asked, done) for place, (asked, done) in enumerate(pairs)}
        said = [found[0] for found in CHECK.finditer(turn.reply)]
        assert set(said) <= true
        assert find_decision(turn.reply, "accept_reject").unwrap() in SPECTRA["accept_reject"]
        told = turn.chat[1]["content"]
        checks += len(said)
        lies += any(found[0] not in true for found in CHECK.finditer(told))
    assert checks > 20
    assert lies > 0


def test_an_able_verifier_makes_one_check_and_decides_by_it(script: ModuleType) -> None:
    rng = script.numpy_generator(script.key(1))
    for world in islice(script.worlds(script.key(2), "train"), 50):
        told = script.prover_reply(rng, world, script.ABLE, critic=True)
        reply = script.verifier_reply(rng, world, script.ABLE, told)
        (check,) = CHECK.finditer(reply)
        assert reply.endswith("accept" if check[4] == "same" else "reject")
