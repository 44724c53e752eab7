"""Edits inside real models: what is recorded, what is refused, and that nothing stays behind."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import hookscope
from hookscope.errors import CheckFailed, EditError, ForwardError, LayerError
from tests.hooks.edits.by_hand import replaced
from tests.hooks.recordings import hooks_left
from tests.oracle.by_hand import outputs, same_bits
from tests.zoo import Fails, Module, Side

X = torch.rand(2, 4, generator=torch.Generator().manual_seed(3)) - 0.5
IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(4))


def small() -> nn.Sequential:
    torch.manual_seed(0)
    parts = {"a": nn.Linear(4, 6), "relu": nn.ReLU(inplace=True), "b": nn.Linear(6, 3)}
    return nn.Sequential(OrderedDict(parts)).eval()


def test_what_works_in_place_changes_the_edited_value_and_not_the_recording_of_it() -> None:
    net = hookscope.load_model("resnet18").module.eval()
    edits = ["layer1.0.bn1=scale:0.5", "layer2.1.bn2=scale:2", "layer3.0.relu:2=scale:0.5"]
    shot = hookscope.capture(net, input=IMAGES, edits=edits, verify=True)
    calls: list[int] = []

    def second(module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
        calls.append(1)
        return output * 0.5 if len(calls) == 2 else None

    handles = [
        net.layer1[0].bn1.register_forward_hook(replaced(lambda x: x * 0.5)),
        net.layer2[1].bn2.register_forward_hook(replaced(lambda x: x * 2)),
        net.layer3[0].relu.register_forward_hook(second),
    ]
    expected = outputs(net, IMAGES)
    for handle in handles:
        handle.remove()
    assert all(same_bits(shot[key], expected[key]) for key in expected)
    keys = ["layer1.0.bn1/output", "layer2.1.bn2/output", "layer3.0.relu:2/output"]
    assert set(shot) - set(expected) == {f"{key}.unedited" for key in keys}
    assert [entry["changed"] for entry in shot.metadata["edits"]] == [[key] for key in keys]
    assert same_bits(shot[keys[2]], shot[f"{keys[2]}.unedited"] * 0.5)


def test_gradients_flow_through_an_edit_as_through_a_step_of_the_model() -> None:
    net = small()
    for operation, by_hand in {
        "scale:0.5": lambda x: x * 0.5,
        "clamp:-0.1,0.1": lambda x: x.clamp(-0.1, 0.1),
        "mean": lambda x: x.mean(0, keepdim=True).expand_as(x).clone(),
        "zero": lambda x: x * 0,
    }.items():
        edits = [f"a={operation}", "b=scale:2"]
        found = hookscope.grads(net, input=X, loss="norm", edits=edits, what=["param"])
        handles = [
            net.a.register_forward_hook(replaced(by_hand)),
            net.b.register_forward_hook(replaced(lambda x: x * 2)),
        ]
        x = X.clone().requires_grad_()
        torch.linalg.vector_norm(net(x)).backward()
        for handle in handles:
            handle.remove()
        for name, parameter in net.named_parameters():
            key = f"{name.replace('.', '/')}.grad"
            assert torch.equal(found[key], parameter.grad), (operation, key)
        assert torch.equal(found["./input.0.grad"], x.grad)
        net.zero_grad()


def test_patching_a_bottleneck_restores_the_clean_output_exactly(tmp_path: Path) -> None:
    file = tmp_path / "clean.safetensors"
    net = small()
    clean = hookscope.capture(net, input=X, layers="a")
    clean.save(file)
    corrupted = X.flip(0) * 3
    broken = hookscope.capture(net, input=corrupted)
    patched = hookscope.capture(net, input=corrupted, edits=f"a=patch:{file}")
    assert not same_bits(broken.output, clean.output)
    assert same_bits(patched.output, clean.output)
    assert same_bits(patched["a/output.unedited"], broken["a/output"])
    half = hookscope.capture(net, input=corrupted, edits=f"a[0-2]=patch:{file}")["a/output"]
    assert same_bits(half, torch.cat([clean["a/output"][:, :3], broken["a/output"][:, 3:]], 1))


def test_channels_lie_where_the_document_says() -> None:
    cases = [
        (nn.Identity(), (2, 3, 4, 5), 1),
        (nn.Identity(), (2, 3), 1),
        (nn.Identity(), (2, 4, 3), 2),
        (nn.Identity(), (3,), 0),
        (nn.BatchNorm1d(3), (2, 3, 4), 1),
        (nn.Conv1d(3, 3, 1), (2, 3, 4), 1),
    ]
    for module, shape, dim in cases:
        net = nn.Sequential(module).eval()
        shot = hookscope.capture(net, input=torch.ones(shape), edits="0[1]=zero")
        parts = shot["0/output"].unbind(dim)
        assert not parts[1].any()
        old = shot["0/output.unedited"].unbind(dim)
        assert all(same_bits(parts[i], old[i]) for i in (0, 2))
    spatial = hookscope.capture(nn.Sequential(nn.Identity()), input=X[None], edits="0=mean:spatial")
    assert same_bits(spatial["0/output"], X[None].mean(1, keepdim=True).expand(1, 2, 4))


def test_every_floating_tensor_of_a_nested_value_is_edited_and_its_structure_kept() -> None:
    def nested(self: Module, x: Tensor, *, scale: Tensor) -> Any:
        return OrderedDict(mask=torch.tensor([1, 2]), both=[x + 0, scale + 0])

    net = Module(lambda self, x: self.part(x, scale=x), part=Module(nested))
    shot = hookscope.capture(net, input=(X,), edits=["part=scale:2", "input:part=scale:3"])
    output = shot.output
    assert type(output) is OrderedDict and output["mask"].tolist() == [1, 2]
    assert same_bits(output["both"][0], X * 3 * 2) and same_bits(output["both"][1], X * 3 * 2)
    assert {k for k in shot if k.endswith("unedited")} == {
        "part/output.both.0.unedited",
        "part/output.both.1.unedited",
        "part/input.0.unedited",
    }


@pytest.mark.parametrize(
    ("edits", "subject"),
    [
        ("c=zero", "'c'"),
        ("a[3,6]=zero", r"a \(Linear\).*channel 6 .* 1 of 2x6 float32(?s:.)*0 to 5"),
        ("a:2=zero", r"'a:2=zero'.*a \(Linear\).* 1 time"),
        ("a=mean:spatial", r"a \(Linear\).* 2 dimensions"),
        (["a=scale:1e308", "a=scale:1e308", "b=quantize:8"], r"b \(Linear\).*range"),
    ],
)
def test_what_cannot_be_edited_is_named_and_leaves_nothing_behind(edits: Any, subject: str) -> None:
    net = small()
    before = net(X)
    for verb in (hookscope.capture, hookscope.grads):
        with pytest.raises((EditError, LayerError), match=subject) as caught:
            verb(net, input=X, edits=edits)
        assert caught.value.exit_code == 2
        assert not hooks_left(net)
        assert same_bits(net(X), before)


@pytest.mark.parametrize(
    ("edit", "subject"),
    [("a[9]=zero", "channel 9"), ("a:3=zero", r"a \(Linear\).* 1 time")],
)
def test_a_failed_edit_of_a_gradient_leaves_nothing_behind(edit: str, subject: str) -> None:
    net = small()
    with pytest.raises(EditError, match=subject):
        hookscope.grads(net, input=X, grad_edits=edit)
    assert not hooks_left(net)
    assert all(p.grad is None for p in net.parameters())


def test_a_gradient_that_never_comes_cannot_be_edited() -> None:
    with pytest.raises(EditError, match=r"gradient .*aside \(Linear\)"):
        hookscope.grads(Side(), input=X, grad_edits="aside=zero")


def test_a_model_that_raises_in_an_edited_layer_is_told_as_ever() -> None:
    net = Fails(ValueError("no"))
    with pytest.raises(ForwardError, match=r"bad \(Module\): ValueError: no") as caught:
        hookscope.capture(net, input=X, edits=["bad=zero", "first=zero"])
    assert caught.value.recorded == 2 and not hooks_left(net)


def test_integers_are_left_alone_and_a_layer_that_has_nothing_else_is_refused() -> None:
    net = nn.Sequential(OrderedDict(pick=Module(lambda self, x: x.argmax(1)), out=nn.Identity()))
    with pytest.raises(EditError, match="output of pick"):
        hookscope.capture(net, input=X, edits="pick=scale:2")
    with pytest.raises(EditError, match="input of out"):
        hookscope.capture(net, input=X, edits="input:out=scale:2")


def test_noise_does_not_disturb_the_draws_of_the_model_and_repeats() -> None:
    net = nn.Sequential(OrderedDict(a=nn.Linear(4, 4), drop=nn.Dropout(0.5), b=nn.Linear(4, 4)))
    plain = hookscope.capture(net, input=X, train=True)
    edited = hookscope.capture(net, input=X, train=True, edits=["b=noise:1", "b=dropout:0.5"])
    again = hookscope.capture(net, input=X, train=True, edits=["b=noise:1", "b=dropout:0.5"])
    other = hookscope.capture(net, input=X, train=True, edits="b=noise:1", seed=1)
    assert same_bits(edited["drop/output"], plain["drop/output"])
    assert same_bits(edited.output, again.output)
    assert not same_bits(edited.output, other.output)
    twice = hookscope.capture(net, input=X, edits=["a=noise:1", "b=noise:1"])
    a, b = (twice[f"{n}/output"] - twice[f"{n}/output.unedited"] for n in "ab")
    assert not torch.allclose(a, b)


def test_the_effect_is_told_in_float64() -> None:
    net = small()
    clean = hookscope.capture(net, input=X)
    shot = hookscope.capture(net, input=X, edits="b=scale:0.5", compare=True)
    gap = shot.output.double() - clean.output.double()
    relative = float(gap.norm() / clean.output.double().norm())
    measures = {"largest": float(gap.abs().max()), "relative": relative}
    [moved] = shot.metadata["effect"]["output"]
    assert moved == {"name": "output", **measures}
    assert "top" not in shot.metadata["effect"]  # its classes have no names
    entries = shot.metadata["effect"]["drift"]
    assert entries == [{"key": "b/output", **measures}, {"key": "./output", **measures}]


def test_a_comparison_of_gradients_covers_an_edited_layer_that_was_not_chosen() -> None:
    found = hookscope.grads(small(), input=X, layers="b", grad_edits="a=scale:3", compare=True)
    drift = {entry["key"]: entry["relative"] for entry in found.metadata["effect"]["drift"]}
    assert drift["b/output.grad"] == drift["b/weight.grad"] == 0
    assert drift["a/output.grad"] == pytest.approx(2, rel=1e-6)
    assert drift["./input.0.grad"] == pytest.approx(2, rel=1e-6)
    assert "output" not in found.metadata["effect"]
    with pytest.raises(EditError, match="compare"):
        hookscope.grads(small(), input=X, compare=True)


def test_only_the_edited_layer_is_recorded_beside_those_chosen() -> None:
    shot = hookscope.capture(small(), input=X, layers="b", edits="a=scale:2", max_bytes=10**4)
    assert list(shot) == ["a/output.unedited", "a/output", "b/output"]
    with pytest.raises(CheckFailed, match="Stopped at a"):
        hookscope.capture(small(), input=X, layers="b", edits="a=scale:2", max_bytes=30)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_model_is_edited_again_when_it_runs_again(reentrant: bool) -> None:
    def net(call: Any) -> Module:
        torch.manual_seed(1)
        return Module(call, first=nn.Linear(4, 4), part=small())

    def plain(self: Module, x: Tensor) -> Any:
        return self.part(self.first(x))

    def twice(self: Module, x: Tensor) -> Any:
        return checkpoint(self.part, self.first(x), use_reentrant=reentrant)

    edits = ["part.a=noise:1", "part.relu=scale:2", "input:part.b=dropout:0.5"]
    both = [hookscope.grads(net(f), input=X, loss="norm", edits=edits) for f in (plain, twice)]
    expected, found = ({k: t for k, t in x.items() if "output" not in k} for x in both)
    assert found.keys() == expected.keys()
    assert all(same_bits(found[key], expected[key]) for key in expected)


def test_a_checkpointed_layer_of_several_calls_is_refused() -> None:
    def run(self: Module, x: Tensor) -> Any:
        return checkpoint(lambda y: self.part(self.part(y)), self.part(x), use_reentrant=False)

    net = Module(run, part=nn.Linear(4, 4))
    with pytest.raises(EditError, match=r"part .*3 calls"):
        hookscope.grads(net, input=X, loss="sum", edits="part=scale:2")
    assert not hooks_left(net)
