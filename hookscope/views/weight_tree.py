"""A tree of weights as text: a row for each name, totals by dtype, and the file's metadata."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from hookscope.files.words import bytes_text, count_text, plural, shape_text, short_count_text
from hookscope.specs.patterns import layer_text
from hookscope.stores.weights.weight_tree import WeightNode, WeightTree
from hookscope.views.display import View, json_document
from hookscope.views.text.name_guides import name_guides
from hookscope.views.text.table import NOTE, Cell, Column, Row, Table, drop, shorten
from hookscope.views.text.text_table import TextOptions, join_blocks, result_table, sentence

if TYPE_CHECKING:
    from hookscope.stores.weights.weight_tree import WeightHashes

COLUMNS = (
    Column("tensor"),
    Column("dtype", optional=True),
    Column("shape", right=True),
    Column("parameters", "params", right=True),
    Column("bytes", right=True),
)
SQUEEZE = (*shorten("parameters"), *drop("dtype", "note", "parameters"))
MIXED = "mixed"
MAX_METADATA = 12  # entries, and characters of each, unless -v is given
MAX_VALUE = 60


def weight_tree_lines(tree: WeightTree, options: TextOptions) -> list[Text]:
    """Return the tree, a line of totals, and the metadata."""
    guides = _guides(tree, options)
    rows = tuple(
        Row(_cells(node), _note(node), *guide)
        for node, guide in zip(tree.modules, guides, strict=True)
    )
    table = result_table(Table(COLUMNS, rows, SQUEEZE), options)
    totals = [line for text in _totals(tree) for line in sentence(text, options, "bold")]
    notes = [line for text in tree.weights.notes for line in sentence(text, options)]
    return join_blocks([*table, *totals, *notes], _metadata(tree, options), options=options)


def hash_lines(hashes: WeightHashes, options: TextOptions) -> list[Text]:
    """Return the hash of the architecture and that of the weights, each on a line."""
    lines = sentence(f"architecture  {hashes.architecture}", options)
    return lines + sentence(f"weights       {hashes.weights}", options)


def _guides(tree: WeightTree, options: TextOptions) -> list[tuple[str, str]]:
    if options.width is None:  # a pipe has none, and this is a sixth of the time of the table
        return [("", "")] * len(tree.modules)
    names = [node.name for node in tree.modules]
    if tree.separator != ".":
        names = [name.replace(tree.separator, ".") for name in names]
    return name_guides(names, options)


def _cells(node: WeightNode) -> tuple[Cell, ...]:
    tensor = node.tensor
    dtype = node.dtypes[0] if len(node.dtypes) == 1 else MIXED if node.dtypes else ""
    shape = "" if tensor is None else shape_text(tensor.shape) or "scalar"
    return (
        Cell(layer_text(node.name) if node.depth == 0 else node.name),
        Cell(dtype, full=",".join(node.dtypes), style="cyan"),
        Cell(shape),
        Cell(count_text(node.parameters), short_count_text(node.parameters), value=node.parameters),
        Cell(bytes_text(node.nbytes), value=node.nbytes),
    )


def _note(node: WeightNode) -> Cell:
    if node.tensor is None:
        return Cell()
    if node.tensor.tied_to:
        return Cell(f"tied to {node.tensor.tied_to}")
    return Cell("buffer" if node.tensor.is_buffer else "")


def _totals(tree: WeightTree) -> Iterator[str]:
    weights, total = tree.weights, tree.total
    dtype = f" of {tree.dtypes[0].dtype}" if len(tree.dtypes) == 1 else ""
    parts = [
        plural(total.tensors, "tensor"),
        plural(total.parameters, "parameter") + dtype,
        *([plural(total.buffers, "buffer value")] if total.buffers else []),
        bytes_text(total.nbytes),
    ]
    tied = sum(1 for tensor in weights.tensors.values() if tensor.tied_to)
    if tied:
        parts.append(f"{count_text(tied)} tied, counted once")
    yield f"{weights.label} ({weights.kind}): {', '.join(parts)}."
    if len(tree.dtypes) > 1:
        each = (
            f"{of.dtype} {count_text(of.entries)} {'entry' if of.entries == 1 else 'entries'}"
            f" in {plural(of.tensors, 'tensor')} ({bytes_text(of.nbytes)})"
            for of in tree.dtypes
        )
        yield f"By dtype: {', '.join(each)}."


def _metadata(tree: WeightTree, options: TextOptions) -> list[Text]:
    entries = list(tree.weights.metadata.items())
    shown = entries if options.verbose else entries[:MAX_METADATA]
    lines: list[Text] = []
    for key, value in shown:
        cut = f"{value[:MAX_VALUE]}..." if len(value) > MAX_VALUE and not options.verbose else value
        lines += sentence(f"{key}: {cut}", options)
    if left := len(entries) - len(shown):
        lines += sentence(f"... and {count_text(left)} more; -v prints all.", options, "dim")
    return lines


VIEW: View[WeightTree] = View(weight_tree_lines, json_document("tree"), columns=(*COLUMNS, NOTE))
HASHES: View[WeightHashes] = View(hash_lines, json_document("tree"))
