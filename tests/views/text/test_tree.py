"""The module tree as lines."""

from __future__ import annotations

from dataclasses import replace

from rich.cells import cell_len
from torch import nn

from hookscope.hooks.layers import describe_model
from hookscope.results.module_tree import ModuleTree
from hookscope.views.module_tree import tree_lines
from hookscope.views.text.text_table import TextOptions
from tests.views.text.samples import ODD_NAMES, small_tree


def plain(tree: ModuleTree, width: int | None, ascii: bool = False) -> list[str]:
    return [line.plain for line in tree_lines(tree, TextOptions(width, ascii))]


def narrowed(*names: str) -> ModuleTree:
    tree = small_tree()
    return replace(tree, modules=tuple(node for node in tree.modules if node.name in names))


def test_guides_of_a_narrowed_tree_join_what_is_there() -> None:
    lines = plain(narrowed("stem.0", "stem.1", "block", "block.second"), 80)
    assert [line.split()[0] for line in lines[1:4]] == ["stem.0", "stem.1", "block"]
    assert lines[4].startswith("└─ block.second")


def test_ascii_tree_has_ascii_guides() -> None:
    lines = plain(small_tree(), 80, ascii=True)
    assert (lines[3][:12], lines[4][:12]) == ("|  |- stem.0", "|  `- stem.1")


def test_totals_describe_the_whole_model_however_narrow_the_tree() -> None:
    whole = plain(small_tree(), None)[-1]
    assert "600 parameters (376 trainable), 17 buffer values" in whole
    assert plain(narrowed("stem.0"), None)[-1] == whole.replace("9 layers", "1 layer")


def test_model_without_parameters_has_no_state() -> None:
    lines = plain(describe_model(nn.Sequential(nn.ReLU()), "relu"), None)
    assert "0 parameters, 0 buffer values, 0 bytes" in lines[-1]
    assert "frozen" not in " ".join(lines)


def test_odd_names_and_arguments_are_shown_literally() -> None:
    class Odd(nn.Module):
        def extra_repr(self) -> str:
            return "[bold]\n:x:" + "y" * 10_000

    model = nn.Module()
    for name in ODD_NAMES:
        model.add_module(name, Odd())
    lines = plain(describe_model(model, "odd"), 140)
    assert max(map(cell_len, lines)) <= 140
    assert any(":x:" in line for line in lines)
    assert any("Odd([bold] :x:yyy" in line for line in lines)
    piped = plain(describe_model(model, "odd"), None)
    assert len(piped) == len(ODD_NAMES) + 3
    assert any("y" * 10_000 in line for line in piped)
