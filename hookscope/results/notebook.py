"""What results show in a notebook: the view of their type, as HTML.

A result knows nothing of its views. This class imports them when a notebook asks for HTML, so that
a program that shows nothing loads none of them.
"""

from __future__ import annotations


class NotebookResult:
    """A result that a notebook shows as a table.

    Example:
        >>> import hookscope
        >>> tree = hookscope.tree("resnet18", types=["Linear"])
        >>> tree
        <ModuleTree of resnet18: 1 of its modules, 11,689,512 parameters>
        >>> "<td" in tree._repr_html_()
        True
    """

    def _repr_html_(self) -> str:
        """Return the result as HTML; Jupyter calls this."""
        from hookscope.views.display import html

        return html(self)
