"""What the functions of hookscope return: plain data that knows the name of its view.

A view is imported when a result is shown, so that a program that shows nothing loads none.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from hookscope.files import strict_json
from hookscope.files.atomic_files import write_text
from hookscope.files.output_path import MARK, check_ending
from hookscope.version import __version__

SCHEMA = 1  # of the files of results


class Result:
    """Data that a command prints, a notebook shows as a table, and a file of JSON keeps.

    Attributes:
        view: a file of ``hookscope.views``, which shows the result; see ``View`` there.

    Example:
        >>> import hookscope
        >>> tree = hookscope.tree("resnet18", types=["Linear"])
        >>> tree
        <ModuleTree of resnet18: 1 of its modules, 11,689,512 parameters>
        >>> "<td" in tree._repr_html_()
        True
    """

    view: ClassVar[str]

    def _repr_html_(self) -> str:
        """Return the result as HTML; Jupyter calls this."""
        return str(self._shown("display", "html"))

    def _shown(self, file: str, function: str, *more: Any) -> Any:
        """Return what a function of a file of ``hookscope.views`` makes of the result."""
        return getattr(import_module(f"hookscope.views.{file}"), function)(self, *more)

    def to_json(self) -> dict[str, Any]:
        """Return the result as a plain dict."""
        raise NotImplementedError

    def to_document(self) -> dict[str, Any]:
        """Return what the file has: ``to_json()`` with a mark by which hookscope knows it."""
        return {MARK: __version__, "schema": SCHEMA, **self.to_json()}

    def save(self, path: str | os.PathLike[str]) -> int:
        """Write ``to_json()`` to a file atomically; return its size in bytes.

        Raises:
            RequestError: the name has another ending than ``.json``.
            StoreError: the file cannot be written. An earlier file is not changed.
        """
        check_ending(Path(path), ".json")
        return write_text(path, strict_json.dumps(self.to_document()))
