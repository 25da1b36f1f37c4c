"""Help as plain text: lines that are filled, and options without the types of Python."""

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from nip_fn_cli.shown.exits import OPTIONS

NAMES = 24  # a longer name has a line of its own


class Command(TyperCommand):
    """A command whose help says what each of its arguments and options is for."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        """As Typer's; the words for values are settled here, for errors as well as for help."""
        super().__init__(*args, **settings)
        for param in self.params:
            param.metavar = _placeholder(param)

    def invoke(self, ctx: Any) -> Any:
        """Run the command, whose options the problems of the functions that it calls name."""
        OPTIONS.clear()
        for param in self.params:
            if isinstance(param, TyperOption):
                option = max(param.opts, key=len)
                OPTIONS.setdefault(option.strip("-").replace("-", "_"), option)
                OPTIONS[str(param.name)] = option
        return super().invoke(ctx)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words after the command's name: `[OPTIONS]`, and its arguments."""
        arguments = (param for param in self.params if isinstance(param, TyperArgument))
        return ["[OPTIONS]", *(_usage(argument) for argument in arguments)]

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the paragraphs of the docstring."""
        formatter.write(_paragraphs(self.help, formatter.width))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the options."""
        formatter.write(_parameters(self.get_params(ctx), ctx, formatter.width))


class Imported(Mapping[str, Any]):
    """The commands of a package by name, each imported when it is looked up."""

    def __init__(self, package: str, names: Iterable[str]) -> None:
        """The commands of these names, in this order."""
        self._package, self._names = package, tuple(names)

    def __getitem__(self, name: str) -> Any:
        """The command of `package.NAME.NAME_command`: a function, or a group."""
        if name not in self._names:
            raise KeyError(name)
        command = getattr(import_module(f"{self._package}.{name}"), f"{name}_command")
        if isinstance(command, typer.Typer):
            return typer.main.get_group(command)
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command(name, cls=Command)(command)
        return typer.main.get_command(alone)

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return iter(self._names)

    def __len__(self) -> int:
        """The number of commands."""
        return len(self._names)


class CommandGroup(TyperGroup):
    """A group of commands, listed by their first sentences and imported when they are used.

    Attributes:
        package: The package with a module for each command.
        sentences: The first sentence of each command's help, as its docstring has it.  Written
            out a second time, so that to list commands imports none of them.
    """

    package: ClassVar[str]
    sentences: ClassVar[Mapping[str, str]]

    def __init__(self, **settings: Any) -> None:
        """As Typer's."""
        super().__init__(**settings)
        self.commands = Imported(self.package, self.sentences)  # type: ignore[assignment]

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write what the group is for."""
        formatter.write(_paragraphs(self.help, formatter.width))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options, and the commands."""
        formatter.write(_parameters(self.get_params(ctx), ctx, formatter.width))
        formatter.write(_listing("Commands", self.sentences.items(), formatter.width))

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write what comes after the commands."""
        formatter.write(_paragraphs(self.epilog, formatter.width))


def _placeholder(param: Any) -> str:
    """The word that stands for the value of a parameter; none for a flag."""
    if isinstance(param, TyperOption) and param.is_flag:
        return ""
    is_number = param.type_descriptor.annotation in (int, float)
    return param.metavar or ("N" if is_number else param.name.upper())


def _usage(argument: TyperArgument) -> str:
    word = argument.display_name_raw + ("..." if argument.nargs != 1 else "")
    return word if argument.required else f"[{word}]"


def _parameters(params: Iterable[Any], ctx: Any, width: int) -> str:
    arguments: list[tuple[str, str]] = []
    options: list[tuple[str, str]] = []
    for param in params:
        rows = arguments if isinstance(param, TyperArgument) else options
        rows.append((_names(param), _meaning(param, ctx)))
    return _listing("Arguments", arguments, width) + _listing("Options", options, width)


def _names(param: TyperArgument | TyperOption) -> str:
    if isinstance(param, TyperArgument):
        return param.display_name_raw
    spellings = (
        ", ".join(sorted(spellings, key=len))
        for spellings in (param.opts, param.secondary_opts)
        if spellings
    )
    return f"{' / '.join(spellings)} {_placeholder(param)}".rstrip()


def _meaning(param: TyperArgument | TyperOption, ctx: Any) -> str:
    """The help of a parameter, its default and its limits."""
    notes = [*_default(param, ctx), *_limits(param)]
    return f"{param.help or ''} {'[' + '; '.join(notes) + ']' if notes else ''}"


def _default(param: TyperArgument | TyperOption, ctx: Any) -> Iterator[str]:
    value = param.get_default(ctx, call=False)
    if value not in (None, False, ""):
        yield f"default: {'yes' if value is True else value}"


def _limits(param: TyperArgument | TyperOption) -> Iterator[str]:
    low, high = param.min, param.max
    if low is not None and high is not None:
        yield f"{low:g} to {high:g}"
    elif low:  # that a count is not negative goes without saying
        yield f"at least {low:g}"


def _paragraphs(text: str | None, width: int) -> str:
    return "".join(f"\n{_filled(part, width, 2)}\n" for part in (text or "").split("\n\n") if part)


def _listing(title: str, rows: Iterable[tuple[str, str]], width: int) -> str:
    """A titled list in two columns; empty without rows."""
    indented = [(f"  {name}", text) for name, text in rows]
    column = min(max((len(name) for name, _ in indented), default=0), NAMES) + 2
    lines = [
        f"{name}\n{filled}" if len(name) + 2 > column else name + filled[len(name) :]
        for name, text in indented
        for filled in [_filled(text, width, column)]
    ]
    return "\n".join(["", f"{title}:", *lines, ""]) if lines else ""


def _filled(text: str, width: int, column: int) -> str:
    """The text in lines that begin at a column, with no command broken at its hyphen."""
    indent = " " * column
    words = " ".join(text.split())
    return textwrap.fill(
        words, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )
