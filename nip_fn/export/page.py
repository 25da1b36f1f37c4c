"""Reports as HTML: pages that need nothing but themselves, no script and no network.

Texts are data.  Jinja escapes all of them, `visible` writes out what would not show, and the
policy in each page lets nothing run or load but its own style and script, which it names by hash.
"""

from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any
from zlib import compress

import msgspec
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from nip_fn.export.comparison import ComparisonView
from nip_fn.export.curves import percent
from nip_fn.export.forests import ForestView, TreeView
from nip_fn.export.report import RunView
from nip_fn.export.svg import Chart, draw_chart
from nip_fn.export.views import CLASSES
from nip_fn.export.visible import visible

MOST_CHARACTERS = 20_000  # of one text


def render_report(
    runs: Sequence[RunView],
    *,
    version: str,
    live: str | None = None,
    pages: dict[tuple[str, int], tuple[str, ...]] | None = None,
) -> str:
    """The report of one or several runs as an HTML page.

    Args:
        runs: The runs.
        version: Of nip-fn, that makes the page.
        live: A word for how far the run is, where the page is served while it goes on.
        pages: The files that hold an iteration's trees, by the run's id and the iteration.
    """
    curves = tuple(run.accuracy for run in runs if run.accuracy.points)
    return _page(
        "report.html.jinja",
        title=runs[0].name if len(runs) == 1 else f"{len(runs)} runs",
        live=live,
        runs=runs,
        pages=pages,
        together=Chart("Held-out accuracy", curves, percent) if curves else None,
        version=version,
        data=_data([run.data for run in runs]),
    )


def render_trees(run: RunView, forest: ForestView) -> str:
    """Trees of an iteration as a page of their own."""
    title = f"{run.name}: trees of iteration {forest.iteration}"
    return _page("trees.html.jinja", title=title, live=None, run=run, forest=forest)


def render_comparison(view: ComparisonView, *, version: str) -> str:
    """A comparison as an HTML page."""
    return _page(
        "compare.html.jinja",
        title=view.title,
        live=None,
        view=view,
        version=version,
        data=_data(view.data),
    )


def _data(content: object) -> Markup:
    """A block of JSON, to stand in a page."""
    # No "<" can end the block; JSON reads the escape as the same character.
    return Markup(msgspec.json.encode(content).decode().replace("<", "\\u003c"))


def policy(*, live: bool) -> str:
    """The content security policy of a page; a live one may ask its own server."""
    return "; ".join(
        (
            "default-src 'none'",
            f"style-src '{_hash('style.css')}'",
            f"script-src '{_hash('script.js')}'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            *(("connect-src 'self'",) if live else ()),
        )
    )


def _page(template: str, *, live: str | None, **variables: object) -> str:
    return (
        _environment()
        .get_template(template)
        .render(
            variables,
            live=live,
            policy=policy(live=live is not None),
            style=Markup(_source("style.css")),
            script=Markup(_source("script.js")),
        )
    )


@cache
def _source(name: str) -> str:
    """The text of a file that comes with the package."""
    return files(__package__).joinpath("templates", name).read_text("utf-8")


@cache
def _hash(name: str) -> str:
    return f"sha256-{b64encode(sha256(_source(name).encode()).digest()).decode()}"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_source),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        autoescape=True,
    )
    environment.filters["text"] = _text
    environment.filters["drawn"] = draw_chart
    environment.filters["packed"] = _packed
    environment.filters["times"] = _times
    environment.filters["in_words"] = CLASSES.__getitem__
    return environment


def _text(text: object) -> str:
    """A text as a page shows it: all of it visible, and not more than a browser bears."""
    whole = str(text)
    if len(whole) <= MOST_CHARACTERS:
        return visible(whole)
    more = len(whole) - MOST_CHARACTERS
    return f"{visible(whole[:MOST_CHARACTERS])} … and {more:,} more characters"


def _times(number: int, noun: str) -> str:
    """A number of things in words.

    >>> _times(1, "tree"), _times(2000, "tree")
    ('1 tree', '2,000 trees')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _packed(trees: Sequence[TreeView]) -> str:
    """Trees as the page would show them, compressed: as HTML they are twenty times as large."""
    macros: Any = _environment().get_template("parts.html.jinja").module
    shown = "\n".join(map(macros.tree, trees))
    return b64encode(compress(shown.encode(), 9)).decode()
