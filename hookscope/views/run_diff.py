"""Two training runs compared, as text: the first step of each kind of series, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from hookscope.file_analysis.run_diff import (
    BATCH,
    LEARNING_RATE,
    LOSS,
    LOSS_SCALE,
    TOTAL,
    KindComparison,
    RunDiff,
    RunDifference,
    RunDiffs,
    SketchedSteps,
)
from hookscope.files.words import FULL_DIGITS, count_text, full_text, plural
from hookscope.specs.patterns import layer_text
from hookscope.stores.runs.series import (
    GENERATORS,
    OUTPUT,
    OUTPUT_GRAD,
    PARAMETER,
    PARAMETER_GRAD,
    STATE,
    UPDATE,
)
from hookscope.views.display import View, json_document
from hookscope.views.text.shared_parts import (
    ALERT_STYLE,
    FIRST_DIFFERENCE_NOTE,
    NOTICE_STYLE,
    join_names,
    number_cell,
    styled_lines,
)
from hookscope.views.text.table import NOTE, Cell, Column, Row, Table, drop, shorten
from hookscope.views.text.text_table import TextOptions, join_blocks, result_table, sentence

COUNTS = (
    Column("series"),
    Column("compared", right=True),
    Column("differ", right=True),
    Column("first step", "step", right=True),
)
PLACE = (Column("where"), Column("measure"))
VALUES = (Column("A", right=True), Column("B", right=True))
COLUMNS = (*COUNTS, *PLACE, *VALUES)
SQUEEZE = (*shorten("A", "B", "first step"), *drop("note", "compared", "differ"))
_OTHER_CELLS = 62  # of the columns but the place, about, and the spaces between all
NAMES = {
    BATCH: "batch size",
    OUTPUT: "outputs",
    LOSS: "loss",
    OUTPUT_GRAD: "gradients at outputs",
    PARAMETER_GRAD: "gradients of parameters",
    TOTAL: "gradient norm of the model",
    LOSS_SCALE: "loss scale",
    LEARNING_RATE: "learning rate",
    UPDATE: "updates",
    PARAMETER: "parameters",
}
# Of what a resumed run begins with: the names, and what is likely if one differs.
SEAM_NAMES = {
    PARAMETER: "weights",
    STATE: "optimizer state",
    LEARNING_RATE: "learning rate",
    LOSS_SCALE: "loss scale",
    BATCH: "batch",
    GENERATORS: "random generators",
}
CAUSES = {
    PARAMETER: "The checkpoint is of another step, was written or loaded with less precision, or"
    " was not loaded into every layer.",
    STATE: "The optimizer was not restored, or not all of it.",
    LEARNING_RATE: "The scheduler was not restored, or it stepped once more or once less.",
    LOSS_SCALE: "The gradient scaler was not restored.",
    BATCH: "The generator that orders the data was not restored, or the data loader did not go on"
    " where it was.",
    GENERATORS: "What is drawn from them differs, such as dropout and the order of the next epoch.",
}
OTHER_CAUSES = (
    "What differs is not recorded: a buffer, a generator of the script's own, training instead of"
    " evaluation mode, or an operation whose result varies."
)


def run_diff_lines(result: RunDiff, options: TextOptions) -> list[Text]:
    """Return the table and the verdict."""
    # The names of layers are not cut: where they leave no room for the values, they come below.
    places = [len(_where(row.first)) for row in result.rows if row.first]
    is_narrow = options.width is not None and max(places, default=0) + _OTHER_CELLS > options.width
    names = NAMES | SEAM_NAMES if result.shift else NAMES
    rows = tuple(_row(names[row.kind], row, result.first, is_narrow) for row in result.rows)
    columns = (*COUNTS, *VALUES) if is_narrow else COLUMNS
    table = result_table(Table(columns, rows, SQUEEZE), options)
    return join_blocks(table, styled_lines(_verdict(result, options), options), options=options)


def run_diffs_lines(result: RunDiffs, options: TextOptions) -> list[Text]:
    """Return the comparison of A with each of the other runs, each below the names of both."""
    blocks = []
    for diff in result.diffs:
        names = f"A is {diff.a['folder']}, B is {diff.b['folder']}."
        blocks += [sentence(names, options, "bold"), run_diff_lines(diff, options)]
    return join_blocks(*blocks, options=options)


def _row(name: str, row: KindComparison, first: RunDifference | None, is_narrow: bool) -> Row:
    style = ALERT_STYLE if row.first else ""
    cells = [
        Cell(name),
        Cell(count_text(row.series), value=row.series),
        Cell(count_text(row.differing), value=row.differing, style=style),
    ]
    if row.first is None:
        columns = (*COUNTS, *VALUES) if is_narrow else COLUMNS
        return Row.of(*cells, *[Cell("-")] * (len(columns) - len(cells)))
    cells.append(Cell(count_text(row.first.step), value=row.first.step, style=style))
    place = [Cell(_where(row.first)), Cell(row.first.measure)]
    values = (number_cell(row.first.a), number_cell(row.first.b))
    note = FIRST_DIFFERENCE_NOTE if row.first == first else ""
    if not is_narrow:
        return Row((*cells, *place, *values), Cell(note, style=ALERT_STYLE))
    text = ", ".join(filter(None, (*(cell.text for cell in place), note)))
    return Row((*cells, *values), Cell(text, style=ALERT_STYLE if note else ""))


def _where(difference: RunDifference) -> str:
    rank = "" if difference.rank is None else f" (rank {difference.rank})"
    if not difference.layer:
        return difference.key + rank
    return layer_text(difference.layer) + difference.key.removeprefix(difference.layer) + rank


def _distinct_texts(a: float, b: float) -> tuple[str, str]:
    """Two numbers with as few digits as show that they differ, but at least four."""
    digits = range(4, FULL_DIGITS)
    return next(
        (texts for n in digits if len(set(texts := (full_text(a, n), full_text(b, n)))) > 1),
        (full_text(a, FULL_DIGITS), full_text(b, FULL_DIGITS)),
    )


def _verdict(result: RunDiff, options: TextOptions) -> list[tuple[str, str]]:
    """The sentences under the table, each with its style."""
    sentences = list(_seam_sentences(result))
    first, layer = result.first, result.first_layer
    if first is None:
        text = f"{plural(result.steps[2], 'step')} compared ({count_text(result.sampled[2])} of"
        exact = "within tolerance" if result.atol or result.rtol else "exactly"
        sentences.append((f"{text} them sampled): all values agree {exact}.", "green"))
    else:
        a, b = _distinct_texts(first.a, first.b)
        text = f"The first difference is at step {count_text(first.step)}: {_where(first)}"
        values = "" if first.measure == "hash" else f", {first.measure} {a} in A and {b} in B"
        sentences.append((f"{text}{values}.", ALERT_STYLE))
        sentences += _layer_sentences(first, layer)
        if result.shift and False not in result.seam.values():
            sentences.append((_cause(result), NOTICE_STYLE))
        weights = next((row.first for row in result.rows if row.kind == PARAMETER), None)
        if (
            not result.shift
            and weights
            and weights.measure == "norm"
            and weights.step == first.step
        ):
            text = f"The weights differ before step {count_text(first.step)} already."
            sentences.append((text, NOTICE_STYLE))
    if result.sketched:
        sentences.append(_sketch_sentence(result.sketched))
    style = ALERT_STYLE if result.strict else NOTICE_STYLE
    for counts, noun in ((result.steps, "step"), (result.sampled, "sampled step")):
        if len(set(counts)) > 1:
            of_b, both = map(count_text, counts[1:])
            since = f" from step {count_text(result.shift)} on" if result.shift else ""
            text = f"A has {plural(counts[0], noun)}{since}, B {of_b}; {both} are in both."
            sentences.append((text, style))
    for names, side in ((result.only_a, "A"), (result.only_b, "B")):
        if names:
            sentences.append((f"Only {side} has {join_names(names, options)}.", style))
    return sentences


def _sketch_sentence(found: SketchedSteps) -> tuple[str, str]:
    """What the fingerprints of the steps say, with its style."""
    if found.change is None or found.step is None:
        return (
            f"Fingerprints of {plural(found.steps, 'step')}: no output differs by more than"
            " rounding.",
            "green",
        )
    change, rank = found.change, "" if found.rank is None else f" of rank {found.rank}"
    size = change.note or f"by {change.error:.2g} of its norm"
    text = f"Fingerprints: the first output beyond rounding is {change.key} of {found.model}{rank}"
    return f"{text}, at step {count_text(found.step)} ({size}).", ALERT_STYLE


def _seam_sentences(result: RunDiff) -> Iterator[tuple[str, str]]:
    """What agrees and what differs at B's first step, and the likely cause."""
    seam = result.seam
    same, differing, missing = (
        [SEAM_NAMES[kind] for kind, agrees in seam.items() if agrees is wanted]
        for wanted in (True, False, None)
    )
    step = f"step {count_text(result.shift)} of A, step 0 of B"
    if differing:
        verb = "differ" if differing[0].endswith("s") else "differs"
        text = f"The {differing[0]} {verb} at the first step after resuming ({step})."
        yield f"{text} {_cause(result)}", ALERT_STYLE
        if differing[1:]:
            yield f"Also different at that step: {', '.join(differing[1:])}.", NOTICE_STYLE
    elif same:
        text = f"The same at the first step after resuming ({step}): {', '.join(same)}."
        yield text, "green"
    if missing:
        text = f"Not compared: {', '.join(missing)}. A or B has no record, or --layer or a"
        yield f"{text} tolerance leaves it out.", NOTICE_STYLE


def _cause(result: RunDiff) -> str:
    """What has probably made the first difference."""
    first, again = result.first, result.same_batch
    assert first is not None
    if first.kind == BATCH and first.step == result.shift and again is not None:
        text = f"B's first batch is that of step {count_text(again)} of A"
        start = f"{text}: the data loader starts over."
        return start if again == 0 else f"{text}. {CAUSES[BATCH]}"
    return CAUSES.get(first.kind, OTHER_CAUSES)


def _layer_sentences(first: RunDifference, layer: RunDifference | None) -> list[tuple[str, str]]:
    if layer is None or layer == first:
        return []
    text = f"The first layer that differs is {layer_text(layer.layer)}, at step"
    return [(f"{text} {count_text(layer.step)} ({_where(layer)}, {layer.measure}).", "")]


VIEW: View[RunDiff] = View(run_diff_lines, json_document("diff"), columns=(*COLUMNS, NOTE))
DIFFS: View[RunDiffs] = View(run_diffs_lines, json_document("diff"), columns=(*COLUMNS, NOTE))
