"""Sphinx configuration of the documentation site: ``make site`` writes it to build/site."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent

project = "hookscope"
author = project_copyright = "The hookscope authors"
# Run rather than imported: building the site needs neither hookscope nor torch.
release = version = runpy.run_path(str(HERE.parent / "hookscope" / "version.py"))["__version__"]

extensions = ["myst_parser"]
myst_heading_anchors = 3  # makes links such as datasets.md#reading work as they do on GitHub

html_theme = "furo"
html_title = f"hookscope {release}"
html_show_sourcelink = False


def _add_navigation(app: Sphinx, name: str, source: list[str]) -> None:
    """Add to an index page the table of contents that Sphinx needs, from the links on the page.

    It is not in the files because GitHub would show it as a block of code.
    """
    if name.rpartition("/")[2] == "index":
        pages = re.findall(r"^- .*", source[0], re.MULTILINE)
        links = [link for line in pages for link in re.findall(r"\]\(([\w/-]+)\.md\)", line)]
        source[0] += "\n```{toctree}\n:hidden:\n\n" + "\n".join(links) + "\n```\n"


def setup(app: Sphinx) -> None:
    """Register `_add_navigation`."""
    app.connect("source-read", _add_navigation)
