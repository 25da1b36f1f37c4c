"""Prompt templates: Jinja files by version, protocol and agent, read once as package data.

This is the only thing the core reads.  Code is never escaped: the prompts are text, not HTML.
"""

from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined, Template


@cache
def _environment() -> Environment:
    return Environment(
        trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined, autoescape=False
    )


@cache
def template(version: str, protocol: str, name: str) -> Template:
    """The template `VERSION/PROTOCOL/NAME.jinja`; `FileNotFoundError` if there is none."""
    source = files(__name__).joinpath(version, protocol, f"{name}.jinja").read_text("utf-8")
    return _environment().from_string(source)


def render(version: str, protocol: str, name: str, **context: Any) -> str:
    """The text of a template in a context; every variable it names must be given."""
    return template(version, protocol, name).render(context).strip()
