"""``ops``: what functions return between modules is what the same lines return by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn
from torch.overrides import _len_torch_function_stack
from torch.utils.checkpoint import checkpoint

import hookscope
from hookscope.errors import CheckFailed, ForwardError
from hookscope.hooks.capture import Capture
from hookscope.hooks.hook_set import HookSet
from hookscope.hooks.op_recorder import plain_name
from tests.conftest import REPO
from tests.digits_forms import FORMS
from tests.hooks.recordings import hooks_left
from tests.oracle.by_hand import same_bits
from tests.sources.torchscript.examples import quietly
from tests.zoo import Module, Threads

SAMPLES = REPO / "sample_models"


def of_kind(shot: Capture, kind: str) -> dict[str, Tensor]:
    return {record.key: shot[record.key] for record in shot.records if record.kind == kind}


class Small(nn.Module):
    """A bit of everything that a function between modules can be."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        a = self.first(x)
        b = self.second(x)
        total = a + b
        total.relu_()
        twice = total * total + 3 / (2 - total)
        twice += a
        biggest = twice.max(1)
        twice = twice.clone()
        twice[:, 0] = biggest.values
        return torch.cat([twice, -b]).T.contiguous().flatten()


def small() -> tuple[Small, Tensor]:
    torch.manual_seed(3)
    return Small(), torch.randn(2, 4)


def small_by_hand(model: Small, x: Tensor) -> dict[str, Tensor]:
    """The same out of place, each value under the key that it is to have."""
    a, b = model.first(x), model.second(x)
    found = {"add": a + b}
    found["relu_"] = found["add"].relu()
    total = found["relu_"]
    found["mul"] = total * total
    found["sub"] = 2 - total
    found["div"] = 3 / found["sub"]
    found["add:2"] = found["mul"] + found["div"]
    found["add_"] = found["add:2"] + a
    found["max.0"], found["max.1"] = found["add_"].max(1)
    found["clone"] = found["add_"].clone()
    found["setitem"] = torch.cat([found["max.0"][:, None], found["clone"][:, 1:]], 1)
    found["neg"] = -b
    found["cat"] = torch.cat([found["setitem"], found["neg"]])
    found["T"] = found["cat"].T
    found["contiguous"] = found["T"].contiguous()
    found["flatten"] = found["contiguous"].flatten()
    return found


def test_values_are_those_of_the_same_lines_by_hand() -> None:
    model, x = small()
    ops = of_kind(hookscope.capture(model, ops=True, input=x), "op")
    with torch.no_grad():
        expected = small_by_hand(model, x)
    assert list(ops) == [f"./{name}" for name in expected]
    for name, value in expected.items():
        assert same_bits(ops[f"./{name}"], value), name


def test_gradients_are_those_of_the_values_as_they_were() -> None:
    model, x = small()
    found = hookscope.grads(model, ops=True, input=x, loss="sum")
    expected = small_by_hand(model, x)
    expected.pop("max.1")
    gradients = torch.autograd.grad(expected["flatten"].sum(), list(expected.values()))
    ops = of_kind(found, "op.grad")
    for name, gradient in zip(expected, gradients, strict=True):
        assert torch.allclose(ops.pop(f"./{name}.grad"), gradient, rtol=1e-6, atol=0), name
    assert not ops
    assert [(x.what, x.reason) for x in found.absent] == [("max.1.grad", "integer")]


def resnet_by_hand(model: nn.Module, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    found = {}
    x = model.maxpool(model.bn1(model.conv1(x)).relu())
    for stage in ("layer1", "layer2", "layer3", "layer4"):
        for place, block in enumerate(getattr(model, stage)):
            inner = block.bn2(block.conv2(block.bn1(block.conv1(x)).relu()))
            found[f"{stage}.{place}/add_"] = inner + (block.downsample or nn.Identity())(x)
            x = found[f"{stage}.{place}/add_"].relu()
    found["./flatten"] = model.avgpool(x).flatten(1)
    return model.fc(found["./flatten"]), found


def test_residual_sums_of_resnet18_to_the_last_bit() -> None:
    model = torchvision.models.resnet18(weights=None).eval()
    x = torch.randn(1, 3, 32, 32)
    ops = of_kind(hookscope.capture(model, ops=True, input=x), "op")
    logits, expected = resnet_by_hand(model, x)
    assert list(ops) == list(expected)
    assert all(same_bits(ops[key], expected[key]) for key in ops)

    grads = of_kind(hookscope.grads(model, ops=True, input=x, loss="sum"), "op.grad")
    wanted = torch.autograd.grad(logits.sum(), list(expected.values()))
    assert grads.keys() == {f"{key}.grad" for key in expected}
    for key, gradient in zip(expected, wanted, strict=True):
        assert same_bits(grads[f"{key}.grad"], gradient), key


def test_views_that_are_changed_in_place_have_no_gradient_of_their_own() -> None:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        whole = x * 1
        row = whole[0]
        row.mul_(2)  # goes on as part of ``whole``
        return (whole * 3).sum() + x[1].sum()

    found = hookscope.grads(Module(run), input=torch.ones(2, 2), ops=True, loss="sum")
    assert found["./mul.grad"].tolist() == [[6, 6], [3, 3]]
    assert found["./getitem:2.grad"].tolist() == [1, 1]
    assert [absent.what for absent in found.absent] == ["getitem.grad", "mul_.grad"]
    assert all("share" in absent.reason for absent in found.absent)


def test_the_forms_of_the_digits_model_have_the_same_ops() -> None:
    words = [f"{SAMPLES}/{form}" for form in (*FORMS, "digits_traced.pt")]
    five = hookscope.capture(words[0], layers=".", what="input")["./input.0"]
    values = [of_kind(hookscope.capture(w, ops=True, input=five), "op") for w in words]
    grads = [of_kind(hookscope.grads(w, ops=True, input=five, target=5), "op.grad") for w in words]
    for found, key in ((values, "./flatten"), (grads, "./flatten.grad")):
        assert [list(one) for one in found] == [[key]] * len(words)
        assert all(same_bits(one[key], found[0][key]) for one in found)


# What ``x[...]`` is by operators.
INDEXING = ("alias", "getitem", "setitem", "select", "slice", "index", "tensor", "copy_", "fill_")
INDEXING += ("lift_fresh_copy",)  # the constant of ``x[...] = 1``, exported by torch before 2.15


@pytest.mark.exhaustive  # exporting takes long
def test_a_swin_has_the_same_ops_scripted_and_exported(tmp_path: Path) -> None:
    torch.manual_seed(0)
    swin = torchvision.models.SwinTransformer([4, 4], 16, [2, 2], [2, 4], [4, 4]).eval()
    x = torch.randn(1, 3, 64, 64)
    with quietly():
        torch.jit.script(swin).save(str(tmp_path / "swin.pt"))
    torch.export.save(torch.export.export(swin, (x,)), tmp_path / "swin.pt2")

    def computed(model: object) -> dict[str, Tensor]:
        ops = of_kind(
            hookscope.capture(model, ops=True, input=x, trust=str(model).endswith("2")), "op"
        )
        return {k: v for k, v in ops.items() if not k.partition("/")[2].startswith(INDEXING)}

    eager = computed(swin)
    assert {"features.1.0.attn/softmax", "features.1.1.attn/roll:2"} <= eager.keys()
    for form in ("swin.pt", "swin.pt2"):
        other = computed(str(tmp_path / form))
        assert list(other) == list(eager), form
        assert all(same_bits(other[key], eager[key]) for key in eager)


def test_building_blocks_are_no_ops_and_modules_of_the_users_are() -> None:
    class Own(nn.Module):
        def forward(self, pair: tuple[Tensor, tuple[Tensor, Tensor]]) -> Tensor:
            return torch.sigmoid(pair[0])

    class OwnNorm(nn.LayerNorm):
        def forward(self, x: Tensor) -> Tensor:
            return F.layer_norm(x, self.normalized_shape) * 2

    model = nn.Sequential(nn.Linear(4, 4), nn.LSTM(4, 4), Own(), OwnNorm(4), nn.ReLU())
    with quietly():
        scripted = torch.jit.script(model)
    for form in (model, scripted):
        shot = hookscope.capture(form, ops=True, input=torch.randn(2, 4))
        keys = ["2/sigmoid", "3/layer_norm", "3/mul"]
        assert list(of_kind(shot, "op")) == keys


def test_calls_and_uses_are_numbered_apart() -> None:
    shift = Module(lambda self, x: x + 1 + 2)
    model = Module(lambda self, x: self.shift(self.shift(x)) + 3, shift=shift)
    shot = hookscope.capture(model, ops=True, input=torch.zeros(1))
    assert {key: value.item() for key, value in of_kind(shot, "op").items()} == {
        "shift/add": 1,
        "shift/add:2": 3,
        "shift:2/add": 4,
        "shift:2/add:2": 6,
        "./add": 9,
    }
    chosen = hookscope.capture(model, ops=True, input=torch.zeros(1), layers=".")
    assert list(of_kind(chosen, "op")) == ["./add"]


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (torch.Tensor.__rsub__, "sub"),
        (torch.Tensor.__rdiv__, "div"),
        (torch.Tensor.__rpow__, "pow"),
        (torch.Tensor.__rmatmul__, "matmul"),
        (torch.Tensor.__itruediv__, "div_"),
        (torch.Tensor.__iand__, "bitwise_and_"),
        (torch.Tensor.__floordiv__, "floor_divide"),
        (torch.Tensor.__invert__, "bitwise_not"),
        (torch.Tensor.__getitem__, "getitem"),
        (torch.Tensor.__eq__, "eq"),
        (torch.Tensor.mT.__get__, "mT"),
        (torch.Tensor.grad.__get__, ""),
        (torch.Tensor.data.__get__, ""),
        (torch.ops.aten.add.Tensor, "add"),
        (torch.ops.aten.add_, "add_"),
        (F.scaled_dot_product_attention, "scaled_dot_product_attention"),
    ],
)
def test_names_are_those_of_operators(function: object, name: str) -> None:
    assert plain_name(function) == name


def test_functions_in_place_bear_the_mark_of_it() -> None:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        y = x + 1
        F.relu(y, inplace=True)
        torch.mul(y, 2, out=y)
        y.requires_grad_(False).contiguous()
        with torch.inference_mode():
            z = y * 1
            z.neg_()
            z.contiguous()
        return y

    ops = of_kind(hookscope.capture(Module(run), ops=True, input=torch.ones(1)), "op")
    assert {key: value.item() for key, value in ops.items()} == {
        "./add": 2,
        "./relu_": 2,
        "./mul_": 4,
        "./mul": 4,
        "./neg_": -4,
    }


def test_what_a_modules_own_hook_computes_is_within_its_call() -> None:
    model = nn.Sequential(Module(lambda self, x: x * 3))
    model[0].register_forward_pre_hook(lambda module, args: (args[0].neg(),))
    model[0].register_forward_hook(lambda module, args, output: output.exp())
    shot = hookscope.capture(model, ops=True, input=torch.ones(1))
    assert {key: value.item() for key, value in of_kind(shot, "op").items()} == {
        "0/neg": -1,
        "0/mul": -3,
        "0/exp": pytest.approx(math.exp(-3)),
    }


def test_hooks_and_edits_are_not_the_models_doing() -> None:
    def own(module: nn.Module, input: object, output: Tensor) -> Tensor:
        return output.exp() + 1

    model, x = small()
    plain = hookscope.capture(model, ops=True, input=x)
    shot = hookscope.capture(model, ops=True, input=x, hooks={"first": own}, edits="second=scale:2")
    assert of_kind(shot, "op").keys() == of_kind(plain, "op").keys()
    found = hookscope.grads(
        model,
        ops=True,
        input=x,
        loss="sum",
        what="input,output,param",
        grad_edits="first=scale:2",
        hooks=lambda module, into, out: tuple(g if g is None else g * 1 for g in into),
        hook_kind="backward",
    )
    expected = hookscope.grads(model, ops=True, input=x, loss="sum")
    assert of_kind(found, "op.grad").keys() == of_kind(expected, "op.grad").keys()


def failing() -> Module:
    """Raises its ``error`` after a first operation, if it has one."""

    def run(self: Module, x: Tensor) -> Tensor:
        if self.error is not None:
            _ = x + 1
            raise self.error
        return self.inner(x).exp()

    net = Module(run, inner=Small())
    net.error = None
    return net


@pytest.mark.parametrize(
    ("error", "seen"), [(ValueError("no"), ForwardError), (KeyboardInterrupt(), KeyboardInterrupt)]
)
def test_nothing_is_left_after_a_failure(error: BaseException, seen: type[BaseException]) -> None:
    x, model = torch.randn(2, 4), nn.Sequential(nn.Linear(4, 4), failing())
    before = model(x)
    model[1].error = error
    with pytest.raises(seen):
        hookscope.capture(model, ops=True, attention=True, input=x)
    assert _len_torch_function_stack() == 0
    assert hooks_left(model) == 0
    model[1].error = None
    assert same_bits(model(x), before)
    shot = hookscope.capture(model, ops=True, input=x)
    assert same_bits(shot.output, before)
    assert "1/exp" in shot


def test_too_many_bytes_stop_the_run_inside_a_function() -> None:
    model, x = small()
    with pytest.raises(CheckFailed, match="100"):
        hookscope.capture(model, ops=True, input=x, layers=".", max_bytes=100)
    assert _len_torch_function_stack() == 0
    assert hooks_left(model) == 0


def test_without_ops_no_mode_is_in_force_and_with_it_only_forward() -> None:
    depths = []

    def run(self: nn.Module, x: Tensor) -> Tensor:
        depths.append(_len_torch_function_stack())
        return x * 2

    def loss(output: Tensor) -> Tensor:
        depths.append(_len_torch_function_stack())
        return output.exp().sum()

    x = torch.ones(1)
    hookscope.capture(Module(run), input=x)
    assert depths == [0]
    depths.clear()
    found = hookscope.grads(Module(run), input=x, ops=True, loss=loss)
    assert depths == [1, 0, 0]  # the last is the run that the first is held against
    assert list(of_kind(found, "op.grad")) == ["./mul.grad"]


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_checkpointing_runs_again_is_not_recorded_again(reentrant: bool) -> None:
    def run(self: nn.Module, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x + 1, use_reentrant=reentrant).exp()

    model, x = Module(run, inner=Small()), torch.randn(2, 4, requires_grad=True)
    with hookscope.record(model, ops=True, grads=True) as capture:
        for _ in range(2):
            model(x).sum().backward()
    ops = of_kind(capture, "op")
    assert [key for key in ops if key.endswith("/relu_")] == ["inner/relu_", "inner:2/relu_"]
    assert ("inner/relu_.grad" in capture) is not reentrant
    assert "./exp.grad" in capture


def test_threads_that_the_model_starts_have_ops_of_their_own() -> None:
    model, x = Threads(), torch.randn(2, 4)
    model.left, model.right = Small(), Small()
    ops = of_kind(hookscope.capture(model, ops=True, input=x), "op")
    for name in ("left", "right"):
        alone = of_kind(hookscope.capture(getattr(model, name), ops=True, input=x), "op")
        found = {f"./{k.partition('/')[2]}": v for k, v in ops.items() if k.startswith(name)}
        assert found.keys() == alone.keys()
        assert all(same_bits(found[key], alone[key]) for key in alone)
    assert "./add" in ops


def test_tensors_of_torch_func_are_told_and_not_kept() -> None:
    model = Module(lambda self, x: torch.vmap(torch.sin)(x) + 1)
    shot = hookscope.capture(model, ops=True, input=torch.ones(2))
    assert list(of_kind(shot, "op")) == ["./add"]
    assert [absent.what for absent in shot.absent] == ["sin"]


@pytest.mark.slow  # it imports the compiler
def test_compiled_functions_run_as_they_do() -> None:
    compiled = torch.compile(lambda x: (x * 2).sin(), backend="eager")

    def run(self: nn.Module, x: Tensor) -> Tensor:
        return compiled(x + 1) + 1

    x = torch.randn(3)
    shot = hookscope.capture(Module(run), input=x, ops=True, verify=True)
    assert same_bits(shot["./add"], x + 1)
    assert same_bits(shot["./add:2"], ((x + 1) * 2).sin() + 1)


def test_a_run_within_a_run_has_its_own_ops() -> None:
    model, x = small()
    with hookscope.record(model, ops=True) as outer:
        inner = hookscope.capture(model, ops=True, input=x)
        model(x)
    first = {key: value for key, value in of_kind(outer, "op").items() if key.startswith("./")}
    assert first.keys() == of_kind(inner, "op").keys()
    assert all(same_bits(first[key], inner[key]) for key in first)
    assert _len_torch_function_stack() == 0


def test_a_hook_may_run_a_model_and_record_its_ops() -> None:
    model, x = small()
    nested = []

    def own(module: nn.Module, input: object, output: Tensor) -> None:
        nested.append(hookscope.capture(model, ops=True, input=x))

    shot = hookscope.capture(failing(), ops=True, input=x, layers=".", hooks={"inner.first": own})
    assert list(of_kind(shot, "op")) == ["./exp"]
    alone = of_kind(hookscope.capture(model, ops=True, input=x), "op")
    assert of_kind(nested[0], "op").keys() == alone.keys()


def test_ops_take_part_in_a_comparison() -> None:
    shot = hookscope.capture(
        f"{SAMPLES}/digits.py:trained", ops=True, edits="conv1=scale:2", compare=True
    )
    drift = {entry["key"]: entry["largest"] for entry in shot.metadata["effect"]["drift"]}
    assert drift["./flatten"] > 0


def test_one_minus_x_has_one_name_everywhere(tmp_path: Path) -> None:
    class Flip(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (1 - x) * (x - 2)

    exported = torch.export.export(Flip(), (torch.randn(2, 3),))
    x = torch.randn(2, 3)
    shots = [hookscope.capture(model, input=x, ops=True) for model in (Flip(), exported)]
    assert all(torch.equal(shot["./sub"], 1 - x) for shot in shots)
    assert all(torch.equal(shot["./sub:2"], x - 2) for shot in shots)


def test_an_interrupt_while_hooks_are_attached_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(*[nn.Linear(2, 2) for _ in range(20)])
    attach = HookSet._attach
    count = 0

    def interrupted(self: HookSet, *args: Any) -> None:
        nonlocal count
        count += 1
        if count == 30:
            raise KeyboardInterrupt
        attach(self, *args)

    monkeypatch.setattr(HookSet, "_attach", interrupted)
    with pytest.raises(KeyboardInterrupt):
        hookscope.capture(net, input=torch.ones(1, 2), ops=True)
    assert hooks_left(net) == 0
