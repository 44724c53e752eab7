"""A page from its template: script and style written into it, and everything else forbidden.

Script and style are allowed by their hashes, and images as ``data:`` only. A name that was not
escaped could run nothing.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


def fill_template(
    name: str, styles: tuple[str, ...], scripts: tuple[str, ...], page: object
) -> str:
    """Return a page as HTML that opens from disk and needs no network."""
    style, script = _joined_text(styles), _joined_text(scripts)
    policy = "; ".join(
        [
            "default-src 'none'",
            "img-src data:",
            f"style-src '{_content_hash(style)}'",
            f"script-src '{_content_hash(script)}'",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    template = _environment().get_template(name)
    # Both are files of this package, without any content of a result.
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
def _joined_text(names: tuple[str, ...]) -> str:
    folder = files("hookscope.views.html")
    return "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names)


def _content_hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
