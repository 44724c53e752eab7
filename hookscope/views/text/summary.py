"""The summary of a recording: that of the command which made it."""

from __future__ import annotations

from rich.text import Text

from hookscope.results.records import Recording
from hookscope.views.text.capture import capture_lines
from hookscope.views.text.extract import statistics_lines
from hookscope.views.text.grads import grads_lines
from hookscope.views.text.step import step_lines


def summary_lines(recording: Recording, width: int | None, ascii: bool = False) -> list[Text]:
    """Return the lines that the command printed when it recorded this.

    Args:
        recording: what was recorded, just now or in a file.
        width: cells of the terminal, None for a pipe.
        ascii: write everything outside ASCII as an escape.
    """
    kinds = {"grads": grads_lines, "step": step_lines, "statistics": statistics_lines}
    return kinds.get(recording.metadata.get("command", ""), capture_lines)(recording, width, ascii)
