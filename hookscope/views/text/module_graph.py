"""A module tree as a graph: text for Mermaid, which draws it in Markdown, or for Graphviz (DOT).

Arrows lead to the modules inside a module. If the order of execution is known, they show it, and
a module with others inside is a box around them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from hookscope.escapes import visible
from hookscope.results.module_tree import ModuleNode, ModuleTree
from hookscope.specs.module_names import nearest_ancestors
from hookscope.specs.patterns import ROOT
from hookscope.views.module_tree import MAX_ARGUMENTS_LENGTH, short_signature

# What Mermaid draws if it is not configured; GitHub and GitLab cannot be configured.
MERMAID_ARROWS = 500
MERMAID_CHARACTERS = 50_000
# Printed as they are in a label of Mermaid, as are letters and digits. Others may begin an entity,
# a tag or a directive, so they become numeric entities.
_PLAIN = frozenset(" .,_-=/+()[]")
# Mermaid searches labels again after it has replaced entities: for line breaks (a backslash and n),
# formulas ($$), icons (fa:fa-car) and its own marks of entities. A character of no width after
# these makes it find none.
_SEARCHED = frozenset("\\$:ﬂ¶")
_NO_WIDTH = "#8288;"


@dataclass(frozen=True)
class _Graph:
    """The graph of a tree; modules are indexes of its nodes."""

    labels: tuple[tuple[str, ...], ...]
    outer: tuple[int, ...]
    inner: dict[int, list[int]]
    nodes: frozenset[int]
    arrows: tuple[tuple[int, int], ...]
    unused: tuple[int, ...]


def mermaid_text(tree: ModuleTree, ascii: bool = False) -> str:
    """Return a tree as a flowchart of Mermaid, without a last line end."""
    graph = _graph_of(tree)

    def label(module: int, separator: str = "<br/>") -> str:
        lines = (visible(line, ascii) for line in graph.labels[module])
        return separator.join("".join(map(_mermaid_character, line)) for line in lines)

    lines = [f"flowchart {'TB' if graph.inner else 'LR'}"]
    lines += _nested_lines(
        graph,
        # Mermaid has room for one line above a box, and turns a box without arrows to the outside.
        lambda module: [f'subgraph b{module}["{label(module, ", ")}"]', "  direction TB"],
        lambda module: f'm{module}["{label(module)}"]',
        "end",
    )
    lines += [f"  m{start} --> m{end}" for start, end in graph.arrows]
    if graph.unused:
        names = ",".join(f"{'m' if n in graph.nodes else 'b'}{n}" for n in graph.unused)
        lines += ["  classDef unused stroke-dasharray: 4", f"  class {names} unused"]
    return "\n".join(lines)


def dot_text(tree: ModuleTree, ascii: bool = False) -> str:
    """Return a tree as a directed graph in the DOT language, without a last line end."""
    graph = _graph_of(tree)

    def quoted(*lines: str) -> str:
        # Graphviz replaces entities of HTML in labels.
        shown = (visible(line, ascii).replace("\\", "\\\\").replace('"', '\\"') for line in lines)
        return '"' + "\\n".join(shown).replace("&", "&amp;") + '"'

    def attributes(module: int) -> str:
        return f"label={quoted(*graph.labels[module])}" + " style=dashed" * (module in graph.unused)

    lines = [
        f"digraph {quoted(tree.model)} {{",
        f"  rankdir={'TB' if graph.inner else 'LR'}",
        "  node [shape=box]",
        "  graph [labeljust=l]",  # arrows lead into a box in its middle
    ]
    lines += _nested_lines(
        graph,
        lambda module: [f"subgraph cluster_{module} {{", f"  graph [{attributes(module)}]"],
        lambda module: f"m{module} [{attributes(module)}]",
        "}",
    )
    lines += [f"  m{start} -> m{end}" for start, end in graph.arrows]
    return "\n".join([*lines, "}"])


def _nested_lines(
    graph: _Graph, begin_box: Callable[[int], list[str]], node: Callable[[int], str], end_box: str
) -> Iterator[str]:
    """The nodes and boxes, each box around what is in it, indented."""
    waiting: list[tuple[int, int | None]] = [(1, module) for module in reversed(graph.outer)]
    while waiting:  # no recursion: modules may be nested in any depth
        depth, module = waiting.pop()
        indent = "  " * depth
        if module is None:
            yield indent + end_box
            continue
        if module not in graph.inner:
            yield indent + node(module)
            continue
        yield from (indent + line for line in begin_box(module))
        if module in graph.nodes:
            yield f"{indent}  {node(module)}"
        waiting.append((depth, None))
        waiting += [(depth + 1, inner) for inner in reversed(graph.inner[module])]


def _graph_of(tree: ModuleTree) -> _Graph:
    ancestors = nearest_ancestors([node.name for node in tree.modules])
    labels = tuple(_label(tree, node) for node in tree.modules)
    everything = range(len(tree.modules))
    inside = [(above, n) for n, above in enumerate(ancestors) if above is not None]
    if not tree.execution:
        return _Graph(labels, tuple(everything), {}, frozenset(everything), tuple(inside), ())
    inner: dict[int, list[int]] = {}
    for above, n in inside:
        inner.setdefault(above, []).append(n)
    indexes = {node.name: n for n, node in enumerate(tree.modules)}
    executed = [indexes[name] for name in tree.execution if name in indexes]
    # Something inside these ran, so an arrow to them would say nothing.
    passed = {ancestors[n] for n in executed}
    for n in reversed(everything):
        if n in passed:
            passed.add(ancestors[n])
    steps = [n for n in executed if n not in passed]
    return _Graph(
        labels,
        tuple(n for n in everything if ancestors[n] is None),
        inner,
        frozenset(steps) | (frozenset(everything) - frozenset(inner)),
        tuple(pairwise(steps)),
        tuple(sorted(set(everything) - set(executed) - passed)),
    )


def _label(tree: ModuleTree, node: ModuleNode) -> tuple[str, ...]:
    name = tree.model if node.name == ROOT else node.name
    lines = [" = ".join((name, *node.aliases))]
    lines.append(short_signature(node.type, node.arguments, MAX_ARGUMENTS_LENGTH))
    if node.run is not None and node.run.calls:
        calls = f", {node.run.calls} calls" if node.run.calls > 1 else ""
        lines.append(f"{' '.join(node.run.outputs)}{calls}".removeprefix(", "))
    return tuple(filter(None, lines))


def _mermaid_character(character: str) -> str:
    """One character of a label; ``#34;`` is what Mermaid has for a quote."""
    plain = character in _PLAIN or character.isalnum()
    text = character if plain else f"#{ord(character)};"
    return text + _NO_WIDTH if character in _SEARCHED else text
