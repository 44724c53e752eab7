"""What a page shows, as text: its size, what was left out, the warnings."""

from __future__ import annotations

from rich.text import Text

from hookscope.files.words import plural
from hookscope.results.report import Report
from hookscope.views.display import View
from hookscope.views.text.shared_parts import NOTICE_STYLE, styled_lines
from hookscope.views.text.text_table import TextOptions, sentence


def report_lines(page: Report, options: TextOptions) -> list[Text]:
    """Return how many tensors and layers a page shows, what it leaves out, and its warnings."""
    shown = f"{plural(page.tensors, 'tensor')} of {plural(page.layers, 'layer')}."
    lines = [line for text in (shown, *page.chosen) for line in sentence(text, options)]
    return lines + styled_lines(((text, NOTICE_STYLE) for text in page.warnings), options)


VIEW: View[Report] = View(report_lines)
