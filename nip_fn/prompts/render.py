"""Prompt templates: Jinja files by version, protocol and agent, read once as package data.

This is the only thing the core reads.  Code is never escaped: the prompts are text, not HTML.
"""

from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import FunctionLoader, StrictUndefined, Template, TemplateError
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

# The folder of a version that holds the templates that its protocols share.
_BASE = "_base"


def _source(name: str) -> str | None:
    """The text of a template that comes with the package; None if there is none."""
    file = files(__package__).joinpath(*name.split("/"))
    return file.read_text("utf-8") if file.is_file() else None


class _Sandbox(ImmutableSandboxedEnvironment):
    """The sandbox, without what makes a text of a gigabyte out of a few characters."""

    intercepted_binops = frozenset(("*", "**"))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """The product of two numbers."""
        if operator == "**" or not all(
            isinstance(operand, int | float) for operand in (left, right)
        ):
            raise SecurityError("a template has no powers, and repeats no text")
        return left * right


@cache
def _environment() -> _Sandbox:
    environment = _Sandbox(
        # Sandboxed, because a template of a user's own comes with a configuration, and that may be
        # somebody else's.
        loader=FunctionLoader(_source),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # A misspelt variable is an error: rendered as nothing, it would quietly ask another
        # question.
        undefined=StrictUndefined,
        # The *nip* library escapes here, so that its models judge code full of HTML entities.
        autoescape=False,
    )
    environment.filters["capitalise_first_letter"] = lambda text: text[:1].upper() + text[1:]
    environment.filters["add_s_plural"] = lambda text, count: text if count == 1 else f"{text}s"
    return environment


@cache
def template(version: str, protocol: str, names: tuple[str, ...]) -> Template:
    """The first of `names` in `VERSION/PROTOCOL/`, or else in the version's base.

    Raises `jinja2.TemplatesNotFound` if there is neither.
    """
    paths = [f"{version}/{folder}/{name}.jinja" for folder in (protocol, _BASE) for name in names]
    return _environment().select_template(paths)


@cache
def _custom_template(text: str) -> Template:
    """A user's own template, sandboxed; raises `jinja2.TemplateSyntaxError`."""
    return _environment().from_string(text)


def render(version: str, protocol: str, names: tuple[str, ...], **variables: object) -> str:
    """The text of a template that comes with the package.

    Args:
        version: The folder of the version.
        protocol: The folder of the protocol in it.
        names: File names without suffix, of which the first that exists is used.
        variables: Values of all variables that the template names.
    """
    return template(version, protocol, names).render(variables).strip()


def render_text(text: str, **variables: object) -> str:
    """The text of a user's own template; every variable it names must be given.

    Raises:
        ValueError: The template cannot be rendered.
    """
    # A template is a program: besides Jinja's own errors it meets those of its expressions.
    try:
        return _custom_template(text).render(variables).strip()
    except (TemplateError, TypeError, ArithmeticError, LookupError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from error
