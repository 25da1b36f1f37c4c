"""Local models: where they lie, how they are loaded, and how a chat becomes tokens.

Importing this module loads none of the heavy packages; calling its functions does.
"""

import os
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from returns.result import Failure, Result, Success

from nip_fn.prompts.chat import Chat
from nip_fn_adapters.local.hub import HUB_ID, hub_model

PACKAGE = Path(__file__).parent.parent
BUILTIN = {"builtin:tiny": PACKAGE / "tiny"}
FULL_ATTENTION = "full_attention"
SHARDING = ("FSDP", "DEEPSPEED")  # how accelerate trains a model in parts on several devices


class Defaults(NamedTuple):
    """What a reply is drawn with where its request leaves that open."""

    temperature: float = 1.0
    top_p: float = 1.0
    repetition_penalty: float = 1.0


class Policy(NamedTuple):
    """A model that is ready to answer, its adapter merged into its weights."""

    model: Any  # a transformers causal language model: float32, in evaluation mode
    tokenizer: Any
    context: int | None  # the tokens it can hold; None: not known
    stops: tuple[int, ...]  # the tokens that end a reply
    defaults: Defaults


def require(*packages: str) -> Result[None, str]:
    """Success where all packages can be imported; otherwise what to install."""
    for package in packages:
        try:
            import_module(package)
        except ImportError:
            return Failure(f'the local model needs {package}: pip install "nip-fn[local]"')
    return Success(None)


def model_directory(name: str) -> Result[Path, str]:
    """The folder of a model: a built-in one, one of the Hugging Face hub, or the folder itself.

    A model of the hub is downloaded where it is not in the hub's cache.
    """
    if is_on_hub(name):
        return hub_model(name)
    path = BUILTIN.get(name) or Path(name).expanduser()
    if (path / "config.json").is_file():
        return Success(path)
    known = ", ".join(BUILTIN)
    return Failure(
        f"{name} is no model: {path} has no config.json "
        f"(a folder, ORG/NAME of the Hugging Face hub, or {known} is meant)"
    )


def is_on_hub(name: str) -> bool:
    """Whether the name can only be that of a model on the Hugging Face hub."""
    return HUB_ID.fullmatch(name) is not None and not Path(name).exists()


def adapter_directory(adapters: Path, name: str | None) -> Result[Path | None, str]:
    """The folder of the adapter `name`: a LoRA, or a whole model; None for the base model."""
    if name is None:
        return Success(None)
    path = adapters / name
    if is_lora(path) or (path / "config.json").is_file():
        return Success(path)
    return Failure(f"there is no adapter {name} in {adapters}")


def is_lora(adapter: Path) -> bool:
    """Whether the adapter is a LoRA; otherwise it is the whole model that a training left."""
    return (adapter / "adapter_config.json").is_file()


def load_policy(model: str, adapters: Path, adapter: str | None) -> Result[Policy, str]:
    """The model with the adapter merged into a copy of its weights; or why it cannot be had."""
    return require("torch", "transformers", "peft").bind(
        lambda _: model_directory(model).bind(
            lambda base: adapter_directory(adapters, adapter).bind(partial(_load, base))
        )
    )


def _load(base: Path, adapter: Path | None) -> Result[Policy, str]:
    try:
        model, tokenizer = load_model(base, adapter), load_tokenizer(base)
    except (OSError, ValueError, RuntimeError) as error:
        return Failure(f"{adapter or base} cannot be loaded: {one_line(error)}")
    if any(kind != FULL_ATTENTION for kind in getattr(model.config, "layer_types", None) or ()):
        return Failure(f"{base} has layers without full attention; serve it with vLLM instead")
    stops, defaults = _stops(model, tokenizer), _defaults(model)
    policy = Policy(model.eval(), tokenizer, context_of(model), stops, defaults)
    return check_tokenizer(base, tokenizer).map(lambda _: policy)


def load_model(base: Path, adapter: Path | None) -> Any:
    """The base, the base with a LoRA merged into its weights, or the whole model of a training."""
    if adapter is None or not is_lora(adapter):
        return load_base(adapter or base)
    return load_adapter(load_base(base), adapter).merge_and_unload()


def load_base(folder: Path) -> Any:
    """The model as it was saved, in float32, on this process's GPU where there is one.

    A model that is to be trained in parts on several devices is left off them.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True, use_safetensors=True
    )
    in_parts = any(os.environ.get(f"ACCELERATE_USE_{way}") == "true" for way in SHARDING)
    if in_parts or not torch.cuda.is_available():
        return model
    return model.to(f"cuda:{os.environ.get('LOCAL_RANK', '0')}")


def load_tokenizer(folder: Path) -> Any:
    """The model's tokenizer."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def check_tokenizer(base: Path, tokenizer: Any) -> Result[None, str]:
    """Success where chats and replies can be written with the model's tokenizer."""
    if tokenizer.chat_template is None or tokenizer.eos_token_id is None:
        return Failure(f"the tokenizer of {base} has no chat template or no end token")
    return Success(None)


def token_counter(name: str) -> Result[Callable[[str], int], str]:
    """How many tokens a model's tokenizer makes of a text; the name is that of the model."""
    found = require("transformers").bind(lambda _: model_directory(name))
    if isinstance(found, Failure):
        return Failure(found.failure())
    try:
        tokenizer = load_tokenizer(found.unwrap())
    except (OSError, ValueError) as error:
        return Failure(one_line(error))
    return Success(lambda text: len(tokenizer.encode(text, add_special_tokens=False)))


def load_adapter(model: Any, folder: Path, *, train_with_dropout: float | None = None) -> Any:
    """The model with the LoRA on top, under peft's name "default"; frozen unless to be trained."""
    from peft import PeftConfig, PeftModel

    config = PeftConfig.from_pretrained(folder)
    trainable = train_with_dropout is not None
    if trainable:
        config.lora_dropout = train_with_dropout
    with warnings.catch_warnings():  # peft asks transformers for a name that it is giving up
        warnings.simplefilter("ignore", FutureWarning)
        return PeftModel.from_pretrained(model, folder, config=config, is_trainable=trainable)


def context_of(model: Any) -> int | None:
    """The number of tokens that the model can hold, where its configuration says so."""
    return getattr(model.config, "max_position_embeddings", None)


def _stops(model: Any, tokenizer: Any) -> tuple[int, ...]:
    listed = model.generation_config.eos_token_id
    stops = listed if isinstance(listed, list) else [] if listed is None else [listed]
    return tuple(sorted({*stops, tokenizer.eos_token_id}))


def _defaults(model: Any) -> Defaults:
    """What the model's `generation_config.json` says, where it says to sample; else 1 throughout.

    Nothing else in it, such as `top_k`, is followed.
    """
    config = model.generation_config
    if not config.do_sample:
        return Defaults()
    named = ((name, getattr(config, name)) for name in Defaults._fields)
    return Defaults(**{name: float(value) for name, value in named if value is not None})


def render_chat(tokenizer: Any, chat: Chat) -> str:
    """The chat as the model reads it, up to where its reply begins.

    Raises `jinja2.TemplateError` where the model's chat template refuses the chat.
    """
    messages = [{"role": message.role, "content": message.content} for message in chat]
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def encode_chats(tokenizer: Any, rendered: Sequence[str]) -> list[list[int]]:
    """The tokens of rendered chats, whose templates hold the special tokens already."""
    if not rendered:
        return []
    return list(tokenizer(list(rendered), add_special_tokens=False)["input_ids"])


def encode_chat(tokenizer: Any, chat: Chat) -> list[int]:
    """The tokens of a chat up to where the reply begins."""
    return encode_chats(tokenizer, [render_chat(tokenizer, chat)])[0]


def encode_reply(tokenizer: Any, reply: str) -> list[int]:
    """The tokens of a whole reply: its text and the end token, as the sampler would draw them."""
    return [*tokenizer.encode(reply, add_special_tokens=False), tokenizer.eos_token_id]


def log_probability(policy: Policy, chat: Chat, reply: str) -> float:
    """The log-probability (in nats, at temperature 1) of the reply and its end after the chat.

    Tokens past the model's context are left out, as they are in training.
    """
    prompt = encode_chat(policy.tokenizer, chat)
    room = None if policy.context is None else max(0, policy.context - len(prompt))
    tokens = encode_reply(policy.tokenizer, reply)[:room]
    return float(token_log_probabilities(policy.model, prompt, tokens).sum()) if tokens else 0.0


def token_log_probabilities(model: Any, prompt: list[int], reply: list[int]) -> Any:
    """The log-probability of each of the reply's tokens after those before it: float64 `[R]`."""
    import torch

    with torch.no_grad():  # inference mode would not do for a model in parts
        inputs = torch.tensor([prompt + reply], device=model.device)
        logits = model(inputs, logits_to_keep=len(reply) + 1).logits[0, :-1]
        scores = torch.log_softmax(logits.float(), dim=-1)
        return scores.gather(1, inputs[0, len(prompt) :, None])[:, 0].double()


def set_threads(threads: int) -> None:
    """Let torch use so many threads in this process."""
    import torch

    torch.set_num_threads(threads)


def one_line(error: BaseException) -> str:
    """The first line of what an exception says, or its name."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
