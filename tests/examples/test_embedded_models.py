"""The embedded models are small, and their tokenizers lose nothing."""

import pytest

from nip_fn_adapters.providers.local.models import embedded_models, load_tokenizer, model_directory

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
