"""What ``cam`` found as text: how it was made, and of each image the class and the map's peak."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from hookscope.files.strict_json import parse_number
from hookscope.results.records import Recording
from hookscope.views.text.formats import number_text, plural, shape_text
from hookscope.views.text.shared_parts import (
    ALERT_STYLE,
    NOTICE_STYLE,
    label_cell,
    number_cell,
    probability_cell,
)
from hookscope.views.text.text_table import (
    Cell,
    Column,
    Row,
    Squeeze,
    Table,
    join_blocks,
    sentence,
    table_lines,
)

COLUMNS = (
    Column("input"),
    Column("class", dull=True),
    Column("index", right=True),
    Column("score", right=True),
    Column("probability", "prob", right=True),
    Column("peak", right=True),
    Column("pixel", right=True),
    Column("largest", "max", right=True),
)
SQUEEZE: tuple[Squeeze, ...] = (
    ("shorten", "probability"),
    ("shorten", "score"),
    ("shorten", "largest"),
    *(("drop", title) for title in ("note", "index", "largest", "peak", "probability", "score")),
)


def cam_lines(capture: Recording, width: int | None, ascii: bool = False) -> list[Text]:
    """Return how the map was made, and a row for each image.

    Rows and columns count from 0 at the upper left: ``peak`` on the layer's grid, ``pixel`` in the
    image.

    Args:
        capture: what ``hookscope.cam`` returned.
        width: cells of the terminal, None for a pipe.
        ascii: write everything outside ASCII as an escape.
    """
    told = capture.metadata["cam"]
    lines = sentence(f"{told['method']}: {told['formula']}.", width, ascii, "bold")
    for text in (_layer_text(told), _guided_text(told), _integrated_text(told)):
        lines += sentence(text, width, ascii) if text else []
    rows = tuple(_row(entry) for entry in told["images"])
    return join_blocks(lines, table_lines(Table(COLUMNS, rows, SQUEEZE), width, ascii), width=width)


def _layer_text(told: dict[str, Any]) -> str:
    if "layer" not in told:
        return ""
    order = {"NCHW": "maps (N, C, H, W)", "NHWC": "maps (N, H, W, C)", "NLC": "tokens (N, L, C)"}
    parts = [
        f"Layer {told['layer']} ({told['type']}), call {told['call']}: {order[told['layout']]}",
        f"a grid of {shape_text(told['grid'])}, {plural(told['channels'], 'channel')}",
    ]
    if told["layout"] == "NLC":
        parts.append(f"{plural(told['prefix'], 'token')} before those of the grid")
    return f"{', '.join(parts)}; {told['upsampling']} upsampling to the image."


def _guided_text(told: dict[str, Any]) -> str:
    if "relus" not in told:
        return ""
    others = ", ".join(f"{name} {count}" for name, count in told["unguided"].items())
    rest = f"; left as they are: {others}" if others else ""
    return f"Guided through {plural(told['relus'], 'ReLU')} on the way to the image{rest}."


def _integrated_text(told: dict[str, Any]) -> str:
    if "steps" not in told:
        return ""
    gap = max((abs(parse_number(gap) or 0.0) for gap in told["gap"]), default=0.0)
    return (
        f"From the {told['baseline']} baseline in {plural(told['steps'], 'step')}; what the pixels"
        f" add up to is at most {number_text(gap)} off the change of the score."
    )


def _row(entry: dict[str, Any]) -> Row:
    largest = parse_number(entry["largest"])
    name = label_cell(entry) if entry["index"] is not None else Cell("several")
    note = Cell()
    if largest is None or largest != largest:
        note = Cell("NaN!", style=ALERT_STYLE)
    elif not largest:
        note = Cell("zero everywhere: nothing speaks for this class", style=NOTICE_STYLE)
    cells = (
        Cell(entry["word"]),
        name,
        Cell("" if entry["index"] is None else str(entry["index"])),
        number_cell(parse_number(entry["score"])),
        Cell() if entry["probability"] is None else probability_cell(entry),
        Cell(_position_text(entry["peak"])),
        Cell(_position_text(entry["pixel"])),
        number_cell(largest),
    )
    return Row(cells, note)


def _position_text(place: list[int] | None) -> str:
    return ",".join(map(str, place or ()))
