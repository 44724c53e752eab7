"""A page of HTML as a result: the page itself, and what it shows and leaves out."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hookscope.files.atomic_files import write_text
from hookscope.files.output_path import PAGE, check_ending
from hookscope.results.result import Result


@dataclass(frozen=True)
class Report(Result):
    """A page and a summary of its contents.

    Attributes:
        html: the page, without a final newline.
        tensors: number of tensors with a row and a panel, of measured tensors of a run, or of
            tensors in a file of weights; missing ones are not counted.
        layers: number of modules with such a tensor.
        warnings: one sentence each, preceded by the letter of the file or run if there are
            several.
        chosen: what the page shows of the files or runs, and what it leaves out.
        failed: figures that could not be drawn, each with the reason.

    Example:
        >>> import tempfile, hookscope
        >>> page = hookscope.report("sample_models/digits.safetensors")
        >>> page.tensors, page.layers
        (6, 3)
        >>> size = page.save(tempfile.mkdtemp() + "/digits.html")
        >>> size == len(page.html.encode()) + 1  # with a final newline
        True
    """

    view = "report"

    html: str = field(repr=False)
    tensors: int
    layers: int
    warnings: tuple[str, ...]
    chosen: tuple[str, ...]
    failed: tuple[str, ...]

    def __repr__(self) -> str:
        size = len(self.html.encode())
        return f"<Report of {self.tensors} tensors of {self.layers} layers: {size} bytes of HTML>"

    def to_json(self) -> dict[str, Any]:
        """Return what the page shows and leaves out, without the page itself."""
        return {name: value for name, value in vars(self).items() if name != "html"}

    def save(self, path: str | os.PathLike[str]) -> int:
        """Write the page to a file; return its size in bytes.

        Raises:
            RequestError: the name has an extension other than ``.html``.
            StoreError: the file cannot be written. An existing file is then unchanged.
        """
        check_ending(Path(path), PAGE)
        return write_text(path, self.html)
