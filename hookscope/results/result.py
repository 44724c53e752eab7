"""What the functions of hookscope return: plain data that knows the name of its view.

A view is imported when a result is shown, so that a program that shows nothing loads none.
"""

from __future__ import annotations

from importlib import import_module
from typing import ClassVar


class Result:
    """Data that a command prints and a notebook shows as a table.

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
        shown: str = import_module("hookscope.views.display").html(self)
        return shown
