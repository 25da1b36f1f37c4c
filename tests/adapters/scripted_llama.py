"""A Llama whose weights are a script: whatever it is told, it writes the same reply."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from .tiny_llama import CHAT_TEMPLATE, SPECIAL

SURE = 3.0  # of the weight that leads to the next token


def make_scripted_llama(folder: Path, reply: Sequence[str]) -> Path:
    """Save a model to `folder` that writes these tokens, which are all different, and ends.

    Attention and feed-forward layers add nothing, each token is a direction of its own, and the
    head maps it to its successor.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokens = [*SPECIAL, "?", *reply]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
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
    size = len(tokens) + len(tokens) % 2
    config = LlamaConfig(
        vocab_size=len(tokens),
        hidden_size=size,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config)
    script = [vocabulary["<assistant>"], *(vocabulary[token] for token in reply), 2]
    with torch.no_grad():
        layer = model.model.layers[0]
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(len(tokens), size))
        model.lm_head.weight.zero_()
        for token, successor in pairwise(script):
            model.lm_head.weight[successor, token] = SURE
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
