"""A name of a layer selects that layer, whatever characters of the patterns it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hookscope
from hookscope.errors import HookscopeError, RequestError
from hookscope.hooks.layers import select
from hookscope.results.located_positions import choose_parts
from tests.oracle.by_hand import same_bits

# Each but the last has a meaning as a pattern, and the last is what the first matches as one.
NAMES = ("x[0]", "c@1", "{p,q}", "d:2", "a*", "q?", "r@2[1]:1", "x0")


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.m = nn.ModuleDict({name: nn.Linear(3, 3) for name in NAMES})

    def forward(self, x: Any) -> Any:
        for layer in self.m.values():
            x = layer(x).tanh()
        return x


def network() -> Named:
    torch.manual_seed(0)
    return Named()


X = torch.tensor([[1.0, -2.0, 3.0]])


@pytest.mark.parametrize("name", NAMES)
def test_a_name_selects_its_layer_in_every_option(name: str, tmp_path: Path) -> None:
    net, layer = network(), f"m.{name}"
    capture = hookscope.capture(net, input=X, layers=layer)
    assert list(capture) == [f"{layer}/output"]
    assert [node.name for node in hookscope.tree(net, layers=layer).modules] == [layer]
    everything = hookscope.capture(net, input=X, layers="m.*")
    without = hookscope.capture(net, input=X, layers=["m.*", f"!{layer}"])
    assert set(everything) - set(without) == {f"{layer}/output"}
    of_call = [] if "@" in name else [f"{layer}:1[0-2]=zero"]
    for edit in (f"{layer}=zero", f"{layer}[0-2]=zero", *of_call):
        edited = hookscope.capture(net, input=X, layers="m.*", edits=edit)
        assert [r.module for r in edited.records if r.kind.endswith("unedited")] == [layer]
        assert not edited[f"{layer}/output"].any()
    grads = hookscope.grads(net, input=X, layers=layer, loss="sum", grad_edits=f"{layer}=scale:2")
    key = f"{layer}/output.grad"
    same_bits(grads[key], 2 * grads[f"{key}.unedited"])
    seen: list[Any] = []
    hookscope.capture(net, input=X, hooks={layer: lambda m, i, o: seen.append(m)})
    assert seen == [net.m[name]]
    path = tmp_path / "all.safetensors"
    everything.save(path)
    same_bits(hookscope.load(path)[layer], everything[f"{layer}/output"])
    chosen = choose_parts([layer], everything, path)
    assert chosen == [(f"{layer}/output", (...,))]


def test_brackets_and_question_marks_stand_for_special_characters() -> None:
    net = network()
    for pattern, name in (("m.c[@]1", "c@1"), ("m.c?1", "c@1"), ("m.?p,q?", "{p,q}")):
        assert [layer.name for layer in select(net, [pattern])] == [f"m.{name}"]
        assert list(hookscope.capture(net, input=X, layers=pattern)) == [f"m.{name}/output"]


def test_a_name_that_cannot_be_read_is_answered_with_the_way_to_write_it() -> None:
    net = network()
    with pytest.raises(HookscopeError, match=r"write \?"):
        hookscope.capture(net, input=X, edits="m.c@x=zero")
    with pytest.raises(HookscopeError, match=r"and \? to match a brace"):
        hookscope.capture(net, input=X, layers="m.{p")


def test_only_capture_stores_positions() -> None:
    net = network()
    with pytest.raises(RequestError, match="Only capture stores single positions"):
        hookscope.grads(net, input=X, layers="m.x0@1", loss="sum")
    with pytest.raises(RequestError, match="Only capture stores single positions"):
        hookscope.tree(net, layers="m.x0@1")
