"""Sources of models that other packages register: entry points of the group ``hookscope.sources``.

Torch-free. Looking takes 50 ms, so it is done only for a prefix that nothing else knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "hookscope.sources"


def registered() -> dict[str, EntryPoint]:
    """Return the entry points by the prefix that each is for; none of them is imported."""
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in entry_points(group=GROUP)}
