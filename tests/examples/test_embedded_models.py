"""The embedded models are small, and their tokenizers lose nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nip_fn_adapters.providers.local.models import embedded_models, load_tokenizer, model_directory

EXAMPLES = Path(__file__).parents[2] / "examples"
TEXTS = (
    "def f(x):\n\tif x < 3 && y > '\"&':\n        return é\n",
    "  two  spaces ",
    "🙂\r\n12345",
)


@pytest.mark.parametrize("model", embedded_models())
def test_the_tokenizer_loses_nothing(model: str) -> None:
    tokenizer = load_tokenizer(model_directory(model).unwrap())
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


@pytest.mark.parametrize("model", embedded_models())
def test_the_model_is_a_few_megabytes(model: str) -> None:
    folder = model_directory(model).unwrap()
    files = [file for file in folder.iterdir() if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 3 * 2**20
    assert (folder / "model.safetensors").is_file()


@pytest.mark.exhaustive
@pytest.mark.parametrize("script", ["make_tea_model.py", "make_bughunt_model.py"])
def test_a_model_is_made_by_one_command(script: str, tmp_path: Path) -> None:
    options = ("--seed", "7", "--steps", "0", "1", "1", "--batch-size", "4")
    command = [sys.executable, EXAMPLES / script, *options, "--out", tmp_path]
    subprocess.run(command, check=True, capture_output=True)
    assert load_tokenizer(tmp_path).decode(load_tokenizer(tmp_path).encode(TEXTS[0])) == TEXTS[0]
    assert (tmp_path / "model.safetensors").is_file()
    made = json.loads((tmp_path / "made.json").read_text())
    assert (made["seed"], made["script"]) == (7, script)


@pytest.mark.parametrize("model", ["builtin:tea", "builtin:tea@3"])
def test_it_is_written_down_how_a_model_of_the_tea_was_made(model: str) -> None:
    made = json.loads((model_directory(model).unwrap() / "made.json").read_text())
    assert (made["game"], made["script"]) == ("tea", "make_tea_model.py")
    assert len(made["steps"]) == 3
