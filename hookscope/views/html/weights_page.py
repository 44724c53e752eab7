"""A set of weights as a page: totals, findings, the tree of modules, the table of tensors."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from markupsafe import Markup

from hookscope.escapes import visible
from hookscope.file_analysis.tensor_measures import (
    ReadProgress,
    TensorMeasures,
    cache_blocks,
    measure_weights,
)
from hookscope.file_analysis.weight_findings import weight_findings
from hookscope.files.progress_types import NamedProgress
from hookscope.files.shell_words import join_words
from hookscope.files.words import (
    bytes_text,
    count_text,
    number_text,
    plural,
    shape_text,
    short_count_text,
)
from hookscope.results.health import Finding
from hookscope.specs.checks import LEVELS
from hookscope.specs.patterns import layer_text
from hookscope.stores.weights.weight_set import WeightSet, WeightTensor
from hookscope.stores.weights.weight_tree import WeightNode as TreeNode
from hookscope.stores.weights.weight_tree import WeightTree
from hookscope.views.html.page import Page, PageFinding, PageRow, TreeItem, page_findings
from hookscope.views.images.tensor_view import Bin, histogram
from hookscope.views.text.shared_parts import ALERT_STYLE, count_cell, number_cell, share_cell
from hookscope.views.text.table import Cell, Column
from hookscope.views.weight_set import totals_text

BINS = 40
HEIGHT = 20  # of a histogram, in the units of its path
_NUMBERS = ("norm", "mean", "std", "min", "max")
WEIGHT_COLUMNS = (
    Column("#", right=True, about="position in the tree"),
    Column("tensor"),
    Column("shape"),
    Column("dtype"),
    Column("size", right=True, about="as stored"),
    Column("histogram", about="of the finite entries; heights are logarithmic"),
    *(Column(title, right=True) for title in _NUMBERS),
    Column("zeros", right=True, about="share of entries that are exactly zero"),
    Column("NaN", right=True, about="number of entries that are NaN"),
    Column("Inf", right=True, about="number of infinite entries"),
    Column("note"),
)
MAX_TENSORS = 5000  # on the page
MAX_FINDINGS = 200
MAX_GROUPS = 16  # modules whose totals are listed
MAX_VALUE = 2000  # characters of a text of the metadata


@dataclass(frozen=True)
class WeightGroup:
    """Tensors that have something in common, such as a dtype: how many, and their size."""

    name: str
    tensors: str
    parameters: str
    size: str
    share: int


@dataclass(frozen=True)
class WeightsPageNode(TreeItem):
    """A module in the tree: its parameters, and the most serious level of the findings inside."""

    parameters: str
    mark: str


@dataclass(frozen=True)
class WeightsPage(Page):
    """The page of a set of weights."""

    template = "weights_page.html"
    styles = ("findings.css", "weights_page.css")
    scripts = ("glob.js", "filter.js", "table.js", "tree.js", "weights_page.js")

    command: str
    verdict: str
    sentences: tuple[str, ...]
    dtypes: tuple[WeightGroup, ...]
    modules: tuple[WeightGroup, ...]
    metadata: tuple[tuple[str, str], ...]
    findings: tuple[PageFinding, ...]
    tree: tuple[WeightsPageNode, ...]
    columns: tuple[Column, ...]
    rows: tuple[PageRow, ...]


@dataclass(frozen=True)
class PageTree:
    """The modules, parents first, and the index of that of each tensor, in tree order."""

    nodes: tuple[WeightsPageNode, ...]
    owners: dict[str, int]


def page_tree(tree: WeightTree, levels: Mapping[str, str]) -> PageTree:
    """Return the modules that the names of the tensors tell."""
    opens = [
        after.depth > node.depth
        for node, after in zip(tree.modules, tree.modules[1:], strict=False)
    ]
    modules: list[TreeNode] = []
    parents: list[int] = []
    owners: dict[str, int] = {}
    path: list[int] = []  # the modules above the current name
    for node, is_open in zip(tree.modules, [*opens, False], strict=True):
        while path and modules[path[-1]].depth >= node.depth:
            path.pop()
        if is_open or not path:
            parents.append(path[-1] if path else -1)
            path.append(len(modules))
            modules.append(node)
        if node.tensor is not None:
            owners[node.name] = path[-1]
    marks = _module_marks(modules, parents, owners, levels)
    children = Counter(parents)
    places: Counter[int] = Counter()
    nodes = []
    for n, (node, parent) in enumerate(zip(modules, parents, strict=True)):
        places[parent] += 1
        above = modules[parent].name + tree.separator if parent > 0 else ""
        nodes.append(
            WeightsPageNode(
                node.name,
                visible(layer_text(node.name.removeprefix(above))),
                node.depth + 1,
                places[parent],
                children[parent],
                n in children,
                short_count_text(node.parameters),
                marks.get(n, ""),
            )
        )
    return PageTree(tuple(nodes), owners)


def _module_marks(
    modules: Sequence[TreeNode],
    parents: Sequence[int],
    owners: Mapping[str, int],
    levels: Mapping[str, str],
) -> dict[int, str]:
    """The most serious level of the findings in each module."""
    indexes = {node.name: n for n, node in enumerate(modules)} | dict(owners)
    marks: dict[int, str] = {}
    for name, level in levels.items():
        at = indexes.get(name, 0)
        while at >= 0:
            marks[at] = min(marks.get(at, level), level, key=LEVELS.index)
            at = parents[at]
    return marks


def weight_rows(
    weights: WeightSet,
    shown: Sequence[tuple[int, TensorMeasures]],
    owners: Mapping[str, int],
    levels: Mapping[str, str],
    advance: NamedProgress | None,
) -> Iterable[PageRow]:
    """Yield the row of each tensor; the tensors are read for their histograms."""
    progress = ReadProgress(sum(one.tensor.nbytes for _, one in shown), advance)
    known: dict[str, tuple[Bin, ...]] = {}
    for n, (position, one) in enumerate(shown):
        tensor = one.tensor
        bins = known.get(tensor.tied_to, ())
        if one.stats is not None and not bins:
            blocks = cache_blocks(weights.blocks(tensor.name))
            bins = histogram(progress.watch(tensor, blocks), one.stats, BINS)
        known[tensor.name] = bins
        yield PageRow(
            tuple(_cells(position, one, _histogram(tensor.name, bins))),
            f"#t{n}",
            {"node": owners[tensor.name]},
            f"t{n}",
            levels.get(tensor.name, ""),
        )


def _histogram(name: str, bins: Sequence[Bin]) -> Markup:
    if not bins:
        return Markup()
    largest = count_text(max(bin.count for bin in bins))
    ends = f"{number_text(bins[0].low)} to {number_text(bins[-1].high)}"
    return Markup(
        '<svg viewBox="0 0 {} 20" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<path class="bars" d="M0 20{}"/></svg>'
    ).format(
        len(bins) + 2 * (len(bins) == 1),
        f"Histogram of {visible(name)}: {ends}, highest bar {largest}",
        histogram_outline(bins),
    )


def _cells(position: int, one: TensorMeasures, drawn: Markup) -> Iterable[Cell]:
    tensor, stats = one.tensor, one.stats
    yield count_cell(position)
    yield Cell(visible(tensor.name))
    yield Cell(shape_text(tensor.shape))
    yield Cell(tensor.dtype)
    yield Cell(bytes_text(tensor.nbytes), value=tensor.nbytes)
    yield Cell(drawn)
    if stats is None:
        yield from [Cell()] * (len(_NUMBERS) + 3)
        yield Cell(visible(one.unread), style=ALERT_STYLE)
        return
    yield from (number_cell(getattr(stats, name)) for name in _NUMBERS)
    yield share_cell(stats.zero_share) if stats.numel else Cell()
    for count in (stats.nan, stats.inf):
        yield Cell(count_text(count), value=count, style=ALERT_STYLE * bool(count))
    yield Cell(f"= {visible(tensor.tied_to)}" if tensor.tied_to else "" if stats.numel else "empty")


def histogram_outline(bins: Sequence[Bin]) -> str:
    """Return the outline of a histogram for a path: a step of width 1 for each bin.

    The height of a step is ``log(1 + count)``, and at least half a unit where something is. A
    single bin has an empty one on each side.

    >>> histogram_outline([Bin(0, 1, 3), Bin(1, 2, 0), Bin(2, 3, 15)])
    'V10h1V20h1V0h1V20z'
    """
    if not bins:
        return ""
    largest = max(bin.count for bin in bins)
    steps = []
    for bin in bins:
        height = HEIGHT * math.log1p(bin.count) / math.log1p(largest)
        height = max(round(height * 2) / 2, 0.5) if bin.count else 0
        steps.append(f"V{HEIGHT - height:g}h1")
    if len(bins) == 1:
        steps = ["h1", *steps, f"V{HEIGHT}h1"]
    return "".join(steps) + f"V{HEIGHT}z"


def build_weights_page(
    weights: WeightSet, advance: NamedProgress | None = None
) -> tuple[WeightsPage, tuple[Finding, ...]]:
    """Return the page of a set of weights, each of which is read twice, and its findings."""
    progress = _pass_progress(advance, 0)
    measures = list(measure_weights(weights, advance=progress))
    findings = weight_findings(measures)
    levels = finding_levels(findings)
    names = WeightTree.of(weights)
    tree = page_tree(names, levels)
    order = {name: n for n, name in enumerate(tree.owners)}
    measures.sort(key=lambda one: order[one.name])
    shown = _shown_tensors(measures, levels)
    sentences = [*weights.notes]
    if len(shown) < len(measures):
        sentences.append(
            f"The page has {count_text(len(shown))} of {plural(len(measures), 'tensor')}: those"
            " with findings, then the first ones of the tree. 'hookscope show' prints the"
            " statistics of the others."
        )
    if len(findings) > MAX_FINDINGS:
        sentences.append(
            f"The page lists {MAX_FINDINGS} of {plural(len(findings), 'finding')}; 'hookscope"
            " check' prints all of them."
        )
    rows = list(weight_rows(weights, shown, tree.owners, levels, _pass_progress(advance, 1)))
    links = {one.name: f"#t{n}" for n, (_, one) in enumerate(shown)}
    links = {node.name: f"#n{n}" for n, node in enumerate(tree.nodes)} | links
    page = WeightsPage(
        visible(os.path.basename(os.path.normpath(weights.label))),
        visible(join_words(["hookscope", "report", weights.label])),
        visible(totals_text(weights)),
        tuple(map(visible, sentences)),
        weight_groups(weights, lambda tensor: tensor.dtype),
        weight_groups(weights, top_module(names)),
        tuple((visible(k), visible(_shortened(text))) for k, text in weights.metadata.items()),
        page_findings(findings[:MAX_FINDINGS], links),
        tuple(replace(node, name=visible(node.name)) for node in tree.nodes),
        WEIGHT_COLUMNS,
        tuple(rows),
    )
    return page, findings


def finding_levels(findings: Iterable[Finding]) -> dict[str, str]:
    """Return the most serious level of the findings on each tensor, or on a module itself."""
    levels: dict[str, str] = {}
    for finding in findings:
        for name in (finding.layer, *finding.others):
            known = levels.get(name, finding.level)
            levels[name] = min(known, finding.level, key=LEVELS.index)
    return levels


def _shown_tensors(
    measures: Sequence[TensorMeasures], levels: Mapping[str, str]
) -> list[tuple[int, TensorMeasures]]:
    """The tensors on the page, each with its position in the tree, in that order."""
    numbered = list(enumerate(measures, 1))
    if len(numbered) <= MAX_TENSORS:
        return numbered
    chosen = sorted(numbered, key=lambda pair: pair[1].name not in levels)[:MAX_TENSORS]
    return sorted(chosen, key=lambda pair: pair[0])


def weight_groups(
    weights: WeightSet, group_of: Callable[[WeightTensor], str]
) -> tuple[WeightGroup, ...]:
    """Return totals of the tensors by what ``group_of`` says of each, the largest first."""
    members: dict[str, list[WeightTensor]] = {}
    for tensor in weights.tensors.values():
        members.setdefault(group_of(tensor), []).append(tensor)
    sizes = {
        name: sum(tensor.nbytes for tensor in group if not tensor.tied_to)
        for name, group in members.items()
    }
    ordered = sorted(members, key=lambda name: -sizes[name])
    kept = ordered[: MAX_GROUPS - 1] if len(ordered) > MAX_GROUPS else ordered
    rest = ordered[len(kept) :]
    groups = [(visible(name), members[name], sizes[name]) for name in kept]
    if rest:
        others = [tensor for name in rest for tensor in members[name]]
        groups.append((f"{len(rest)} others", others, sum(sizes[name] for name in rest)))
    whole = max(weights.nbytes, 1)
    return tuple(
        WeightGroup(
            name,
            count_text(len(group)),
            short_count_text(sum(tensor.numel for tensor in group if not tensor.tied_to)),
            bytes_text(size),
            round(100 * size / whole),
        )
        for name, group, size in groups
    )


def top_module(tree: WeightTree) -> Callable[[WeightTensor], str]:
    """Return what names the part of the model of a tensor, below what all names have in common."""
    paths = [name.split(tree.separator) for name in tree.weights.tensors]
    first, last = min(paths), max(paths)
    pairs = zip(first[:-1], last[:-1], strict=False)
    depth = 1 + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    def part_of(tensor: WeightTensor) -> str:
        return tree.separator.join(tensor.name.split(tree.separator)[:depth])

    return part_of


def _pass_progress(advance: NamedProgress | None, number: int) -> NamedProgress | None:
    """Progress of one of two passes over the tensors as that of both."""
    if advance is None:
        return None
    return lambda done, total, name: advance(done + number * total, 2 * total, name)


def _shortened(text: str) -> str:
    left = len(text) - MAX_VALUE
    return text if left <= 0 else f"{text[:MAX_VALUE]} ... and {count_text(left)} more characters"
