"""The embedded model is warmed up on what the program will show it."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from nip_fn.code.builtin.arithmetic import datapoint_of, examples, split_of
from nip_fn.code.builtin.philox import integers
from nip_fn.config.codec import from_dict
from nip_fn.config.presets import with_preset
from nip_fn.game.datapoint import make_datapoint
from nip_fn.game.episode import Episode, Utterance, reset
from nip_fn.keys import fold_in, key
from nip_fn.prompts.chat import build_chat
from nip_fn_adapters.providers.local.models import BUILTIN, encode_chat, load_tokenizer

PARAMS = from_dict(with_preset({"dataset": "builtin:arithmetic"})).unwrap()
PROVER, VERIFIER = 0, 1
TOLD = ("Question for Expert: Is step 2 right?", "Answer: Step 2 is right, I am sure.")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """examples/make_tiny_model.py as a module."""
    path = Path(__file__).parents[2] / "examples" / "make_tiny_model.py"
    spec = importlib.util.spec_from_file_location("make_tiny_model", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_tiny_model"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("round", [0, 1, 2])
def test_the_warm_up_shows_the_chats_that_the_game_shows(script: ModuleType, round: int) -> None:
    datapoint = datapoint_of(next(examples(integers(key(4)), "train")))
    speakers = (VERIFIER, PROVER)
    episode: Episode = reset(datapoint, key(0))
    turns = tuple(
        (Utterance(speakers[i % 2], text, ((0, text),)),) for i, text in enumerate(TOLD[:round])
    )
    shown = build_chat(
        PARAMS,
        datapoint,
        Episode(key=episode.key, label=episode.label, stance=episode.stance, rounds=turns),
        speakers[round % 2],
    )
    expected = (
        script.prover_chat(datapoint, TOLD[:round])
        if round == 1
        else script.verifier_chat(datapoint, TOLD[:round], 1 - round // 2)
    )
    assert [(said.role, said.content) for said in shown] == [
        (said["role"], said["content"]) for said in expected
    ]


def test_the_warm_up_uses_problems_of_the_training_split_alone(script: ModuleType) -> None:
    from itertools import islice

    draw = integers(fold_in(key(1), "warm-up", "problems"))
    for example in islice(examples(draw, "train"), 200):
        assert split_of(datapoint_of(example).question) == "train"


@pytest.mark.parametrize(
    "text",
    ["def f(x):\n\tif x < 3 && y > '\"&':\n        return é\n", "  two  spaces ", "🙂\r\n12345"],
)
def test_the_tokenizer_loses_nothing(text: str) -> None:
    tokenizer = load_tokenizer(BUILTIN["builtin:tiny"])
    tokens = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(tokens) == text


def test_a_chat_of_the_game_fits_the_model() -> None:
    tokenizer = load_tokenizer(BUILTIN["builtin:tiny"])
    datapoint = make_datapoint("p", "Take x, add 3.", "def f(x):\n    return x + 3", 1)
    chat = build_chat(PARAMS, datapoint, reset(datapoint, key(0)), VERIFIER)
    assert len(encode_chat(tokenizer, chat)) < 512


def test_the_model_is_a_few_megabytes() -> None:
    files = [file for file in BUILTIN["builtin:tiny"].iterdir() if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 6 * 2**20
    assert (BUILTIN["builtin:tiny"] / "model.safetensors").is_file()
