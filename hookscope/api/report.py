"""Write a capture, or two side by side, as one HTML page."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hookscope.errors import CheckFailed
from hookscope.files.atomic_files import write_text
from hookscope.results.capture_arrays import InMemory, open_source
from hookscope.results.notebook import NotebookResult
from hookscope.specs.output_path import PAGE, check_ending
from hookscope.views import display
from hookscope.views.html.page import write_page
from hookscope.views.html.page_builder import build_page
from hookscope.views.html.page_limits import MAX_PAGE_BYTES, descending_limits

if TYPE_CHECKING:
    from rich.text import Text

    from hookscope.views.text.text_table import TextOptions


@dataclass(frozen=True)
class Report(NotebookResult):
    """A page and a summary of its contents.

    Attributes:
        html: the page, without a final newline.
        tensors: number of tensors with a row and a panel; missing ones are not counted.
        layers: number of modules in the tree.
        warnings: one sentence each, preceded by the letter of the file if there are two.
        chosen: what the page shows of the files, and what it leaves out.
        failed: figures that could not be drawn, each with the reason.
    """

    html: str = field(repr=False)
    tensors: int
    layers: int
    warnings: tuple[str, ...]
    chosen: tuple[str, ...]
    failed: tuple[str, ...]

    def __repr__(self) -> str:
        size = len(self.html.encode())
        return f"<Report of {self.tensors} tensors of {self.layers} layers: {size} bytes of HTML>"

    def save(self, path: str | os.PathLike[str]) -> int:
        """Write the page to a file; return its size in bytes.

        Raises:
            RequestError: the name has an ending other than ``.html``.
            StoreError: the file cannot be written. An existing file is then unchanged.
        """
        check_ending(Path(path), PAGE)
        return write_text(path, self.html)


@display.text.register(Report)
def _(result: Report, options: TextOptions) -> list[Text]:
    from hookscope.views.text.report import report_lines

    return report_lines(result, options)


def report(
    file: str | os.PathLike[str] | InMemory, other: str | os.PathLike[str] | InMemory | None = None
) -> Report:
    """Return a capture as one self-contained HTML page, without torch.

    The page stays under 20 MB: it shows less of many or large tensors, and says so.

    Args:
        file: a file that ``capture``, ``grads``, ``step`` or ``Capture.save`` wrote, or a capture
            in memory.
        other: a second one to show beside it: values of the same key next to each other, with
            their differences.

    Raises:
        ResultsFileError: a file is missing or damaged, or hookscope did not write it.
        CheckFailed: the metadata alone is too large for a page.

    Example:
        >>> import torch, hookscope
        >>> model = torch.nn.Linear(4, 2)
        >>> with hookscope.record(model) as capture:
        ...     _ = model(torch.ones(1, 4))
        >>> _ = capture.save("linear.safetensors")
        >>> page = hookscope.report("linear.safetensors")
        >>> page.tensors, page.warnings, page.html[:15]
        (1, (), '<!doctype html>')
    """
    captures = [open_source(source) for source in (file, other) if source is not None]
    for choice in descending_limits(captures):
        page = build_page(captures, choice)
        html = write_page(page)
        if len(html.encode()) < MAX_PAGE_BYTES:
            break
    else:
        raise CheckFailed(
            f"The report for {captures[0].path} would exceed {MAX_PAGE_BYTES // 10**6} MB.",
            "Record fewer layers.",
        )
    figures = [
        f for node in page.tree for e in node.entries for panel in e.panels for f in panel.figures
    ]
    figures += [figure for side in page.sides for figure in side.figures]
    return Report(
        html,
        sum(not row.missing for row in page.rows),
        len(page.tree),
        tuple(f"{s.letter}: {text}".lstrip(": ") for s in page.sides for text in s.warnings),
        page.chosen,
        tuple(f"{figure.title}: {figure.failed}" for figure in figures if figure.failed),
    )
