"""The tree of a page of weights: the modules that the names of the tensors tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hookscope.files.words import short_count_text, visible
from hookscope.specs.health_checks import LEVELS
from hookscope.specs.patterns import layer_text
from hookscope.stores.weights.weight_tree import WeightNode as TreeNode
from hookscope.stores.weights.weight_tree import WeightTree
from hookscope.views.html.weights_page import ModuleNode


@dataclass(frozen=True)
class PageTree:
    """The modules on the page, parents first, and the index of the module of each tensor.

    ``owners`` are in the order of the tree.
    """

    nodes: tuple[ModuleNode, ...]
    owners: dict[str, int]


def page_tree(tree: WeightTree, levels: Mapping[str, str]) -> PageTree:
    """Return the modules that the names of the tensors tell."""
    opens = [
        after.depth > node.depth for node, after in zip(tree.nodes, tree.nodes[1:], strict=False)
    ]
    modules: list[TreeNode] = []
    parents: list[int] = []
    owners: dict[str, int] = {}
    path: list[int] = []  # the modules above the current name
    for node, is_open in zip(tree.nodes, [*opens, False], strict=True):
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
            ModuleNode(
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
