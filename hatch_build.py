"""Links in the metadata of the package, for the repository whose workflow builds it.

GitHub Actions names that repository in variables. A package that is built elsewhere has no links,
because the address of its repository is not known. ``cli/error_report.py`` reads the link to the
issues.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# The target of a link or an image, in Markdown or HTML, that is a path in the repository.
_PATH = r"(?![a-z]+:|#|/)[^)\s\"]+"
_LINK = re.compile(rf"(?P<before>\[[^\]]*\]\(|\bhref=\")(?P<path>{_PATH})")
_IMAGE = re.compile(rf"(?P<before>!\[[^\]]*\]\(|\bsrc=\")(?P<path>{_PATH})")


class LinksHook(MetadataHookInterface):
    """Adds the links of the project and the README with absolute links."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the dynamic fields ``urls`` and ``readme``."""
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        repository = repository_address(os.environ)
        metadata["urls"] = project_links(repository) if repository else {}
        if repository:
            readme = absolute_links(readme, repository, os.environ.get("GITHUB_SHA", "HEAD"))
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}


def repository_address(variables: Mapping[str, str]) -> str:
    """Return the address of the repository of a running workflow; empty if there is none."""
    parts = [variables.get(name, "") for name in ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY")]
    return "/".join(parts) if all(parts) else ""


def project_links(repository: str) -> dict[str, str]:
    """Return the links of the project by their names."""
    return {
        "Homepage": repository,
        "Documentation": f"{repository}/tree/HEAD/docs",
        "Issues": f"{repository}/issues",
        "Changelog": f"{repository}/blob/HEAD/CHANGELOG.md",
    }


def absolute_links(text: str, repository: str, commit: str) -> str:
    """Return a page with links and images that lead to the files of a commit.

    A package index shows the README without the other files of the repository.
    """
    text = _IMAGE.sub(rf"\g<before>{repository}/raw/{commit}/\g<path>", text)
    return _LINK.sub(rf"\g<before>{repository}/blob/{commit}/\g<path>", text)
