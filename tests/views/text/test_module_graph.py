"""Graphs of modules, read back by small parsers of Mermaid and DOT, and by ``dot`` if installed."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
import torch
from torch import nn

import hookscope
from hookscope.escapes import visible
from hookscope.results.module_tree import LayerRun, ModuleTree
from hookscope.views.text.module_graph import dot_text, mermaid_text
from tests.views.text.samples import ODD_NAMES, small_tree

NO_WIDTH = "\u2060"
HOSTILE = (
    *ODD_NAMES,
    *('"]; click m0 href "javascript:alert(1)', "%%{init: {}}%%", "fa:fa-car", "$$x$$", "`*x*`"),
    *("<img src=x onerror=alert(1)>", "&lt;b&gt;", "#quot;", r"\n", "\\", "\\N", '"', "}", "-->"),
    *("ﬂ°°34¶ß", "end", "{a}", "]", "' -> '", "\r\nm0 --> m1"),
)


@dataclass
class Drawn:
    """A graph as read from text: labels of nodes and boxes, the box of each, arrows, and dashes."""

    labels: dict[str, list[str]] = field(default_factory=dict)
    box_of: dict[str, str] = field(default_factory=dict)
    arrows: list[tuple[str, str]] = field(default_factory=list)
    dashed: set[str] = field(default_factory=set)

    def name(self, n: str) -> str:
        return self.labels[n][0]

    def named_arrows(self) -> list[tuple[str, str]]:
        return [(self.name(a), self.name(b)) for a, b in self.arrows]

    def boxes_around(self, name: str) -> list[str]:
        [n] = [n for n in self.labels if self.name(n) == name and n not in self.box_of.values()]
        found = []
        while n in self.box_of:
            n = self.box_of[n]
            found.append(self.name(n))
        return found


def read_mermaid(text: str) -> Drawn:
    """Read what ``mermaid_text`` writes; any other line fails."""
    drawn = Drawn()
    first, *lines = text.split("\n")
    assert first in ("flowchart LR", "flowchart TB")
    boxes: list[str] = []
    for line in lines:
        # Only what Mermaid has no use for may be in a label, and the break between its lines.
        label = r'\["((?:[\w .,=/+()\[\]-]|#\d+;|<br/>)+)"\]'
        if made := re.fullmatch(rf" *(subgraph )?([bm]\d+){label}", line):
            drawn.labels[made[2]] = [
                html.unescape(re.sub(r"#(\d+);", r"&#\1;", part)).replace(NO_WIDTH, "")
                for part in re.split("<br/>|, " if made[1] else "<br/>", made[3])
            ]
            if boxes:
                drawn.box_of[made[2]] = boxes[-1]
            boxes += [made[2]] if made[1] else []
        elif line.strip() == "direction TB":
            assert boxes
        elif line.strip() == "end":
            boxes.pop()
        elif arrow := re.fullmatch(r"  (m\d+) --> (m\d+)", line):
            drawn.arrows.append((arrow[1], arrow[2]))
        elif dashed := re.fullmatch(r"  class ([bm\d,]+) unused", line):
            drawn.dashed = set(dashed[1].split(","))
        else:
            assert line == "  classDef unused stroke-dasharray: 4", line
    assert not boxes
    return drawn


def read_dot(text: str) -> Drawn:
    """Read what ``dot_text`` writes, by tokens, as a parser of DOT does."""
    drawn = Drawn()
    tokens = re.findall(r'"(?:\\.|[^"\\])*"|->|[\w]+|[{}\[\]=]|\S', text)
    assert all(re.fullmatch(r'".*"|->|\w+|[{}\[\]=]', token) for token in tokens)
    assert tokens[0] == "digraph" and tokens[2] == "{"
    boxes = [""]
    at = 3
    while boxes:
        if tokens[at] == "}":
            boxes.pop()
            at += 1
        elif tokens[at] == "rankdir":
            at += 3
        elif tokens[at + 1] == "->":
            drawn.arrows.append((tokens[at], tokens[at + 2]))
            at += 3
        elif tokens[at] == "subgraph":
            name = tokens[at + 1].replace("cluster_", "b")
            drawn.box_of |= {name: boxes[-1]} if boxes[-1] else {}
            boxes.append(name)
            at += 3
        else:
            end = tokens.index("]", at)
            attributes = dict(zip(tokens[at + 2 : end : 3], tokens[at + 4 : end : 3], strict=True))
            name = boxes[-1] if tokens[at] == "graph" else tokens[at]
            if name not in ("node", ""):
                label = attributes["label"][1:-1].replace(r"\\", "\0").replace(r"\"", '"')
                parts = label.split(r"\n")
                drawn.labels[name] = [html.unescape(p).replace("\0", "\\") for p in parts]
                drawn.dashed |= {name} if attributes.get("style") == "dashed" else set()
                if tokens[at] != "graph" and boxes[-1]:
                    drawn.box_of[name] = boxes[-1]
            at = end + 1
    assert at == len(tokens)
    return drawn


FORMS = [pytest.param(mermaid_text, read_mermaid, id="mermaid"), pytest.param(dot_text, read_dot)]


class Nested(nn.Module):
    """Blocks that run in another order than that of their definition, and one that never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(2, 3)
        self.stage = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Tanh()))
        self.held = nn.ModuleList([nn.Identity()])
        self.attention = nn.MultiheadAttention(2, 1)
        self.idle = nn.Sequential(nn.Linear(2, 2))
        self.shared = self.last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stage(self.held[0](x))
        x = self.held[0](x)
        return self.last(self.attention(x, x, x)[0])


@pytest.mark.parametrize(("write", "read"), FORMS)
def test_arrows_lead_from_each_module_to_those_inside_it(write, read) -> None:
    tree = small_tree()
    drawn = read(write(tree))
    names = [node.name for node in tree.modules]
    inside = [(name.rpartition(".")[0] or "small.py:make", name) for name in names if name != "."]
    shared = "block.first = head"
    assert drawn.named_arrows() == [(a, shared if b == "block.first" else b) for a, b in inside]
    assert drawn.box_of == {} and drawn.dashed == set()
    assert drawn.labels["m0"] == ["small.py:make", "Sequential"]
    assert drawn.labels["m2"] == ["stem.0", "Conv2d(3, 8, 3x3, stride 2)"]


@pytest.mark.parametrize(("write", "read"), FORMS)
def test_a_module_belongs_to_its_nearest_ancestor_in_the_selection(write, read) -> None:
    tree = hookscope.tree(Nested(), layers=["stage", "stage.1.*", "idle.0"])
    drawn = read(write(tree))
    assert [drawn.name(n) for n in drawn.labels] == ["stage", "stage.1.0", "stage.1.1", "idle.0"]
    assert drawn.named_arrows() == [("stage", "stage.1.0"), ("stage", "stage.1.1")]


def first_calls(model: nn.Module, *inputs: torch.Tensor) -> list[str]:
    """The names of modules in the order of their first calls, by hooks written here."""
    order: dict[str, None] = {}
    for name, module in model.named_modules():
        module.register_forward_pre_hook(lambda *_, name=name: order.setdefault(name or "."))
    with torch.no_grad():
        model(*inputs)
    return list(order)


@pytest.mark.parametrize(("write", "read"), FORMS)
def test_with_shapes_boxes_show_what_is_inside_and_arrows_the_order_of_first_calls(
    write, read
) -> None:
    tree = hookscope.tree(Nested(), shapes=True, shape=(1, 4, 2))
    assert list(tree.execution) == first_calls(Nested(), torch.ones(1, 4, 2))
    drawn = read(write(tree))
    steps = ["held.0", "stage.0", "stage.1.0", "stage.1.1", "attention", "last = shared"]
    assert drawn.named_arrows() == list(pairwise(steps))
    assert drawn.boxes_around("stage.1.0") == ["stage.1", "stage", "Nested"]
    assert drawn.boxes_around("held.0") == ["held", "Nested"]
    # Nothing inside the attention is called, so it has a node of its own in its box.
    assert drawn.boxes_around("attention") == ["attention", "Nested"]
    dashed = {drawn.name(n) for n in drawn.dashed}
    assert dashed == {"attention.out_proj", "idle", "idle.0"}
    [held] = [lines for lines in drawn.labels.values() if lines[0] == "held.0"]
    assert held == ["held.0", "Identity", "1x4x2, 2 calls"]


@pytest.mark.parametrize(("write", "read"), FORMS)
def test_depth_makes_a_chain_of_what_is_left(write, read) -> None:
    drawn = read(write(hookscope.tree(Nested(), shapes=True, shape=(1, 4, 2), depth=1)))
    steps = ["stage", "attention", "last = shared"]
    assert drawn.named_arrows() == list(pairwise(steps))
    assert {drawn.name(n) for n in drawn.dashed} == {"held", "idle"}


def hostile_tree(ran: bool) -> ModuleTree:
    model = nn.Module()
    for name in HOSTILE:
        model._modules[name.replace(".", "")] = nn.Sequential(nn.ReLU())
    tree = hookscope.tree(model)
    tree = replace(tree, model='a "model" & more')
    if not ran:
        return tree
    nodes = tuple(replace(node, run=LayerRun(1, ("1x2",), 0)) for node in tree.modules)
    return replace(tree, modules=nodes, execution=tuple(node.name for node in nodes))


@pytest.mark.parametrize("ran", [False, True])
@pytest.mark.parametrize("ascii", [False, True])
@pytest.mark.parametrize(("write", "read"), FORMS)
def test_hostile_names_are_read_back_as_they_are_shown(write, read, ascii, ran) -> None:
    tree = hostile_tree(ran)
    text = write(tree, ascii)
    drawn = read(text)
    names = [tree.model, *(node.name for node in tree.modules[1:])]
    shown = {visible(name, ascii) for name in names}
    assert {lines[0] for lines in drawn.labels.values()} == shown
    leaves = len(HOSTILE)
    assert len(drawn.arrows) == (leaves - 1 if ran else 2 * leaves)
    assert text == write(tree, ascii)
    assert not ascii or text.isascii()


@pytest.mark.skipif(not shutil.which("dot"), reason="Graphviz is not installed")
@pytest.mark.parametrize("ran", [False, True])
def test_graphviz_draws_each_module(ran) -> None:
    text = dot_text(hostile_tree(ran)).encode()
    done = subprocess.run(["dot", "-Tplain"], input=text, capture_output=True, check=True)
    assert done.stderr == b""
    nodes = [line for line in done.stdout.splitlines() if line.startswith(b"node ")]
    assert len(nodes) == len(HOSTILE) * (1 if ran else 2) + (not ran)
