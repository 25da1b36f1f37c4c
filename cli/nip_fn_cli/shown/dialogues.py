"""Games and trees in full: the problem, the words of each round, the end and the rewards."""

from collections.abc import Iterable
from typing import Any

from rich.text import Text

from nip_fn.game.chat import Chat
from nip_fn_cli.shown.printing import console


def print_dialogues(records: Iterable[dict[str, Any]]) -> None:
    """Print games as `export.transcripts` tells them, or trees of games, with their problems."""
    for record in records:
        print(
            f"\ndatapoint {record['datapoint']} ({record['label']}), "
            f"iteration {record['iteration']}, {record['stage']}"
        )
        print_dialogue(record)


def print_dialogue(record: dict[str, Any]) -> None:
    """Print a game, or a tree of games, below its problem."""
    _print_problem(record)
    if "tree" in record:
        _print_tree(record["tree"])
    else:
        _print_game(record)


def _print_problem(record: dict[str, Any]) -> None:
    """Print the claim of a game, and what all are shown, or each side alone."""
    print(record["question"])
    if record["solution"]:
        print(f"\n{record['solution']}\n")
    for name, view in record.get("views", {}).items():
        print(f"[{name} is shown] {_indented(view, 4)}")


def _print_game(record: dict[str, Any]) -> None:
    """Print the rounds of a game, its end and its rewards."""
    for number, turn in enumerate(record["rounds"]):
        for name, text in turn.items():
            if "prompts" in record:
                _print_chat(f"[{number}] {name} is shown", record["prompts"][number][name])
            print(f"[{number}] {name}: {_indented(text, 4)}")
    rewards = ", ".join(f"{name} {value:+g}" for name, value in record["rewards"].items())
    _print_marked(f"end: {record['outcome']}; rewards: {rewards}")


def _print_chat(title: str, chat: Chat) -> None:
    print(f"\n{title}:")
    for message in chat:
        speaker = f" ({message.name})" if message.name else ""
        print(f"    {message.role}{speaker}: {_indented(message.content, 8)}")


# What is good, and what is not, in the colours that a terminal has for them.
_COLOURS = {"right": "green", "chosen": "green", "wrong": "red", "rejected": "red"}


def _print_marked(line: str) -> None:
    """Print a line; on a terminal, its marks and outcomes in colour."""
    text = Text(line)
    for word, colour in _COLOURS.items():
        text.highlight_regex(rf"<{word}[^>]*>|: {word}\b", colour)
    console().print(text, soft_wrap=True)


def _print_tree(node: dict[str, Any], depth: int = 0) -> None:
    pad = "  " * depth
    values = ", ".join(f"{name} {value:+.3f}" for name, value in node["expected_reward"].items())
    rewards = ", ".join(f"{name} {value:+g}" for name, value in node["reward"].items() if value)
    ends = f"  {node['outcome']}, {rewards or 'no reward'}" if node["outcome"] else ""
    marks = "".join(f"  <{mark}>" for mark in node["marks"])
    _print_marked(f"{pad}({node['node']}) expected {values}{ends}{marks}")
    for name, text in node["said"].items():
        print(f"{pad}    {name}: {_indented(text, len(pad) + 6)}")
    for child in node["children"]:
        _print_tree(child, depth + 1)


def _indented(text: str, width: int) -> str:
    return text.strip().replace("\n", "\n" + " " * width)
