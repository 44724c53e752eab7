"""A class activation map as text: how it was made, and the class and the peak for each image."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from hookscope.files.strict_json import parse_number
from hookscope.files.words import number_text, plural, shape_text
from hookscope.results.metadata import CamImage, CamMetadata, CamObject
from hookscope.results.records import Recording
from hookscope.specs.patterns import layer_text
from hookscope.views.capture import capture_document
from hookscope.views.display import View
from hookscope.views.text.shared_parts import (
    ALERT_STYLE,
    NOTICE_STYLE,
    count_cell,
    label_cell,
    number_cell,
    probability_cell,
    untrained_lines,
)
from hookscope.views.text.table import NOTE, Cell, Column, Row, Table, drop, shorten
from hookscope.views.text.text_table import TextOptions, join_blocks, result_table, sentence

COLUMNS = (
    Column("input"),
    Column("class", optional=True),
    Column("index", right=True),
    Column("score", right=True),
    Column("probability", "prob", right=True),
    Column("peak", right=True),
    Column("pixel", right=True),
    Column("largest", "max", right=True),
)
SQUEEZE = (
    *shorten("probability", "score", "largest"),
    *drop("note", "index", "largest", "peak", "probability", "score"),
)


def cam_lines(capture: Recording, options: TextOptions) -> list[Text]:
    """Return how the map was made, and a row for each image.

    ``peak`` is a position on the layer's grid, ``pixel`` one in the image. Rows and columns count
    from 0 at the upper left.
    """
    cam = capture.metadata["cam"]
    lines = sentence(f"{cam['method']}: {cam['formula']}.", options, "bold")
    for text in _sentences(cam):
        lines += sentence(text, options)
    rows = tuple(_row(entry) for entry in cam["images"])
    table = result_table(Table(COLUMNS, rows, SQUEEZE), options)
    if any(entry["index"] is not None for entry in cam["images"]):
        table += untrained_lines(capture.metadata, options)
    return join_blocks(lines, table, options=options)


def _sentences(cam: CamMetadata) -> Iterator[str]:
    """What is known of the layers and of the way in which the map was made."""
    if "layer" in cam:
        yield _layer_text(cam)
    if "scores" in cam:
        yield f"Scores: output {cam['scores']}."
    for entry in cam["images"]:
        if "detection" in entry:
            yield _object_text(entry)
        if "strongest" in entry:
            yield _unit_text(entry)
    if "layers" in cam:
        tokens, *others = cam["tokens"]
        read = f"token {tokens[0]}" if len(tokens) == 1 else f"{len(tokens)} tokens, by their mean"
        if any(other != tokens for other in others):
            read = "tokens that differ by image, by their mean"
        yield f"Attention of {plural(len(cam['layers']), 'layer')}, read at {read}."
    if "relus" in cam:
        unguided = ", ".join(f"{name} {count}" for name, count in cam["unguided"].items())
        rest = f"; unchanged: {unguided}" if unguided else ""
        yield f"Guided backpropagation through {plural(cam['relus'], 'ReLU')}{rest}."
    if "steps" in cam:
        gap = max((abs(parse_number(gap) or 0.0) for gap in cam["gap"]), default=0.0)
        yield (
            f"From the {cam['baseline']} baseline in {plural(cam['steps'], 'step')}; the sum over"
            f" the pixels differs from the change of the score by at most {number_text(gap)}."
        )


def _unit_text(entry: CamObject) -> str:
    """Which unit has the highest activation, and what it depends on."""
    strongest = entry["strongest"]
    ranges = ", ".join(f"{first} to {last}" for first, last in strongest["field"])
    unit = ",".join(map(str, strongest["unit"]))
    value = number_text(parse_number(strongest["activation"]))
    return (
        f"Strongest unit of {layer_text(strongest['layer'])} for {entry['spec']}: {unit} ({value});"
        f" it depends on positions {ranges} of the input's sides."
    )


def _object_text(entry: CamObject) -> str:
    """Which of the objects it is, and where."""
    text = f"Box {entry['detection']} of {plural(entry['detections'], 'object')}, by score"
    if "box" not in entry:
        return f"{text}."
    left, top, right, bottom = (number_text(float(edge), 4) for edge in entry["box"])
    return f"{text}: x {left} to {right}, y {top} to {bottom}."


def _layer_text(cam: CamMetadata) -> str:
    letters = ", ".join(cam["layout"])
    what = "tokens" if cam["layout"] == "NLC" else "maps"
    layer = f"{layer_text(cam['layer'])} ({cam['type']}), call {cam['call']}"
    part = f", output {cam['part']}" if "part" in cam else ""
    parts = [
        f"Layer {layer}{part}: {what} ({letters})",
        f"a grid of {shape_text(cam['grid'])}, {plural(cam['channels'], 'channel')}",
    ]
    if cam["layout"] == "NLC":
        parts.append(f"{plural(cam['prefix'], 'token')} before the grid's tokens")
    return f"{', '.join(parts)}; {cam['upsampling']} upsampling to the {cam.get('input', 'image')}."


def _row(entry: CamImage) -> Row:
    largest = parse_number(entry["largest"])
    name = label_cell(entry) if entry["index"] is not None else Cell("several")
    note = Cell()
    if largest is None or largest != largest:
        note = Cell("NaN!", style=ALERT_STYLE)
    elif not largest:
        note = Cell("zero everywhere: nothing supports this class", style=NOTICE_STYLE)
    cells = (
        Cell(entry["spec"]),
        name,
        Cell() if entry["index"] is None else count_cell(entry["index"]),
        number_cell(parse_number(entry["score"])),
        Cell() if entry["probability"] is None else probability_cell(entry),
        Cell(_position_text(entry["peak"])),
        Cell(_position_text(entry["pixel"])),
        number_cell(largest),
    )
    return Row(cells, note)


def _position_text(position: list[int] | None) -> str:
    return ",".join(map(str, position or ()))


VIEW: View[Recording] = View(cam_lines, capture_document, columns=(*COLUMNS, NOTE))
