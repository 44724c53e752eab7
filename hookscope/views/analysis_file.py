"""The file of an analysis: a document, a table, a page or a picture.

To add a result, give it a method ``save``, and register its page and its picture here.
"""

from __future__ import annotations

from functools import singledispatch
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from hookscope.file_analysis.units.top_inputs import TopInputs
from hookscope.files.atomic_files import write_text
from hookscope.files.output_path import PAGE, PICTURE_MARKS
from hookscope.results.attribution import Attribution
from hookscope.results.layer_probes import LayerProbes
from hookscope.results.layer_similarity import LayerSimilarity
from hookscope.results.lens import Lens
from hookscope.results.sweep import Sweep

if TYPE_CHECKING:
    from hookscope.views.images.figures.drawing import Drawing


class Analysis(Protocol):
    """A result with a document or a table of its own."""

    def save(self, path: Path) -> int:
        """Write the document, or the table, that the suffix of the path names."""


def write_analysis(result: Analysis, path: Path, dpi: int) -> int:
    """Write a result in the format that the suffix names; return the size of the file in bytes.

    Args:
        result: of one of the types registered here.
        path: the file.
        dpi: pixels per inch, for a picture.

    Raises:
        RequestError: the result is too large for a picture.
        StoreError: the file cannot be written. An earlier file is not changed.
    """
    suffix = path.suffix.lower()
    if suffix == PAGE:
        return _write_page(result, path)
    if suffix in PICTURE_MARKS:
        return draw_analysis(result, dpi).save(path, dpi)
    if suffix == ".csv" and not isinstance(result, LayerSimilarity):  # it has a matrix of its own
        return _write_table(result, path)
    return result.save(path)


def _write_table(result: Analysis, path: Path) -> int:
    """Write the table that ``--csv`` prints."""
    from hookscope.views.display import text
    from hookscope.views.text.csv_table import CollectedTables, csv_text
    from hookscope.views.text.text_table import TextOptions

    collected = CollectedTables()
    text(result, TextOptions(tables=collected))
    table = collected.take()
    return write_text(path, csv_text(table).removesuffix("\n") if table is not None else "")


@singledispatch
def _write_page(result: object, path: Path) -> int:
    raise TypeError(f"{type(result).__name__} has no page")


@singledispatch
def draw_analysis(result: object, dpi: int) -> Drawing:
    """Return the picture of a result; ``dpi`` is for the images in it."""
    raise TypeError(f"{type(result).__name__} has no picture")


@_write_page.register(Attribution)
def _(result: Attribution, path: Path) -> int:
    from hookscope.views.html.attribution_page import write_attribution_page

    return write_attribution_page(result, path)


@draw_analysis.register(Attribution)
def _(result: Attribution, dpi: int) -> Drawing:
    from hookscope.views.images.figures.attribution_figure import draw_attribution

    return draw_attribution(result)


@_write_page.register(LayerSimilarity)
def _(result: LayerSimilarity, path: Path) -> int:
    from hookscope.views.html.similarity_page import write_similarity_page

    return write_similarity_page(result, path)


@draw_analysis.register(LayerSimilarity)
def _(result: LayerSimilarity, dpi: int) -> Drawing:
    from hookscope.views.images.figures.similarity_figure import draw_similarity

    return draw_similarity(result)


@draw_analysis.register(LayerProbes)
def _(result: LayerProbes, dpi: int) -> Drawing:
    from hookscope.views.images.figures.probe_figure import draw_probes

    return draw_probes(result)


@_write_page.register(Lens)
def _(result: Lens, path: Path) -> int:
    from hookscope.views.html.lens_page import write_lens_page

    return write_lens_page(result, path)


@draw_analysis.register(Lens)
def _(result: Lens, dpi: int) -> Drawing:
    from hookscope.views.images.figures.lens_figure import draw_lens

    return draw_lens(result)


@_write_page.register(Sweep)
def _(result: Sweep, path: Path) -> int:
    from hookscope.views.html.sweep_page import write_sweep_page

    return write_sweep_page(result, path)


@draw_analysis.register(Sweep)
def _(result: Sweep, dpi: int) -> Drawing:
    from hookscope.views.images.figures.sweep_figure import draw_sweep

    return draw_sweep(result)


@draw_analysis.register(TopInputs)
def _(result: TopInputs, dpi: int) -> Drawing:
    from hookscope.views.images.figures.top_figure import draw_top_inputs

    return draw_top_inputs(result, dpi)
