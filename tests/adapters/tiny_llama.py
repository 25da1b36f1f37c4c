"""A Llama with random weights and a tokenizer of single characters: a model made in no time."""

from pathlib import Path
from string import ascii_lowercase
from typing import Any

from nip_fn.game.chat import Chat, Message
from nip_fn.keys import fold_in, key
from nip_fn.run.request import Request

CONTEXT = 256
SPECIAL = ["<pad>", "<bos>", "<end>", "<system>", "<user>", "<assistant>"]
CHARACTERS = [*ascii_lowercase, " ", "\n", ".", "?", ":", "0", "1", "2"]
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m['content'] == 'refuse' %}{{ raise_exception('I refuse') }}{% endif %}"
    "<{{ m['role'] }}>{{ m['content'] }}{{ eos_token }}{{ '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def make_tiny_llama(folder: Path, seed: int = 0) -> Path:
    """Save the model to `folder`; as in many chat templates, a line end follows every turn."""
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *CHARACTERS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<end>",
        additional_special_tokens=SPECIAL[3:],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=0.3,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def chat(text: str) -> Chat:
    """A system prompt and one user turn."""
    return (Message("system", "be good."), Message("user", text))


def ask(
    model: Path,
    text: str,
    *,
    adapter: str | None = None,
    num_replies: int = 4,
    seed: int = 0,
    temperature: float | None = 1.0,
    top_p: float | None = None,
    repetition_penalty: float | None = None,
    max_tokens: int = 24,
) -> Request:
    """A request for replies to `text`; the keys depend on the text and the seed."""
    place = fold_in(key(seed), text)
    return Request(
        model=str(model),
        adapter=adapter,
        chat=chat(text),
        keys=tuple(fold_in(place, i) for i in range(num_replies)),
        temperature=temperature,
        top_p=top_p,
        repetition_penalty=repetition_penalty,
        max_tokens=max_tokens,
        agent="verifier",
        is_verifier=True,
        headers=(),
        decisions=(),
    )
