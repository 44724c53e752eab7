"""Graphs of modules as Mermaid and DOT: what leads where, and names that would be markup."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from dataclasses import replace

import pytest
import torch
from torch import nn

import hookscope
from hookscope.escapes import visible
from hookscope.results.module_tree import LayerRun, ModuleTree
from hookscope.views.text.module_graph import dot_text, mermaid_text
from tests.views.text.samples import ODD_NAMES, same_as_golden, small_tree

NO_WIDTH = "\u2060"
HOSTILE = (
    *ODD_NAMES,
    *('"]; click m0 href "javascript:alert(1)', "%%{init: {}}%%", "fa:fa-car", "$$x$$", "`*x*`"),
    *("<img src=x onerror=alert(1)>", "&lt;b&gt;", "#quot;", r"\n", "\\", "\\N", '"', "}", "-->"),
    *("ﬂ°°34¶ß", "end", "{a}", "]", "' -> '", "\r\nm0 --> m1"),
)


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


def test_arrows_lead_into_a_module_or_from_a_call_to_the_next() -> None:
    """Without a run to what is inside; with shapes in the order of first calls, boxes in boxes."""
    trees = {
        "all modules": small_tree(),
        "some": hookscope.tree(Nested(), layers=["stage", "stage.1.*", "idle.0"]),
        "after a run": hookscope.tree(Nested(), shapes=True, shape=(1, 4, 2)),
        "depth 1": hookscope.tree(Nested(), shapes=True, shape=(1, 4, 2), depth=1),
    }
    lines = [
        line
        for name, tree in trees.items()
        for line in (f"== {name}", mermaid_text(tree), dot_text(tree))
    ]
    same_as_golden("graphs", lines)


def test_the_order_is_that_of_first_calls_by_hooks_written_here() -> None:
    model, order = Nested(), dict[str, None]()
    for name, module in model.named_modules():
        module.register_forward_pre_hook(lambda *_, name=name: order.setdefault(name or "."))
    with torch.no_grad():
        model(torch.ones(1, 4, 2))
    tree = hookscope.tree(Nested(), shapes=True, shape=(1, 4, 2))
    assert list(tree.execution) == list(order)


def mermaid_names(text: str) -> list[str]:
    """The first line of each label; only what Mermaid has no use for may be in it."""
    label = r'\["((?:[\w .,=/+()\[\]-]|#\d+;|<br/>)+)"\]'
    other = r"(flowchart|direction|class|classDef) .*|end|m\d+ --> m\d+"
    names = []
    for line in text.split("\n"):
        if made := re.fullmatch(rf" *(subgraph )?[bm]\d+{label}", line):
            first = re.split("<br/>|, " if made[1] else "<br/>", made[2])[0]
            names.append(html.unescape(re.sub(r"#(\d+);", r"&#\1;", first)).replace(NO_WIDTH, ""))
        else:
            assert re.fullmatch(other, line.strip()), line
    return names


def dot_names(text: str) -> list[str]:
    """The first line of each label, of tokens as a parser of DOT reads them."""
    tokens = re.findall(r'"(?:\\.|[^"\\])*"|->|[\w]+|[{}\[\]=]|\S', text)
    assert all(re.fullmatch(r'".*"|->|\w+|[{}\[\]=]', token) for token in tokens)
    assert tokens[0] == "digraph" and tokens.count("{") == tokens.count("}")
    labels = [tokens[i + 2][1:-1] for i, token in enumerate(tokens) if token == "label"]
    plain = [label.replace(r"\\", "\0").replace(r"\"", '"').split(r"\n")[0] for label in labels]
    return [html.unescape(name).replace("\0", "\\") for name in plain]


def hostile_tree(ran: bool) -> ModuleTree:
    model = nn.Module()
    for name in HOSTILE:
        model._modules[name.replace(".", "")] = nn.Sequential(nn.ReLU())
    tree = replace(hookscope.tree(model), model='a "model" & more')
    if not ran:
        return tree
    nodes = tuple(replace(node, run=LayerRun(1, ("1x2",), 0)) for node in tree.modules)
    return replace(tree, modules=nodes, execution=tuple(node.name for node in nodes))


@pytest.mark.parametrize("ran", [False, True])
@pytest.mark.parametrize("ascii", [False, True])
@pytest.mark.parametrize(
    ("write", "read", "arrow"),
    [(mermaid_text, mermaid_names, " --> "), (dot_text, dot_names, " -> ")],
)
def test_hostile_names_are_read_back_as_they_are_shown(write, read, arrow, ascii, ran) -> None:
    tree = hostile_tree(ran)
    text = write(tree, ascii)
    names = [tree.model, *(node.name for node in tree.modules[1:])]
    assert set(read(text)) == {visible(name, ascii) for name in names}
    arrows = re.findall(rf"^ *m\d+{arrow}m\d+;?$", text, re.MULTILINE)
    assert len(arrows) == (len(HOSTILE) - 1 if ran else 2 * len(HOSTILE))
    assert not ascii or text.isascii()


@pytest.mark.skipif(not shutil.which("dot"), reason="Graphviz is not installed")
@pytest.mark.parametrize("ran", [False, True])
def test_graphviz_draws_each_module(ran) -> None:
    text = dot_text(hostile_tree(ran)).encode()
    done = subprocess.run(["dot", "-Tplain"], input=text, capture_output=True, check=True)
    assert done.stderr == b""
    nodes = [line for line in done.stdout.splitlines() if line.startswith(b"node ")]
    assert len(nodes) == len(HOSTILE) * (1 if ran else 2) + (not ran)
