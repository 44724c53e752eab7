"""A page as one file of HTML: the template, with style and script written into it.

The page forbids itself everything that is not in it: its script and its style are allowed by their
hashes, images as ``data:`` alone. A name that slipped through escaping could run nothing.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hookscope.views.html.model import Page

STYLES = ("page.css",)
SCRIPTS = ("glob.js", "table.js", "tree.js", "page.js")


def write(page: Page) -> str:
    """Return the page as HTML that opens from a disk and asks nothing of any network."""
    style, script = _text(STYLES), _text(SCRIPTS)
    policy = "; ".join(
        [
            "default-src 'none'",
            "img-src data:",
            f"style-src '{_hash(style)}'",
            f"script-src '{_hash(script)}'",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    template = _environment().get_template("page.html")
    # Both are our own files, in which nothing of a capture stands.
    return template.render(page=page, policy=policy, style=Markup(style), script=Markup(script))


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("hookscope.views.html", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def _text(names: tuple[str, ...]) -> str:
    folder = files("hookscope.views.html")
    return "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names)


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
