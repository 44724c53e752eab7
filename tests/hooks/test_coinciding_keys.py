"""Names and keys that are written alike are told apart, for values and for gradients.

A model runs forwards and its gradients arrive backwards. ``KEY.grad`` is the gradient of ``KEY``
all the same, which ``torch.autograd.grad`` checks here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope.errors import HookscopeError, RequestError
from hookscope.hooks.layers import select
from hookscope.hooks.recorder import Recorder
from hookscope.results.located_positions import choose_parts
from hookscope.tensors.nested import walk
from tests.oracle.by_hand import same_bits
from tests.zoo import Module, tensors_in

X = torch.tensor([[1.0, 2.0]])

# What a layer returns for its input, and the keys of the outputs in their order.
STRUCTURES: dict[str, tuple[Callable[[Tensor], Any], list[str]]] = {
    "int and str": (lambda x: {1: x * 2, "1": x * 3}, ["1", "1~2"]),
    "dot before": (lambda x: {"a.b": x * 2, "a": {"b": x * 3}}, ["a.b", "a~2.b"]),
    "dot after": (lambda x: {"a": {"b": x * 2}, "a.b": x * 3}, ["a.b", "a.b~2"]),
    "dot in both": (lambda x: {"a.b": {"c": x * 2}, "a": {"b.c": x * 3}}, ["a.b.c", "a~2.b.c"]),
    "mark taken": (
        lambda x: {1: x * 2, "1~2": x * 3, "1": x * 4},
        ["1", "1~2", "1~3"],
    ),
    "named as a gradient": (lambda x: {"a": x * 2, "a.grad": x * 3}, ["a", "a.grad~2"]),
    "gradient first": (lambda x: {"a.grad": x * 2, "a": x * 3}, ["a.grad", "a~2"]),
    "no collision": (lambda x: {"a.b": x * 2, "a": x * 3, "c.d": x * 4}, ["a.b", "a", "c.d"]),
    "in a list": (lambda x: [{1: x * 2, "1": [x * 3]}, x * 4], ["0.1", "0.1.0", "1"]),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_tensors_of_one_call(name: str) -> None:
    make, keys = STRUCTURES[name]
    kept: list[Tensor] = []

    def forward(self: Any, x: Tensor) -> Tensor:
        kept[:] = tensors_in(self.inner(self.first(x)))
        return sum((i + 1) * one.sum() for i, one in enumerate(kept))

    torch.manual_seed(0)
    net = Module(forward, first=nn.Linear(2, 2), inner=Module(lambda self, x: make(x)))
    with hookscope.record(net, layers=["inner"], grads=True) as capture:
        loss = net(X)
        loss.backward(retain_graph=True)
    assert [r.what for r in capture.records if r.kind == "output"] == [f"output.{k}" for k in keys]
    for key, tensor, grad in zip(keys, kept, torch.autograd.grad(loss, kept), strict=True):
        assert same_bits(capture[f"inner/output.{key}"], tensor)
        assert same_bits(capture[f"inner/output.{key}.grad"], grad)
    with Recorder(net, select(net, ["inner"]), ["output.grad"]) as alone:
        net(X).backward()
    grads = [record.key for record in capture.records if record.kind == "output.grad"]
    assert list(alone) == grads  # the same keys without the values
    for key in grads:
        assert same_bits(alone[key], capture[key])


def test_an_edit_reads_the_tensor_of_its_own_key(tmp_path: Any) -> None:
    net = Module(
        lambda self, x: sum(tensors_in(self.inner(x))),
        inner=Module(lambda self, x: {"a.b": x * 2, "a": {"b": x * 3}}),
    )
    clean = hookscope.capture(net, input=X, layers="inner")
    clean.save(tmp_path / "clean.safetensors")
    edit = f"inner=patch:{tmp_path}/clean.safetensors"
    patched = hookscope.capture(net, input=X * 10, layers="inner", edits=edit)
    for key in ("inner/output.a.b", "inner/output.a~2.b"):
        assert same_bits(patched[key], clean[key])


def test_dicts_that_contain_each_other() -> None:
    first: dict[Any, Any] = {"a.b": X}
    first["a"] = {"b": {"c.d": X * 2, "back": first}}
    made = list(walk(first))
    assert [(path, tensor.sum().item()) for path, tensor in made] == [
        (("a.b",), 3),
        (("a", "b", "c.d"), 6),
    ]


def test_a_layer_named_like_a_second_call() -> None:
    kept: list[Tensor] = []

    def forward(self: Any, x: Tensor) -> Tensor:
        kept.append(self.get_submodule("d:2")(x))
        kept.append(self.d(kept[0]) * 1)
        kept.append(self.d(kept[1] * 5))
        return (kept[2] * 7).sum()

    net = Module(forward, **{"d": nn.Hardtanh(-9, 9), "d:2": nn.Tanh()})
    with hookscope.record(net, grads=True) as capture:
        loss = net(X.clone().requires_grad_())
        loss.backward(retain_graph=True)
    grads = torch.autograd.grad(loss, kept)
    for key, at in (("d:2/output", 0), ("d/output", 1), ("d:2~2/output", 2)):
        assert same_bits(capture[key], kept[at])
        assert same_bits(capture[f"{key}.grad"], grads[at])
    calls = {record.key: (record.module, record.call) for record in capture.records}
    assert calls["d:2/output"] == ("d:2", 1) and calls["d:2~2/output"] == ("d", 2)


def test_layers_whose_names_are_written_alike() -> None:
    net = nn.Sequential()
    net.add_module("lone\udc80", nn.Tanh())
    net.add_module(r"lone\udc80", nn.Hardtanh(-9, 9))  # which looks the same
    with hookscope.record(net, grads=True) as capture:
        (net(X.clone().requires_grad_()) * 3).sum().backward()
    assert capture[r"lone\udc80/output.grad"].unique().item() == 3
    assert capture[r"lone\udc80~2/output.grad"].unique().item() == 3
    assert same_bits(capture[r"lone\udc80/output"], X.tanh())


def test_a_layer_that_forward_replaces() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        y = self.a(x)
        self.a = nn.Linear(2, 2)
        return (self.a(y) * 3).sum()

    torch.manual_seed(0)
    net = Module(forward, a=nn.Linear(2, 2))
    first = net.a
    with hookscope.record(net, grads=True) as capture:
        net(X).backward()
    second = net.a
    assert same_bits(capture["a/output"], first(X))
    assert same_bits(capture["a~2/output"], second(first(X)))
    three = torch.full((1, 2), 3.0)
    assert same_bits(capture["a~2/output.grad"], three)
    assert same_bits(capture["a/output.grad"], three @ second.weight)
    for key, layer in (("a", first), ("a~2", second)):
        assert same_bits(capture[f"{key}/weight.grad"], layer.weight.grad)
    calls = {m.module: m.calls for m in capture.coverage.executed}
    assert calls == {".": 1, "a": 1, "a~2": 1}


# Each but the last has a meaning as a pattern, and the last is what the first matches as one.
NAMES = ("x[0]", "c@1", "{p,q}", "d:2", "a*", "q?", "r@2[1]:1", "x0")


def network() -> Module:
    torch.manual_seed(0)

    def forward(self: Module, x: Any) -> Any:
        for layer in self.m.values():
            x = layer(x).tanh()
        return x

    return Module(forward, m=nn.ModuleDict({name: nn.Linear(3, 3) for name in NAMES}))


THREE = torch.tensor([[1.0, -2.0, 3.0]])


@pytest.mark.parametrize("name", NAMES)
def test_a_name_selects_its_layer_in_every_option(name: str, tmp_path: Path) -> None:
    net, layer = network(), f"m.{name}"
    capture = hookscope.capture(net, input=THREE, layers=layer)
    assert list(capture) == [f"{layer}/output"]
    assert [node.name for node in hookscope.tree(net, layers=layer).modules] == [layer]
    everything = hookscope.capture(net, input=THREE, layers="m.*")
    without = hookscope.capture(net, input=THREE, layers=["m.*", f"!{layer}"])
    assert set(everything) - set(without) == {f"{layer}/output"}
    of_call = [] if "@" in name else [f"{layer}:1[0-2]=zero"]
    for edit in (f"{layer}=zero", f"{layer}[0-2]=zero", *of_call):
        edited = hookscope.capture(net, input=THREE, layers="m.*", edits=edit)
        assert [r.module for r in edited.records if r.kind.endswith("unedited")] == [layer]
        assert not edited[f"{layer}/output"].any()
    grads = hookscope.grads(
        net, input=THREE, layers=layer, loss="sum", grad_edits=f"{layer}=scale:2"
    )
    key = f"{layer}/output.grad"
    assert same_bits(grads[key], 2 * grads[f"{key}.unedited"])
    seen: list[Any] = []
    hookscope.capture(net, input=THREE, hooks={layer: lambda m, i, o: seen.append(m)})
    assert seen == [net.m[name]]
    path = tmp_path / "all.safetensors"
    everything.save(path)
    assert same_bits(hookscope.load(path)[layer], everything[f"{layer}/output"])
    chosen = choose_parts([layer], everything, path)
    assert chosen == [(f"{layer}/output", (...,))]


def test_brackets_and_question_marks_stand_for_special_characters() -> None:
    net = network()
    for pattern, name in (("m.c[@]1", "c@1"), ("m.c?1", "c@1"), ("m.?p,q?", "{p,q}")):
        assert [layer.name for layer in select(net, [pattern])] == [f"m.{name}"]
        assert list(hookscope.capture(net, input=THREE, layers=pattern)) == [f"m.{name}/output"]


@pytest.mark.parametrize("given", [{"edits": "m.c@x=zero"}, {"layers": "m.{p"}])
def test_a_name_that_cannot_be_read_is_answered_with_the_way_to_write_it(given: Any) -> None:
    with pytest.raises(HookscopeError, match=r"\?"):
        hookscope.capture(network(), input=THREE, **given)


def test_only_capture_stores_positions() -> None:
    with pytest.raises(RequestError, match="capture"):
        hookscope.grads(network(), input=THREE, layers="m.x0@1", loss="sum")
    with pytest.raises(RequestError, match="capture"):
        hookscope.tree(network(), layers="m.x0@1")
