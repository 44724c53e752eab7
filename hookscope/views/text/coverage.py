"""Which layers ran and which never did, in a few lines."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from hookscope.results.records import Coverage
from hookscope.views.text.lower import sentence
from hookscope.views.text.text import count, plural

NAMED = 3  # names given for one cause on a terminal; a pipe gets all of them


def coverage_lines(coverage: Coverage, width: int | None, ascii: bool = False) -> list[Text]:
    """Return what matched, ran (and how often), and never ran, grouped by likely cause.

    Args:
        coverage: which modules ran.
        width: cells of the terminal, None for a pipe; a pipe names every layer.
        ascii: write everything outside ASCII as an escape.
    """
    some = None if width is None else NAMED
    again = [f"{f.module} x{f.calls}" for f in coverage.fired if f.calls > 1]
    text = f"{plural(coverage.matched, 'layer')} matched, {count(len(coverage.fired))} ran"
    if again:
        text += f" ({count(len(again))} of them more than once: {listed(again, some)})"
    lines = sentence(text + ".", width, ascii)
    causes: dict[str, list[str]] = {}
    for silent in coverage.silent:
        causes.setdefault(silent.reason, []).append(silent.module)
    for cause, names in causes.items():
        lines += sentence(f"Never ran: {listed(names, some)} ({cause}).", width, ascii, "yellow")
    left_out = some is not None and max([len(again), *map(len, causes.values())]) > NAMED
    return lines + (sentence("--json has all names.", width, ascii, "dim") if left_out else [])


def listed(names: Sequence[str], some: int | None) -> str:
    """Return the names with commas between; on a terminal the first ``some`` and a count."""
    if some is None or len(names) <= some:
        return ", ".join(names)
    return f"{', '.join(names[:some])} and {count(len(names) - some)} more"
