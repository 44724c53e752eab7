"""What may be chosen of a loss, at its bounds; targets as functions of the user's own get them."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

import hookscope
from hookscope.errors import ForwardError, LossError
from hookscope.execution.loss import (
    class_scores,
    compute_loss,
    flatten_floating,
    has_classes,
    resolve_custom_loss,
)
from hookscope.execution.target import read_target, resolve_target, target_for_function
from hookscope.specs.losses import (
    FORMULAS,
    REDUCTIONS,
    check_reduction,
    check_target,
    is_target_file,
    reject_loss_options,
)
from hookscope.tensors.torch_release import reads_pickles_safely

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def test_probabilities_run_from_zero_to_one_inclusive() -> None:
    inside = torch.tensor([[0.0, 1.0, 0.25]])
    target = torch.tensor([[0.0, 1.0, 1.0]])
    found = compute_loss("bce", inside, target, raw=True)
    torch.testing.assert_close(found.value, F.binary_cross_entropy(inside, target))
    for outside in ([[-0.01, 1.0]], [[0.5, 1.01]], [[0.5, 1.5]], [[-1.0, 0.5]]):
        with pytest.raises(
            LossError, match=f"ranges from {min(outside[0]):.4g} to {max(outside[0]):.4g}"
        ):
            compute_loss("bce", torch.tensor(outside), torch.zeros(1, 2), raw=True)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("name", [n for n, f in FORMULAS.items() if f.needs_target])
def test_terms_are_reduced_as_asked(name: str, raw: bool, reduction: str) -> None:
    x = torch.rand(3, 4, generator=torch.Generator().manual_seed(1))
    dense = F.one_hot(torch.tensor([1, 0, 3]), 4).float()
    terms = {
        "kl": F.kl_div(x if raw else x.log_softmax(1), dense, reduction="none"),
        "ce": F.cross_entropy(x, torch.tensor([1, 0, 3]), reduction="none"),
        "nll": F.nll_loss(x, torch.tensor([1, 0, 3]), reduction="none"),
        "logit": x[range(3), [1, 0, 3]],
    }
    bce = F.binary_cross_entropy if raw else F.binary_cross_entropy_with_logits
    terms |= {
        "mse": (x - dense) ** 2,
        "l1": (x - dense).abs(),
        "smooth_l1": F.smooth_l1_loss(x, dense, reduction="none"),
        "bce": bce(x, dense, reduction="none"),
    }
    expected = {
        "mean": terms[name].mean(),
        "sum": terms[name].sum(),
        "batchmean": terms[name].sum() / 3,
    }[reduction]
    found = compute_loss(name, x, "1,0,3", raw=raw, reduction=reduction)
    torch.testing.assert_close(found.value, expected)
    assert (found.reduction, found.target, found.raw) == (reduction, "1, 0, 3", raw)
    assert found.classes is not None and found.classes.tolist() == [1, 0, 3]
    formula = FORMULAS[name]
    assert found.formula == (formula.raw_formula if raw else formula.formula) and found.formula
    default = compute_loss(name, x, "1,0,3", raw=raw)
    assert default.reduction == (formula.raw_reduction if raw else formula.reduction)


@pytest.mark.parametrize("name", ["sum", "norm"])
def test_a_loss_of_one_number_has_no_target_and_no_reduction(name: str) -> None:
    found = compute_loss(name, {"a": X, "b": [X.double()]})
    every = torch.cat([X.flatten().double()] * 2)
    expected = every.sum() if name == "sum" else every.norm()
    torch.testing.assert_close(found.value.double(), expected)
    assert (found.name, found.reduction, found.target, found.classes) == (name, "", "", None)
    with pytest.raises(LossError, match="is one number and takes no reduction"):
        check_reduction(FORMULAS[name], "mean")
    check_reduction(FORMULAS[name], None)


def test_a_reduction_that_is_none_is_refused() -> None:
    with pytest.raises(LossError, match="no reduction called 'average'") as caught:
        compute_loss("ce", X, 1, reduction="average")
    assert all(name in caught.value.hint for name in REDUCTIONS)


Found = namedtuple("Found", "logits other")


@pytest.mark.parametrize(
    ("output", "task", "expected"),
    [
        (X, "", True),
        (X, "classification", True),
        (X, "detection", False),
        (X, "optical flow", False),
        (X[0], "", True),
        (torch.zeros(2, 3, 4), "", False),
        (torch.zeros(2, 3, 4, 5), "", True),
        (torch.zeros(2, 1), "", False),
        (torch.zeros(2, 3, dtype=torch.int64), "", False),
        ({"out": X}, "", True),
        ({"logits": torch.zeros(2, 3, 4)}, "", True),
        ((X, X), "", False),
        ([X], "", False),
        (Found(X, X), "", True),
        ("text", "", False),
        (torch.zeros(0, 4), "", False),
    ],
)
def test_an_output_of_class_scores_is_told_from_others(output, task, expected) -> None:
    assert has_classes(output, task) is expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_scores_are_of_single_precision_or_more(dtype: torch.dtype) -> None:
    wide = torch.promote_types(dtype, torch.float32)
    assert class_scores(X.to(dtype)).dtype is wide
    assert flatten_floating([X.to(dtype)]).dtype is wide
    assert class_scores(X[0]).shape == (1, 4)
    assert class_scores({"logits": torch.zeros(2, 3, 4)}).shape == (2, 4, 3)
    assert class_scores({"out": torch.zeros(2, 3, 4)}).shape == (2, 3, 4)


@pytest.mark.parametrize("total", [1.0, 1.0005, 0.9995])
def test_a_distribution_adds_up_to_one(total: float) -> None:
    row = torch.tensor([0.5, 0.25, 0.25, 0.0]) * total
    cases = ((row * 1.1, r"sums to 1\.(1|099|101)"), (row - 0.25, r"contains -0.25"))
    for name in ("ce", "kl"):
        assert compute_loss(name, X, row).value.isfinite()
        for wrong, message in cases:
            message = f"needs a distribution over the classes.*{message}"
            with pytest.raises(LossError, match=message):
                compute_loss(name, X, wrong)


@pytest.mark.parametrize(
    ("choices", "name"),
    [
        ((None, "argmax", None, False), None),
        (("kl", "argmax", None, False), "loss"),
        ((None, "3", None, False), "target"),
        ((None, torch.zeros(2), None, False), "target"),
        ((None, "argmax", "sum", False), "reduction"),
        ((None, "argmax", None, True), "raw"),
    ],
)
def test_nothing_of_a_loss_is_chosen_without_a_backward_pass(choices: Any, name: Any) -> None:
    if name is None:
        return reject_loss_options(*choices)
    with pytest.raises(LossError, match=f"^--{name} is for the backward pass") as caught:
        reject_loss_options(*choices)
    assert f"--{name} or --forward-only" in caught.value.hint
    return None


@pytest.mark.parametrize(
    ("word", "expected"),
    [("t.npy", True), ("T.NPY", True), ("a/b.safetensors", True), ("t.pt", True), ("t.pth", True),
     ("npy", False), ("t.npz", False), ("3", False), (3, False), (None, False)],
)  # fmt: skip
def test_files_of_targets_go_by_their_ending(word: Any, expected: bool) -> None:
    assert is_target_file(word) is expected


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    check_target("3")
    with pytest.raises(LossError, match=r"There is no target file 'none\.npy'"):
        check_target("none.npy")
    with pytest.raises(LossError, match="There is no target file"):
        resolve_target(tmp_path / "none.pt", X)


WAYS = {
    "t.npy": lambda path, t: np.save(path, t.numpy()),
    "t.pt": lambda path, t: torch.save(t, path),
    "t.pth": lambda path, t: torch.save({"x": t}, path),
    "t.safetensors": lambda path, t: save_file({"x": t}, path),
}
if not reads_pickles_safely():  # then they are refused: see tests/sources/test_files_of_torch_save.py
    del WAYS["t.pt"], WAYS["t.pth"]
OTHERS = [
    ("t.pt", {"a": X, "b": X}, "contains 2 entries"),
    ("t.safetensors", {"a": X, "b": X + 1}, "contains 2 entries"),
    ("t.pt", [X], "contains list"),
    ("t.pt", {}, "contains 0 entries"),
    ("t.pt", 3, "contains int"),
]


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("name", WAYS)
def test_every_kind_of_file_holds_a_target(tmp_path: Path, name: str, upper: bool) -> None:
    WAYS[name](tmp_path / name, X)
    path = tmp_path / (name.upper() if upper else name)
    (tmp_path / name).rename(path)
    assert torch.equal(read_target(str(path)), X)
    for given in (path, str(path)):
        found = resolve_target(given, X)
        assert torch.equal(found.values, X) and found.text == f"{path} (3x4)"
        handed, text = target_for_function(given)
        assert torch.equal(handed, X) and text == f"{path} (3x4)"


@pytest.mark.parametrize(
    ("name", "value", "message"), [other for other in OTHERS if other[0] in WAYS]
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, name, value, message) -> None:
    (save_file if name == "t.safetensors" else torch.save)(value, tmp_path / name)
    with pytest.raises(LossError, match=message):
        read_target(str(tmp_path / name))


@pytest.mark.parametrize("name", WAYS)
def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x80nothing of the kind\nat all")
    with pytest.raises(LossError, match="cannot be read: ") as caught:
        read_target(str(tmp_path / name))
    [first, *_] = str(caught.value).splitlines()
    assert name in first and first.endswith((".", "!", "?"))


@pytest.mark.parametrize(
    ("target", "categories", "handed", "text"),
    [
        ("argmax", (), None, ""),
        ("3", (), 3, "3"),
        ("+3", (), 3, "3"),
        ("-1", (), -1, "-1"),
        ("-1", ("a", "b"), -1, "-1"),
        ("3", ("a", "b"), 3, "3"),
        ("b", ("a", "b"), 1, "1 (b)"),
        ("B", ("a", "b"), 1, "1 (b)"),
        ("b, a", ("a", "b"), [1, 0], "1 (b), 0 (a)"),
        ("b,1", ("a", "b"), [1, 1], "1 (b), 1 (b)"),
        ([1, 2], (), [1, 2], "1, 2"),
        ((4,), (), 4, "4"),
        ("uniform", (), "uniform", "uniform"),
        ("uniform", ("a", "b"), "uniform", "uniform"),
        ("free words", (), "free words", "free words"),
        ("a, b", ("a, b", "c"), 0, "0 (a, b)"),
        (2.5, (), 2.5, "2.5"),
        (7, (), 7, "7"),
        (None, (), None, "None"),
        ([], (), [], "given list"),
        ([1.5, 2.0], (), [1.5, 2.0], "given list"),
        ([True], (), [True], "given list"),
        ({"a": 1}, (), {"a": 1}, "given dict"),
    ],
)
def test_a_function_gets_the_target_as_it_was_meant(target, categories, handed, text) -> None:
    found, label = target_for_function(target, categories)
    plain = found.tolist() if isinstance(found, Tensor) else found
    assert (plain, label) == (handed, text) and type(plain) is type(handed)
    if isinstance(found, Tensor):
        assert found.dtype is torch.int64


def test_labels_with_the_same_name_want_an_index() -> None:
    with pytest.raises(LossError, match="Several classes have the label 'a': 0 and 2") as caught:
        resolve_target("a", X, ["a", "b", "a", "A"])
    assert caught.value.hint == "Give the index."
    assert resolve_target("A", X, ["a", "b", "a", "A"]).classes.tolist() == [3, 3, 3]
    with pytest.raises(LossError, match="Several"):
        resolve_target("B", X, ["b", "x", "b"])


def test_a_label_beyond_the_output_is_refused() -> None:
    with pytest.raises(LossError, match="no class 4: the model's output has 4 classes") as caught:
        resolve_target("e", X, list("abcde"))
    assert caught.value.hint == "Give an index from 0 to 3."
    with pytest.raises(LossError, match="has 1 class") as caught:
        resolve_target(1, torch.zeros(2, 1))
    assert caught.value.hint == "The only index is 0."


def test_a_word_that_is_no_class_is_answered(tmp_path: Path) -> None:
    with pytest.raises(LossError, match="No class has the label 'dgo'") as caught:
        resolve_target("dgo", X, ["cat", "dog"])
    assert "Did you mean dog?" in caught.value.hint
    with pytest.raises(LossError) as caught:
        resolve_target("zzzz", X, ["cat", "dog"])
    assert caught.value.hint.startswith("A target is ")
    with pytest.raises(LossError) as caught:
        resolve_target("zzzz", X)
    assert caught.value.hint == "This model has no class labels. Give an index."
    (tmp_path / "note.txt").write_text("words")
    with pytest.raises(LossError, match=r"which cannot be read as a target"):
        resolve_target(str(tmp_path / "note.txt"), X)
    for wrong in ([None], [object()], [[1, 2]]):
        with pytest.raises(LossError, match="is not a valid target"):
            resolve_target(wrong, X)


class Weighted(nn.Module):
    def forward(self, output: Tensor, target: Any) -> Tensor:
        return output.sum() * target


class Called:
    def __call__(self, output: Tensor) -> Tensor:
        return output.sum()


def test_modules_and_objects_that_can_be_called_are_losses() -> None:
    x = X.clone().requires_grad_()
    module = resolve_custom_loss(Weighted(), None, False)
    assert module is not None and module.name == "Weighted"
    assert module.compute(x, 3, None).value.item() == pytest.approx(3 * X.sum().item())
    called = resolve_custom_loss(Called(), None, False)
    assert called is not None and called.name == "Called"
    assert torch.equal(called.compute(x, "argmax", None).value, x.sum())


@pytest.mark.parametrize("name", [*FORMULAS, "zzz"])
def test_the_name_of_a_formula_is_no_function(name: str) -> None:
    assert (
        resolve_custom_loss(name, "mean", True) is None
        and resolve_custom_loss(None, None, False) is None
    )


def test_a_function_gets_a_copy_of_the_input_that_is_a_constant() -> None:
    x = torch.ones(2, requires_grad=True)
    seen: list[Tensor] = []

    def loss(output: Tensor, input: Any) -> Tensor:
        seen.append(input[0])
        return (output * input[0]).sum()

    own = resolve_custom_loss(loss, None, False)
    assert own is not None
    own.compute(x * 2, "argmax", (x,)).value.backward()
    assert not seen[0].requires_grad and seen[0].data_ptr() != x.data_ptr()
    assert x.grad is not None and x.grad.tolist() == [2, 2]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "returned an int"),
        (None, "returned a NoneType"),
        ("x", "returned a str"),
        (torch.ones(2, 3), "returned 2x3 of float32"),
        (torch.tensor(3), "returned no dimensions of int64"),
        (torch.empty(0), "returned 0 of float32"),
    ],
)
def test_what_is_no_number_is_no_loss(value: Any, message: str) -> None:
    def loss(output: Tensor) -> Any:
        return value

    own = resolve_custom_loss(loss, None, False)
    assert own is not None
    with pytest.raises(LossError, match=f"the loss {message}") as caught:
        own.compute(X, "argmax", None)
    assert f"{__file__}, line " in str(caught.value)


def test_a_loss_of_one_entry_loses_its_dimensions() -> None:
    own = resolve_custom_loss(lambda output: output.sum().reshape(1, 1), None, False)
    assert own is not None and own.compute(X, "argmax", None).value.shape == ()


@pytest.mark.parametrize(
    "function", [lambda a, b, c: 0, lambda target: 0, lambda: 0, lambda y=1: 0]
)
def test_what_nothing_is_there_for_is_refused(function: Any) -> None:
    with pytest.raises(LossError) as caught:
        resolve_custom_loss(function, None, False)
    assert "Write loss(output)" in caught.value.hint


def test_a_function_that_is_not_written_in_python_gets_output_and_target() -> None:
    own = resolve_custom_loss(torch.dist, None, False)
    assert own is not None and own.name == "dist"
    goal = torch.zeros(3, 4)
    torch.testing.assert_close(own.compute(X, goal, None).value, X.norm())
    assert own.compute(X, goal, None).formula == "as written in dist"


def test_the_line_that_raised_is_the_innermost(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "def loss(output):\n    return helper(output)\n\ndef helper(output):\n    return 1 / 0\n"
    )
    own = resolve_custom_loss(f"{path}:loss", None, False)
    assert own is not None and own.path == str(path)
    with pytest.raises(LossError, match=r"mine\.py, line 5, raised ZeroDivisionError"):
        own.compute(X, "argmax", None)

    def helper() -> Tensor:
        raise KeyError("gone")

    def loss(output: Tensor) -> Tensor:
        return helper()

    inner = resolve_custom_loss(loss, None, False)
    assert inner is not None
    line = helper.__code__.co_firstlineno + 1
    with pytest.raises(LossError, match=f"line {line}, raised KeyError: 'gone'") as caught:
        inner.compute(X, "argmax", None)
    assert "HOOKSCOPE_DEBUG=1" in caught.value.hint


def test_choices_of_a_function_without_a_name_are_refused_by_its_class() -> None:
    with pytest.raises(LossError, match="and Called is a custom function"):
        resolve_custom_loss(Called(), "sum", False)


@pytest.mark.parametrize("name", ["kl", "ce"])
def test_one_class_has_no_softmax_to_differentiate(name: str) -> None:
    one = torch.full((2, 1), 0.5)
    message = f"one class.*its softmax is 1 and the gradient of {name} is zero"
    with pytest.raises(LossError, match=message) as caught:
        compute_loss(name, one, 0)
    assert "logit, bce or mse" in caught.value.hint
    assert compute_loss("kl", one, 0, raw=True).value.item() == pytest.approx(-0.5)
    with pytest.raises(LossError, match="has one class"):
        compute_loss("ce", one, 0, raw=True)


@pytest.mark.parametrize("shape", [(3, 1), ()])
def test_one_score_is_summed_if_no_loss_is_chosen(shape: tuple[int, ...]) -> None:
    class Score(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            scores = super().forward(x)
            return scores if shape else scores.mean()

    net = Score(4, 1)
    [expected, _] = torch.autograd.grad(net(X).sum(), [net.weight, net.bias])
    assert hookscope.grads(net, input=X)["./weight.grad"].equal(expected)
    update = hookscope.step(net, input=X, optimizer="sgd", lr=1.0)["./weight.update"]
    assert torch.allclose(update, -expected)
    with pytest.raises(LossError, match="its softmax is 1" if shape else "has no classes"):
        hookscope.grads(net, input=X, loss="ce")


def test_a_model_of_one_score_whose_backward_pass_fails_is_explained() -> None:
    class Failing(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x).exp()
            y += 1
            return y

    with pytest.raises(ForwardError) as caught:
        hookscope.grads(Failing(4, 1), input=X)
    assert caught.value.failure is not None and caught.value.failure.kind == "in-place"


def test_a_loss_in_a_file_that_ends_the_program_has_failed(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("import sys\n\ndef loss(output):\n    print('told')\n    sys.exit(3)\n")
    own = resolve_custom_loss(f"{path}:loss", None, False)
    assert own is not None
    with pytest.raises(LossError, match=r"mine\.py, line 5, raised SystemExit: 3"):
        own.compute(X, "argmax", None)
