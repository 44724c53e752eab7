"""A set of weights as a page: totals, findings, the tree of modules, the table of tensors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from hookscope.file_analysis.weight_findings.weight_health import weight_findings
from hookscope.file_analysis.weights.tensor_measures import (
    TensorMeasures,
    measure_weights,
)
from hookscope.files.progress import NamedProgress
from hookscope.files.shell_words import join_words
from hookscope.files.words import (
    bytes_text,
    count_text,
    plural,
    short_count_text,
    visible,
)
from hookscope.results.health import Finding
from hookscope.specs.health_checks import LEVELS
from hookscope.stores.weights.weight_set import WeightSet, WeightTensor
from hookscope.stores.weights.weight_tree import WeightTree
from hookscope.views.html.page_findings import page_findings
from hookscope.views.html.weights_page import WeightGroup, WeightsPage
from hookscope.views.html.weights_page_table import WEIGHT_COLUMNS, weight_rows
from hookscope.views.html.weights_page_tree import page_tree
from hookscope.views.weight_set import totals_text

MAX_TENSORS = 5000  # on the page
MAX_FINDINGS = 200
MAX_GROUPS = 16  # modules whose totals are listed
MAX_VALUE = 2000  # characters of a text of the metadata


def build_weights_page(
    weights: WeightSet, advance: NamedProgress | None = None
) -> tuple[WeightsPage, tuple[Finding, ...]]:
    """Return the page of a set of weights, and its findings.

    Each tensor is read twice, block by block: for the statistics and for the histogram.
    """
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
        tuple(
            (visible(name), visible(_shortened(text))) for name, text in weights.metadata.items()
        ),
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
