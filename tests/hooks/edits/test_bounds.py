"""Edits at their bounds: channels, odd tensors, and how far an output moved."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope.errors import EditError
from hookscope.execution.edit_effect import relative_change, tensor_change
from hookscope.hooks.edits.operations import OPERATIONS, EditSite, edit_seed
from tests.hooks.edits.by_hand import quantized
from tests.oracle.by_hand import same_bits
from tests.zoo import Module, twice

X = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
SITE = EditSite("conv/output", 7, 1)


def made(name: str, x: Tensor, argument: Any = None, site: EditSite = SITE) -> Tensor:
    return OPERATIONS[name](x, argument, site)


def test_seeds_differ_by_run_position_and_key() -> None:
    seeds = {edit_seed(s, p, k) for s in (0, 1) for p in (0, 1) for k in ("a", "b")}
    assert len(seeds) == 8 and all(0 <= seed < 2**63 for seed in seeds)
    assert edit_seed(0, 0, "a") == edit_seed(0, 0, "a")


def test_zero_takes_what_is_not_finite_away_too() -> None:
    assert made("zero", torch.tensor([math.nan, math.inf, 3.0])).tolist() == [0, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.complex64])
def test_noise_has_the_size_and_dtype_that_was_asked_for(dtype: torch.dtype) -> None:
    x = torch.zeros(20_000, dtype=dtype)
    found = made("noise", x, (0.5, False))
    assert found.dtype is dtype and torch.equal(found, made("noise", x, (0.5, False)))
    real = found.real if dtype.is_complex else found
    assert float(real.double().std()) == pytest.approx(0.5, rel=0.03)
    wide = torch.arange(20_000, dtype=torch.float64)
    spread = float((made("noise", wide, (0.1, True)) - wide).std())
    assert spread == pytest.approx(0.1 * float(wide.std(correction=0)), rel=0.03)


@pytest.mark.parametrize("shape", [(1,), (), (1, 1)])
def test_a_single_value_has_no_deviation(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="deviation"):
        made("noise", torch.ones(shape), (1.0, True))
    assert made("noise", torch.ones(2), (1.0, True)).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("over", "shape", "channel", "dims"),
    [
        ("", (2, 3, 4, 5), 1, (0,)),
        ("batch", (2, 3), 1, (0,)),
        ("spatial", (2, 3, 4, 5), 1, (2, 3)),
        ("spatial", (2, 4, 5, 3), 3, (1, 2)),
        ("spatial", (2, 6, 3), 2, (1,)),
        ("channel", (2, 3, 4, 5), 1, (0, 2, 3)),
        ("channel", (2, 3), 1, (0,)),
        ("channel", (1, 6, 3), 2, (0, 1)),
        ("channel", (1, 3, 4), 1, (0, 2)),
    ],
)
def test_a_mean_is_taken_over_the_right_dimensions(over, shape, channel, dims) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    found = made("mean", x, over, EditSite("k", 0, channel))
    assert same_bits(found, x.mean(dims, keepdim=True).expand_as(x)) and found.is_contiguous()


def test_a_mean_of_one_value_is_refused_or_the_value() -> None:
    for shape, over in (((2, 3), "spatial"), ((3,), "spatial")):
        with pytest.raises(ValueError, match="spatial"):
            made("mean", torch.ones(shape), over, EditSite("k", 0, len(shape) - 1))
    for shape in ((1, 3), (3,), (1, 3, 1)):
        channel = shape.index(3)
        with pytest.raises(ValueError, match="mean"):
            made("mean", torch.ones(shape), "channel", EditSite("k", 0, channel))
    x = torch.randn(3)
    for over in ("", "batch"):
        found = made("mean", x, over)
        assert torch.equal(found, x) and found is not x


@pytest.mark.parametrize("bits", [1, 2, 8, 16])
@pytest.mark.parametrize("shift", [-10.0, -1.0, 0.0, 1.0, 10.0])
def test_rounding_to_bits_is_that_by_hand(bits: int, shift: float) -> None:
    x = X + shift
    found = made("quantize", x, bits)
    torch.testing.assert_close(found, quantized(x, bits), rtol=0, atol=1e-6)
    step = (max(float(x.max()), 0) - min(float(x.min()), 0)) / (2**bits - 1)
    assert float((found - x).abs().max()) <= step * 1.001
    assert len(found.unique()) <= 2**bits


def test_rounding_of_odd_tensors() -> None:
    for same in (torch.empty(0), torch.zeros(3)):
        found = made("quantize", same, 8)
        assert torch.equal(found, same) and found is not same
    assert float(made("quantize", torch.tensor([0.0, 1.0]), 1).max()) == 1.0
    for wrong in (math.nan, math.inf):
        with pytest.raises(ValueError, match="step"):
            made("quantize", torch.tensor([1.0, wrong]), 8)
    x = torch.tensor([-1.0, 0.3, 2.0], requires_grad=True)
    made("quantize", x, 4).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [1, 1, 1]


@pytest.mark.parametrize("limit", [0.0, 0.5, 5.0, 1e4])
def test_a_norm_is_bounded_as_pytorch_does(limit: float) -> None:
    parameter = nn.Parameter(torch.zeros_like(X))
    parameter.grad = X.clone()
    torch.nn.utils.clip_grad_norm_([parameter], limit)
    torch.testing.assert_close(made("norm", X, limit), parameter.grad)
    half = (X * 100).half()  # the squares overflow half precision
    assert made("norm", half, 1e6).isfinite().all()
    assert made("norm", half, 1e6).dtype is torch.float16


def test_complex_signs_are_of_unit_size() -> None:
    assert made("sign", torch.tensor([3 + 4j])).tolist() == [pytest.approx(0.6 + 0.8j)]


def test_rounding_to_a_dtype_and_back_copies() -> None:
    x = torch.tensor([1.0 + 2**-12])
    assert made("dtype", x, "bfloat16").item() == 1.0
    same = made("dtype", x, "float32")
    assert torch.equal(same, x) and same.data_ptr() != x.data_ptr()


# Edits in a model.


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv1d(2, 3, 1), nn.Tanh(), nn.Conv1d(3, 2, 1)).eval()


IN = torch.randn(2, 2, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("edit", "subject"),
    [
        ("first:3=zero", r"first \(Linear\).* 2 times"),
        ("last:2=scale:3", r"last \(Linear\).* 1 time\."),
        ("idle=zero", r"idle \(Tanh\) never"),
    ],
)
def test_a_call_that_never_comes_is_told(edit: str, subject: str) -> None:
    model = twice()
    model.idle = nn.Tanh()
    with pytest.raises(EditError, match=f"'{edit}'.*{subject}"):
        hookscope.capture(model, input=torch.ones(1, 4), edits=edit)


def test_one_call_alone_is_edited() -> None:
    model = Module(lambda self, x: self.a(self.a(self.a(x))), a=nn.Tanh())
    shot = hookscope.capture(model, input=IN, edits="a:2=scale:3")
    assert same_bits(shot.output, (IN.tanh().tanh() * 3).tanh())
    assert [key for key in shot if "unedited" in key] == ["a:2/output.unedited"]
    assert shot.metadata["edits"] == [{"edit": "a:2=scale:3", "changed": ["a:2/output"]}]


@pytest.mark.parametrize("name", ["add", "patch"])
def test_a_tensor_of_a_file_takes_the_dtype_of_the_values(tmp_path: Path, name: str) -> None:
    file = tmp_path / "f.safetensors"
    capture = hookscope.capture(net(), input=IN * 2)
    capture.save(file)
    word = f"0=add:{file}#0/output" if name == "add" else f"0=patch:{file}"
    wide = hookscope.capture(net().double(), input=IN.double(), edits=word)["0/output"]
    clean = net().double()[0](IN.double())
    stored = capture["0/output"].double()
    assert same_bits(wide, clean + stored if name == "add" else stored)


# How far an output moved.


@pytest.mark.parametrize(
    ("before", "after", "largest", "relative"),
    [
        ([3.0, 4.0], [3.0, 5.0], 1.0, 0.2),
        ([3.0, 4.0], [3.0, 4.0], 0.0, 0.0),
        ([0.0, 0.0], [0.0, 2.0], 2.0, math.inf),
        ([], [], 0.0, 0.0),
        ([math.nan, 1.0], [math.nan, 2.0], 1.0, None),
        ([math.inf, 1.0], [math.inf, 1.0], 0.0, 0.0),
    ],
)
def test_a_change_is_the_largest_difference_and_a_share(before, after, largest, relative) -> None:
    found = tensor_change(torch.tensor(before), torch.tensor(after))
    assert found["largest"] == largest
    if relative is not None:
        assert found["relative"] == pytest.approx(relative)


def test_a_change_is_worked_out_in_double_precision_for_any_dtype() -> None:
    large = torch.full((1000,), 60_000.0, dtype=torch.float16)
    assert tensor_change(large, large / 2) == {"largest": 30_000.0, "relative": pytest.approx(0.5)}
    z = torch.tensor([3 + 4j])
    assert tensor_change(z, z * 2) == {"largest": 5.0, "relative": 1.0}
    assert tensor_change(torch.eye(2).to_sparse(), torch.eye(2) * 3)["largest"] == 2
    none = {"largest": None, "relative": None}
    assert tensor_change(None, large) == none == tensor_change(large[:2], large[:3])


def test_outputs_are_compared_as_one_long_vector() -> None:
    before = {"a": torch.tensor([3.0]), "b": [torch.tensor([4.0])], "n": torch.tensor([7])}
    after = {"a": torch.tensor([3.0]), "b": [torch.tensor([9.0])], "n": torch.tensor([8])}
    assert relative_change(before, after) == 1.0
    assert relative_change(before, before) == 0.0
    assert relative_change(before, {"a": torch.tensor([3.0])}) is None
    assert relative_change(torch.tensor([1]), torch.tensor([1])) is None
    assert relative_change(torch.zeros(2), torch.zeros(3)) is None
    assert relative_change(torch.zeros(2), torch.ones(2)) == math.inf


def test_noise_in_a_model_follows_the_key_and_the_seed_of_the_run() -> None:
    first = hookscope.capture(net(), input=IN, edits=["1=scale:1", "0=noise:0.5"], seed=3)
    expected = net()[0](IN) + 0.5 * torch.randn(
        (2, 3, 4), generator=torch.Generator().manual_seed(edit_seed(3, 1, "0/output"))
    )
    assert same_bits(first["0/output"], expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dropout_works_in_the_dtype_of_the_values(dtype: torch.dtype) -> None:
    x = torch.ones(100, dtype=dtype)
    found = made("dropout", x, 0.3)
    assert found.dtype is dtype
    assert found.unique().tolist() == [0, (torch.ones(1, dtype=dtype) / 0.7).item()]
    assert torch.equal(made("dropout", x, 0.0), x)


def test_a_norm_beyond_half_precision_is_known() -> None:
    large = torch.full((120,), 60_000.0, dtype=torch.float16)  # its norm is beyond 65,504
    assert torch.equal(made("norm", large, 1e6), large)
    assert float(made("norm", large, 10.0).double().norm()) == pytest.approx(10, rel=1e-2)


def test_gradients_are_edited_before_hooks_of_ones_own_see_them() -> None:
    seen: list[Tensor] = []

    def look(module: nn.Module, into: Any, out: Any) -> None:
        seen.append(out[0].clone())

    clean = hookscope.grads(net(), input=IN, loss="sum")
    found = hookscope.grads(
        net(), input=IN, loss="sum", grad_edits="0=scale:4", hooks={"0": look}, hook_kind="backward"
    )
    assert same_bits(found["0/output.grad"], clean["0/output.grad"] * 4)
    assert len(seen) == 1 and same_bits(seen[0], clean["0/output.grad"] * 4)


def test_the_effect_on_a_nested_output_is_told_by_its_parts() -> None:
    model = Module(
        lambda self, x: {"a": self.a(x), "rest": [x * 2, self.b(x)]}, a=nn.Tanh(), b=nn.Tanh()
    )
    shot = hookscope.capture(model, input=IN, edits="b=scale:3")
    by_name = {entry["name"]: entry for entry in shot.metadata["effect"]["output"]}
    assert list(by_name) == ["output.a", "output.rest.0", "output.rest.1"]
    assert by_name["output.a"]["largest"] == by_name["output.rest.0"]["relative"] == 0
    assert by_name["output.rest.1"]["relative"] == pytest.approx(2)
    assert by_name["output.rest.1"]["largest"] == pytest.approx(float(IN.tanh().abs().max()) * 2)


def test_the_effect_of_hooks_on_the_output_is_told_when_it_is_compared() -> None:
    def triple(module: nn.Module, into: Any, out: Tensor) -> Tensor:
        return out * 3

    shot = hookscope.capture(net(), input=IN, hooks={"2": triple}, compare=True)
    [entry] = shot.metadata["effect"]["output"]
    clean = net()(IN)
    assert entry["name"] == "output" and entry["relative"] == pytest.approx(2)
    assert entry["largest"] == pytest.approx(float(clean.detach().abs().max()) * 2, rel=1e-5)
    drift = {entry["key"]: entry["relative"] for entry in shot.metadata["effect"]["drift"]}
    assert drift["2/output"] == pytest.approx(2) and drift["1/output"] == 0
    assert "effect" not in hookscope.capture(net(), input=IN, hooks={"2": triple}).metadata


def test_the_likeliest_classes_are_told_without_edits_and_with_them() -> None:
    word = "sample_models/digits.py:trained"
    top = hookscope.capture(word, layers="fc").metadata["top"]
    shot = hookscope.capture(word, layers="fc", edits="fc=scale:-1")
    entry = shot.metadata["effect"]["top"]
    assert sorted(entry) == ["edited", "unedited"]
    assert entry["unedited"] == top and entry["edited"] == shot.metadata["top"] != top
    for row, classes in zip(shot["fc/output"], entry["edited"], strict=True):
        for one in classes:
            assert one["logit"] == pytest.approx(float(row[one["index"]]), abs=1e-6)
