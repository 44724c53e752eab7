"""Shows any result with the view that it names: as text, JSON document, HTML, page or picture."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from hookscope.errors import RequestError
from hookscope.files.atomic_files import write_text
from hookscope.files.output_path import PAGE, PICTURE_MARKS
from hookscope.results.records import Recording
from hookscope.views.images.figures.drawing import Drawing

if TYPE_CHECKING:
    from rich.text import Text

    from hookscope.stores.capture_file import CaptureFile
    from hookscope.views.text.table import Column
    from hookscope.views.text.text_table import TextOptions

R = TypeVar("R")
SCHEMA = 1


@dataclass(frozen=True)
class View(Generic[R]):
    """How results of one class are shown.

    Each file of ``hookscope.views`` ends with the views that it defines, as constants. A result
    names its view: ``"lens"`` is ``VIEW`` in ``lens.py``, ``"training_run.CURVES"`` another one.

    Attributes:
        text: returns the lines that the command prints.
        document: returns what ``--json`` prints, from the result and the file that was written;
            None if there is none.
        page: writes a page of HTML and returns its size in bytes; None if there is none.
        picture: draws the result with a number of dots per inch; None if there is none.
        columns: those by which ``--sort`` can order the table; empty if they vary.
    """

    text: Callable[[R, TextOptions], list[Text]]
    document: Callable[[R, str | None], dict[str, Any]] | None = None
    page: Callable[[R, Path], int] | None = None
    picture: Callable[[R, int], Drawing] | None = None
    columns: tuple[Column, ...] = ()


def make_document(command: str, content: dict[str, Any]) -> dict[str, Any]:
    """Return ``content`` with the schema version and the command before its keys."""
    rest = {key: value for key, value in content.items() if key not in ("schema", "command")}
    return {"schema": SCHEMA, "command": command, **rest}


def json_document(command: str) -> Callable[[Any, str | None], dict[str, Any]]:
    """Return what makes the document of a result from its ``to_json``."""
    return lambda result, file: make_document(command, result.to_json())


def filed_document(command: str) -> Callable[[Any, str | None], dict[str, Any]]:
    """Return what makes the document of a result and of the file that was written."""
    return lambda result, file: make_document(command, {**result.to_json(), "file": file})


class Shown(Protocol):
    """Anything that names its view: a result, a failed pass, a tensor of a file."""

    @property
    def view(self) -> str:
        """A file of ``hookscope.views``, or ``file.CONSTANT``."""


class Analysis(Shown, Protocol):
    """A result with a file of its own."""

    def save(self, path: Path) -> int:
        """Write the document, or the table, that the suffix of the path names."""


def find_view(name: str) -> View[Any]:
    """Return a view by its name, such as ``lens`` or ``training_run.CURVES``."""
    module, _, constant = name.partition(".")
    view: View[Any] = getattr(import_module(f"hookscope.views.{module}"), constant or "VIEW")
    return view


def text(result: Shown, options: TextOptions) -> list[Text]:
    """Return a result as the lines that its command prints."""
    return find_view(result.view).text(result, options)


def document(result: Shown, file: str | None = None) -> dict[str, Any]:
    """Return a result as the document that its command prints with ``--json``."""
    make = find_view(result.view).document
    if make is None:
        raise TypeError(f"{type(result).__name__} has no view as a JSON document")
    return make(result, file)


def html(result: Shown) -> str:
    """Return a result as HTML for a notebook: the tables and sentences of ``text``, escaped."""
    from hookscope.views.text.text_table import NOTEBOOK

    view, pictures = find_view(result.view), []
    if isinstance(result, Recording) and result.metadata.get("command") == "cam":
        from hookscope.stores.capture_file import CaptureFile, InMemory

        view = find_view("cam")
        source = result.reader() if isinstance(result, InMemory) else result
        pictures = [_cam_picture(source)] if isinstance(source, CaptureFile) else []
    lines = (line.plain for line in view.text(result, NOTEBOOK))
    return "\n".join(["<div>", *pictures, *lines, "</div>"])


def _cam_picture(result: CaptureFile) -> str:
    """The picture of a result of ``cam``, which is part of the HTML."""
    import io
    from base64 import b64encode

    from hookscope.views.images.cam_picture import sheet_of
    from hookscope.views.images.cam_sheet import OverlayStyle, paint

    stream = io.BytesIO()
    paint(sheet_of(result, OverlayStyle())).save(stream, "PNG")
    data = b64encode(stream.getvalue()).decode()
    return f'<img alt="cam" style="max-width:100%" src="data:image/png;base64,{data}">'


def result_columns(views: Iterable[str]) -> tuple[Column, ...]:
    """Return the columns by which the tables of these views can be sorted; empty if they vary."""
    columns = dict.fromkeys(column for name in views for column in find_view(name).columns)
    # Notes stand last, also where a command has several tables.
    return tuple(sorted(columns, key=lambda column: column.title == "note"))


def write_analysis(result: Analysis, path: Path, dpi: int) -> int:
    """Write a result in the format that the suffix names; return the size of the file in bytes."""
    suffix = path.suffix.lower()
    if suffix in PICTURE_MARKS:
        return draw_analysis(result, dpi).save(path, dpi)
    if suffix == PAGE:
        page = find_view(result.view).page
        if page is None:
            raise _no_format(result, "page")
        return page(result, path)
    if suffix == ".csv" and result.view != "layer_similarity":  # it has a matrix of its own
        return _write_table(result, path)
    return result.save(path)


def draw_analysis(result: Shown, dpi: int) -> Drawing:
    """Return the picture of a result; ``dpi`` is for the images in it."""
    picture = find_view(result.view).picture
    if picture is None:
        raise _no_format(result, "picture")
    return picture(result, dpi)


def _no_format(result: Shown, name: str) -> RequestError:
    return RequestError(
        f"A {type(result).__name__} has no {name}.", "Name a .json or .csv file with --output."
    )


def _write_table(result: Shown, path: Path) -> int:
    """Write the table that ``--csv`` prints."""
    from hookscope.views.text.table import CollectedTables, csv_text
    from hookscope.views.text.text_table import TextOptions

    collected = CollectedTables()
    text(result, TextOptions(tables=collected))
    table = collected.take()
    return write_text(path, csv_text(table).removesuffix("\n") if table is not None else "")
