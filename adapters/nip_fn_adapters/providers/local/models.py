"""Local models: their folders, their weights, and chats as tokens.

Importing this module loads none of the heavy packages; calling its functions does.
"""

import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeVar

from returns.pipeline import is_successful
from returns.result import Failure, Result, Success

from nip_fn.errors import Problem
from nip_fn.game.chat import Chat, plain
from nip_fn.training.tuning import Precision
from nip_fn_adapters.providers.local.hub import HUB_ID, hub_model

MODELS = Path(__file__).parents[2] / "base_models"
GAMES = ("tea", "bug-hunt")
# An embedded model is named by its game; others of the game by the seed that they were made with.
BUILTIN = re.compile(r"builtin:([a-z0-9-]+)(?:@([0-9]+))?")
FULL_ATTENTION = "full_attention"
T = TypeVar("T")
SHARDING = ("FSDP", "DEEPSPEED")  # how accelerate trains a model in parts on several devices


def require(*packages: str, extra: str = "local") -> Result[None, Problem]:
    """Success if all packages can be imported; otherwise the command that installs them."""
    for package in packages:
        try:
            import_module(package)
        except ImportError:
            return _needed(package, extra)
    return Success(None)


def installed(*packages: str) -> Result[None, Problem]:
    """The same as `require`, found out without importing them, which takes seconds."""
    missing = next((package for package in packages if find_spec(package) is None), None)
    return Success(None) if missing is None else _needed(missing)


def _needed(package: str, extra: str = "local") -> Result[None, Problem]:
    message = f"the local model needs {package}"
    return Failure(Problem(message, remedy=f'pip install "nip-fn[{extra}]"'))


def exit_on_failure(result: Result[T, Problem]) -> T:
    """The value; a failure ends this process with its line, as the child of a training does."""
    return result.alt(lambda problem: sys.exit(str(problem))).unwrap()


def builtin_directory(name: str) -> Path | None:
    """The folder of an embedded model, whether or not it is there; None if this names another."""
    named = BUILTIN.fullmatch(name)
    return MODELS / "-".join(filter(None, named.groups())) if named else None


def embedded_models() -> list[str]:
    """The names of the embedded models that are there."""
    seeds = {game: sorted(MODELS.glob(f"{game}-[0-9]*")) for game in GAMES}
    return [
        f"builtin:{game}{seed}"
        for game, folders in seeds.items()
        for seed in ("", *(folder.name.replace(f"{game}-", "@") for folder in folders))
    ]


def model_directory(name: str) -> Result[Path, Problem]:
    """The folder of a model: an embedded one, one of the Hugging Face hub, or the folder itself.

    A model of the hub is downloaded if it is not in the hub's cache.
    """
    if is_on_hub(name):
        return hub_model(name)
    path = builtin_directory(name) or Path(name).expanduser()
    if (path / "config.json").is_file():
        return Success(path)
    remedy = (
        f"name a folder, ORG/NAME of the Hugging Face hub, or {', '.join(embedded_models())}; for "
        "a model behind an API name its provider, too, as in --provider openai"
    )
    if (named := BUILTIN.fullmatch(name)) and named[1] in GAMES and named[2]:
        remedy = f"make it in a clone of the source: make base-models SEED={named[2]}"
    return Failure(
        Problem(f"{name} is no model: {path} has no config.json", remedy=remedy, lasting=True)
    )


def cached_directory(name: str) -> Path | None:
    """As `model_directory`, without downloads; of a hub model perhaps only its configuration."""
    if not is_on_hub(name):
        return model_directory(name).value_or(None)
    if not is_successful(require("huggingface_hub")):
        return None
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(name, "config.json")
    return Path(config).parent if isinstance(config, str) else None


def is_on_hub(name: str) -> bool:
    """True if the name can only be that of a model on the Hugging Face hub."""
    return HUB_ID.fullmatch(name) is not None and not Path(name).exists()


def adapter_directory(adapters: Path, name: str | None) -> Result[Path | None, Problem]:
    """The folder of the adapter `name`: a LoRA, or a whole model; None for the base model."""
    if name is None:
        return Success(None)
    path = adapters / name
    if is_lora(path) or (path / "config.json").is_file():
        return Success(path)
    return Failure(Problem(f"there is no adapter {name} in {adapters}"))


def is_lora(adapter: Path) -> bool:
    """True if the adapter is a LoRA; otherwise it is the whole model that a training left."""
    return (adapter / "adapter_config.json").is_file()


def load_model(base: Path, adapter: Path | None) -> Any:
    """The base, the base with a LoRA merged into its weights, or the whole model of a training."""
    if adapter is None or not is_lora(adapter):
        return load_base(adapter or base)
    # Merged: a LoRA on top would be multiplied anew for each token.
    return load_adapter(load_base(base), adapter).merge_and_unload()


def load_base(folder: Path, numbers: Precision = "float32") -> Any:
    """The model as it was saved, in these numbers, on this process's GPU if there is one.

    A model that is to be trained in parts on several devices is left off them.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    stays = is_sharded() or not torch.cuda.is_available()
    device = "cpu" if stays else f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    # Only safetensors: other formats of weights may run code when they are read.
    options: dict[str, Any] = {"local_files_only": True, "use_safetensors": True}
    if numbers in ("8-bit", "4-bit"):
        return AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.bfloat16,
            quantization_config=_quantization(numbers),
            device_map={"": device},
            **options,
        )
    dtype = torch.bfloat16 if numbers == "bf16" else torch.float32
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **options).to(device)


def _quantization(numbers: Precision) -> Any:
    """The configuration of a base in 8 bits (Dettmers et al. 2022, "LLM.int8()") or 4 ("QLoRA")."""
    import torch
    from transformers import BitsAndBytesConfig

    if numbers == "8-bit":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )


def is_sharded() -> bool:
    """True if accelerate trains a model in parts on several devices."""
    return any(os.environ.get(f"ACCELERATE_USE_{backend}") == "true" for backend in SHARDING)


def load_tokenizer(folder: Path) -> Any:
    """The model's tokenizer."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def check_tokenizer(base: Path, tokenizer: Any) -> Result[None, Problem]:
    """Success if the model's tokenizer can write chats, and the end of a reply."""
    if tokenizer.chat_template is None or tokenizer.eos_token_id is None:
        message = f"the tokenizer of {base} has no chat template or no end token"
        remedy = "choose a model that was trained for chats"
        return Failure(Problem(message, remedy=remedy, lasting=True))
    return Success(None)


def token_counter(name: str) -> Result[Callable[[str], int], Problem]:
    """The function that counts a text's tokens with the tokenizer of the model of that name."""

    def load(folder: Path) -> Result[Callable[[str], int], Problem]:
        try:
            tokenizer = load_tokenizer(folder)
        except (OSError, ValueError) as error:
            return Failure(Problem(first_line(error), f"the tokenizer of {name}"))
        return Success(lambda text: len(tokenizer.encode(text, add_special_tokens=False)))

    return require("transformers").bind(lambda _: model_directory(name)).bind(load)


def load_adapter(model: Any, folder: Path, *, train_with_dropout: float | None = None) -> Any:
    """The model with the LoRA on top, under peft's name "default"; frozen unless to be trained."""
    from peft import PeftConfig, PeftModel

    config = PeftConfig.from_pretrained(folder)
    trainable = train_with_dropout is not None
    if trainable:
        # The saved dropout is that of the training that made the adapter.
        config.lora_dropout = train_with_dropout
    with warnings.catch_warnings():  # peft asks transformers for a name that it is giving up
        warnings.simplefilter("ignore", FutureWarning)
        return PeftModel.from_pretrained(model, folder, config=config, is_trainable=trainable)


def context_of(model: Any) -> int | None:
    """The length of the model's context in tokens; None if its configuration does not say."""
    return getattr(model.config, "max_position_embeddings", None)


def render_chat(tokenizer: Any, chat: Chat) -> str:
    """The chat as the model reads it, up to where its reply begins.

    Raises:
        jinja2.TemplateError: the model's chat template refuses the chat.
    """
    return str(
        tokenizer.apply_chat_template(plain(chat), tokenize=False, add_generation_prompt=True)
    )


def encode_chats(tokenizer: Any, rendered: Sequence[str]) -> list[list[int]]:
    """The tokens of rendered chats; the templates have written the special tokens already."""
    if not rendered:
        return []
    return list(tokenizer(list(rendered), add_special_tokens=False)["input_ids"])


def encode_chat(tokenizer: Any, chat: Chat) -> list[int]:
    """The tokens of a chat up to where the reply begins."""
    return encode_chats(tokenizer, [render_chat(tokenizer, chat)])[0]


def encode_reply(tokenizer: Any, reply: str) -> list[int]:
    """The tokens of a whole reply: its text and the end token, as the sampler would draw them."""
    return [*tokenizer.encode(reply, add_special_tokens=False), tokenizer.eos_token_id]


def token_log_probabilities(model: Any, prompt: list[int], reply: list[int]) -> Any:
    """The log-probability of each of the reply's tokens after those before it: float64 `[R]`."""
    import torch

    with torch.no_grad():  # inference mode would not do for a model in parts
        inputs = torch.tensor([prompt + reply], device=model.device)
        logits = model(inputs, logits_to_keep=len(reply) + 1).logits[0, :-1]
        scores = torch.log_softmax(logits.float(), dim=-1)
        return scores.gather(1, inputs[0, len(prompt) :, None])[:, 0].double()


def precision() -> Literal["bf16", "fp16", "no"]:
    """The shortest floating-point format that the device multiplies fast; "no": float32."""
    import torch

    if not torch.cuda.is_available():
        return "no"
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return "bf16"
    return "fp16" if torch.cuda.get_device_capability() >= (7, 0) else "no"


def set_threads(threads: int) -> None:
    """Set the number of torch's threads in this process."""
    import torch

    torch.set_num_threads(threads)


def first_line(error: BaseException) -> str:
    """The first line of an exception's text, or its name if it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
