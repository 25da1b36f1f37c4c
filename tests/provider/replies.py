"""Replies of the fake models: a pure function of model, messages, seed and index."""

import re
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b, shake_128
from zlib import crc32

import msgspec

from .settings import Settings

# fmt: off
WORDS = (
    "the", "code", "line", "step", "loop", "bound", "index", "value", "sum",
    "list", "first", "last", "empty", "case", "off", "by", "one", "right",
    "wrong", "returns", "adds", "checks", "reads", "before", "after", "every", "element",
    "input", "output", "zero", "negative", "order", "equal", "less", "more", "than",
    "asks", "for", "what", "it", "does", "not", "handle", "when", "same",
    "different", "because", "so", "only", "still", "never", "always", "here", "there",
    "branch", "result", "number", "string", "key",
)
# fmt: on

END = "<|im_end|>"  # the token that ends a reply
DECISION = re.compile(r"[`\"]Decision: ([^`\"\n]+)[`\"]")
NUMBER = re.compile(r"`Decision: ` and a whole number from 0 to (\d+)")
HEADER = re.compile(r"[`\"](Question for [^`\"\n]*?:) \.\.\.[`\"]")
CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)
SWAPS = ((" < ", " <= "), (" > ", " >= "), ("<=", "<"), (">=", ">"), (" + ", " - "), ("0", "1"))


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message of a chat; other fields are not looked at."""

    role: str
    content: str | list[dict[str, str]] | None = None
    name: str | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.get("text", "") for part in self.content or ())


def count_tokens(text: str) -> int:
    """Four characters are a token, as a rule of thumb has it."""
    return (len(text) + 3) // 4


def tokens(text: str) -> list[str]:
    """The tokens of a text: words, each with the space before it."""
    return re.findall(r" ?[^\s]+|\s", text)


def alternatives(token: str, number: int) -> list[str]:
    """At most so many tokens that could have stood in the place of one, itself among them."""
    verdicts = (" accept", " reject", " Accept")
    return [token, *(other for other in verdicts if other != token)][:number]


def token_id(token: str) -> int:
    """The number of a token in a vocabulary of many."""
    return crc32(token.encode()) % 150_000


def log_probability(token: str) -> float:
    """The log-probability of a token, wherever it stands."""
    return -token_id(token) / 65_536


def prompt_tokens(message: Message) -> int:
    """The tokens of one message, with what marks its beginning."""
    return count_tokens(message.text) + 4


def digest_of(model: str, messages: Sequence[Message], seed: int | None, salt: str) -> bytes:
    """16 bytes that depend on nothing else."""
    return blake2b(msgspec.json.encode((model, messages, seed, salt)), digest_size=16).digest()


def reply_text(settings: Settings, messages: Sequence[Message], digest: bytes, index: int) -> str:
    """The index-th reply to these messages; `digest` stands for model, messages and seed."""
    if settings.reply == "echo":
        return f"{digest.hex()[:8]}/{index} {messages[-1].text if messages else ''}"
    dice = shake_128(digest + index.to_bytes(4, "little")).digest(8)
    words = settings.reply_words
    low, high = (words, words) if isinstance(words, int) else words
    count = low + dice[0] % (high - low + 1)
    drawn = shake_128(dice).digest(count)
    prose = " ".join(WORDS[byte % len(WORDS)] for byte in drawn)
    return _in_form(settings, messages, dice, prose)


def _in_form(settings: Settings, messages: Sequence[Message], dice: bytes, prose: str) -> str:
    system, last = (messages[0].text, messages[-1].text) if messages else ("", "")
    if system.startswith("You prepare material"):
        return _program(last, dice)
    headers, decisions = _forms(system, last)
    if not decisions and not headers:
        return f"Answer: {prose}."
    now, not_yet = "Decide now" in last, "does not count yet" in last or _only_asks(last)
    wants = int.from_bytes(dice[1:5], "little") < settings.decision_rate * 2**32
    if decisions and (now or not headers or (wants and not not_yet)):
        return f"{prose}.\nDecision: {decisions[dice[5] % len(decisions)]}"
    questions = (f"{header} {prose} {i}?" for i, header in enumerate(headers, 1))
    return "\n".join(questions)


@lru_cache(maxsize=4096)
def _forms(system: str, last: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The headers and the decisions that a prompt names."""
    both = f"{system}\n{last}"
    headers = tuple(dict.fromkeys(HEADER.findall(last) or HEADER.findall(system)))
    number = NUMBER.search(both)
    texts = map(str, range(int(number[1]) + 1)) if number else DECISION.findall(both)
    return headers, tuple(dict.fromkeys(texts))


def _only_asks(last: str) -> bool:
    """True if the embedded prompts' instruction leaves no choice."""
    return last.startswith("Ask with") and "or decide" not in last


def _program(prompt: str, dice: bytes) -> str:
    """The program of the prompt with one small change."""
    found = CODE.search(prompt)
    code = found[1] if found else "pass\n"
    swaps = [swap for swap in SWAPS if swap[0] in code] or [("", "")]
    old, new = swaps[dice[5] % len(swaps)]
    return f"```python\n{code.replace(old, new, 1)}```"
