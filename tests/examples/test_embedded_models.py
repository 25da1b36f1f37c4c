"""The embedded models are small, and their tokenizers lose nothing."""

import pytest

from nip_fn_adapters.providers.local.models import BUILTIN, load_tokenizer

TEXTS = (
    "def f(x):\n\tif x < 3 && y > '\"&':\n        return é\n",
    "  two  spaces ",
    "🙂\r\n12345",
)


@pytest.mark.parametrize("model", BUILTIN)
def test_the_tokenizer_loses_nothing(model: str) -> None:
    tokenizer = load_tokenizer(BUILTIN[model])
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


@pytest.mark.parametrize("model", BUILTIN)
def test_the_model_is_a_few_megabytes(model: str) -> None:
    files = [file for file in BUILTIN[model].iterdir() if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 3 * 2**20
    assert (BUILTIN[model] / "model.safetensors").is_file()
