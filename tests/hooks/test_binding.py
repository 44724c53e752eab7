"""Hooks of the user's own: words, kinds and layers; what they emit; gates and lent clones."""

from __future__ import annotations

import copy
import logging
import pickle
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope.errors import HookError, HookscopeError, LayerError, RequestError
from hookscope.hooks.hook_set import HookSet, as_hook, hook_depth
from hookscope.hooks.layers import select
from hookscope.hooks.module_call import what_of
from hookscope.hooks.torch_state import inside_backward
from hookscope.hooks.user_hooks import bind_user_hooks, describe_hooks, load_user_hooks
from hookscope.specs.choices import HOOK_KINDS, HOOK_KINDS_OF
from hookscope.specs.intervention_spec import parse_hook, resolve_hook_kinds
from hookscope.tensors.grad_mode import BackwardHookPair, carries_gradient, insert_gradient_gate
from hookscope.tensors.input_clones import (
    InputClone,
    clone_preserving_strides,
    shared_storages,
    storage_id,
    write_back,
)
from tests.hooks.test_values import Module, hooks_left
from tests.oracle.by_hand import same_bits

X = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(
        "def look(module, input, output): pass\n"
        "def scaled(module, input, output, factor: float = 2.0): return output * factor\n"
    )
    return str(path)


def test_a_word_is_a_glob_and_a_function(file: str) -> None:
    plain, bound = parse_hook(f"{file}:look"), parse_hook(f"layer{{1,2}}.*={file}:look")
    assert (plain.glob, plain.function.home, plain.function.name) == (None, file, "look")
    assert (bound.glob, bound.function) == ("layer{1,2}.*", plain.function)


@pytest.mark.parametrize(
    ("glob", "sentence"),
    [("", "empty layer pattern"), ("!", "empty layer pattern"), ("!0", "only excludes layers")],
)
def test_a_glob_says_where_a_hook_goes(file: str, glob: str, sentence: str) -> None:
    with pytest.raises(RequestError, match=sentence) as caught:
        parse_hook(f"{glob}={file}:look")
    assert repr(f"{glob}={file}:look") in str(caught.value)


def test_a_glob_that_cannot_be_read_is_refused(file: str) -> None:
    with pytest.raises(LayerError, match="brace"):
        parse_hook(f"a{{b={file}:look")


@pytest.mark.parametrize(
    ("kinds", "count", "expected"),
    [
        ([], 0, []),
        ([], 2, ["forward", "forward"]),
        (["tensor"], 3, ["tensor"] * 3),
        (["tensor"], 1, ["tensor"]),
        (["tensor", "forward"], 2, ["tensor", "forward"]),
    ],
)
def test_one_kind_stands_for_all_and_none_is_forward(kinds, count, expected) -> None:
    assert resolve_hook_kinds(kinds, count, verb="grads") == expected


@pytest.mark.parametrize("verb", HOOK_KINDS_OF)
def test_a_verb_runs_the_hooks_that_it_has_a_pass_for(verb: str) -> None:
    for kind in HOOK_KINDS:
        if kind in HOOK_KINDS_OF[verb]:
            assert resolve_hook_kinds([kind], 1, verb=verb) == [kind]
            continue
        what = "an optimizer's step" if kind.startswith("step") else "a backward pass"
        with pytest.raises(RequestError) as caught:
            resolve_hook_kinds([kind], 1, verb=verb)
        assert f"of kind {kind!r} needs {what}, which {verb} does not run" in str(caught.value)
        others = [name for name in HOOK_KINDS_OF if kind in HOOK_KINDS_OF[name]]
        assert caught.value.hint.startswith(f"Use {' or '.join(others)}, or a hook of kind ")


def test_hooks_are_given_as_words_functions_lists_or_by_layer(file: str) -> None:
    def own(module: Any, input: Any, output: Any) -> None:
        pass

    word = f"{file}:look"
    cases: list[tuple[Any, list[tuple[str | None, str, str]]]] = [
        (word, [(None, word, file)]),
        (own, [(None, own.__qualname__, __file__)]),
        ([own, word], [(None, own.__qualname__, __file__), (None, word, file)]),
        ({"0": own, "1": word}, [("0", own.__qualname__, __file__), ("1", f"1={word}", file)]),
        (f"2={word}", [("2", word, file)]),
        ([], []),
    ]
    for hooks, expected in cases:
        found = load_user_hooks(hooks, [], {}, verb="capture")
        assert [(hook.glob, hook.file) for hook in found] == [(g, f) for g, _, f in expected]
        assert all(hook.kind == "forward" and hook.layers == () for hook in found)
        for hook, (_, label, _) in zip(found, expected, strict=True):
            assert label.endswith(hook.label)


def test_arguments_go_to_the_hooks_that_have_a_parameter_for_them(file: str) -> None:
    words = [f"{file}:look", f"{file}:scaled"]
    shot = hookscope.capture(net(), input=X, layers="2", hooks=words, hook_args={"factor": 3.0})
    assert same_bits(shot["2/output"], net()(X) * 3.0)
    with pytest.raises(RequestError, match="No hook has a parameter 'fctor'") as caught:
        load_user_hooks(words, [], {"fctor": 1}, verb="capture")
    assert "factor" in caught.value.hint


def test_a_hook_of_a_step_has_no_layer(file: str) -> None:
    with pytest.raises(RequestError, match="does not run at layers, but '0' selects some"):
        load_user_hooks({"0": f"{file}:look"}, ["step_pre"], {}, verb="step")


def test_a_hook_is_bound_to_its_own_layers_or_to_those_that_were_chosen(file: str) -> None:
    model = net()
    hooks = load_user_hooks([f"{file}:look", f"[02]={file}:look"], [], {}, verb="capture")
    bound = bind_user_hooks(hooks, model, select(model, ["1"]), "spec")
    assert [[layer.name for layer in hook.layers] for hook in bound] == [["1"], ["0", "2"]]
    assert describe_hooks(bound) == [
        {"hook": bound[0].label, "kind": "forward", "layers": ["1"]},
        {"hook": bound[1].label, "kind": "forward", "layers": ["0", "2"]},
    ]
    [missing] = load_user_hooks(f"7={file}:look", [], {}, verb="capture")
    with pytest.raises(LayerError, match="No layer of spec matches '7'"):
        bind_user_hooks([missing], model, (), "spec")
    [step] = load_user_hooks(lambda optimizer, args, kwargs: None, ["step_post"], {}, verb="step")
    [layer] = bind_user_hooks([step], model, (), "spec")[0].layers
    assert (layer.name, layer.module) == (".", model)


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (2.5, torch.float64, 2.5),
        (3, torch.int64, 3),
        (True, torch.bool, True),
        (torch.tensor([1.0, 2.0]), torch.float32, [1.0, 2.0]),
    ],
)
def test_what_is_emitted_is_recorded_as_it_was(value: Any, dtype: Any, expected: Any) -> None:
    def hook(module: nn.Module, input: Any, output: Tensor) -> None:
        hookscope.emit("seen", value)

    shot = hookscope.capture(net(), input=X, layers="1", hooks=hook)
    assert shot["1/seen"].dtype is dtype and shot["1/seen"].tolist() == expected
    record = shot.records[0]
    assert (record.key, record.kind, record.module, record.call) == ("1/seen", "emitted", "1", 1)


def test_what_is_emitted_is_a_copy() -> None:
    def hook(module: nn.Module, input: Any, output: Tensor) -> None:
        value = output.detach().clone()
        hookscope.emit("seen", value)
        value.zero_()

    shot = hookscope.capture(net(), input=X, layers="1", hooks=hook)
    assert same_bits(shot["1/seen"], shot["1/output"])


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("", "is not a valid name for a value"),
        ("a/b", "is not a valid name for a value"),
        ("output", "is reserved for values that hookscope records"),
        ("output.1", "is reserved for values that hookscope records"),
        ("input.mask", "is reserved for values that hookscope records"),
        ("weight.grad", "is reserved for values that hookscope records"),
        ("weight.update", "is reserved for values that hookscope records"),
    ],
)
def test_names_that_would_mislead_are_refused(name: str, sentence: str) -> None:
    def hook(module: nn.Module, input: Any, output: Tensor) -> None:
        hookscope.emit(name, 1)

    with pytest.raises(HookError, match=sentence):
        hookscope.capture(net(), input=X, layers="1", hooks=hook)


@pytest.mark.parametrize("name", ["outputs", "my.output", "grad", "weight.gradient"])
def test_names_that_only_resemble_are_allowed(name: str) -> None:
    def hook(module: nn.Module, input: Any, output: Tensor) -> None:
        hookscope.emit(name, 1)

    assert f"1/{name}" in hookscope.capture(net(), input=X, layers="1", hooks=hook)


def test_what_is_no_number_cannot_be_emitted() -> None:
    def hook(module: nn.Module, input: Any, output: Tensor) -> None:
        hookscope.emit("seen", "text")  # type: ignore[arg-type]

    with pytest.raises(HookError, match="A str cannot be recorded as 'seen'"):
        hookscope.capture(net(), input=X, layers="1", hooks=hook)


def test_how_often_each_hook_ran_is_told(caplog: pytest.LogCaptureFixture) -> None:
    def look(module: nn.Module, input: Any, output: Tensor) -> None:
        pass

    model = Module(lambda self, x: self.a(self.a(x)), a=nn.Tanh(), b=nn.Tanh())
    with caplog.at_level(logging.INFO, "hookscope"):
        hookscope.capture(model, input=X, hooks={"[ab]": look, "b": look, ".": look})
    messages = [r.getMessage() for r in caplog.records if "hook" in r.getMessage()]
    name = look.__qualname__
    assert messages == [
        f"hook: {name} (forward) ran 2 times at 1 of 2 layers",
        f"hook {name} (forward) never ran at any of 1 layers",
        f"hook: {name} (forward) ran 1 time at 1 of 1 layer",
    ]
    assert [r.levelname for r in caplog.records if "never ran" in r.getMessage()] == ["WARNING"]


def test_the_call_in_which_a_hook_failed_is_counted() -> None:
    calls: list[int] = []

    def hook(module: nn.Module, input: Any, output: Tensor) -> None:
        calls.append(1)
        if len(calls) == 3:
            sys.exit(3)

    model = Module(lambda self, x: self.a(self.a(self.a(x))), a=nn.Tanh())
    with pytest.raises(HookError, match=r"at layer a \(Tanh, call 3\): SystemExit: 3\."):
        hookscope.capture(model, input=X, layers="a", hooks=hook)


@pytest.mark.parametrize("kind", ["forward", "forward_pre", "backward", "backward_pre", "tensor"])
def test_a_hook_that_changes_nothing_changes_no_bit(kind: str) -> None:
    def seen(*arguments: Any) -> None:
        counts.append(len(arguments))

    counts: list[int] = []
    plain = hookscope.grads(net(), input=X, loss="sum")
    with_hook = hookscope.grads(net(), input=X, loss="sum", hooks=seen, hook_kind=kind)
    assert set(plain) == set(with_hook)
    assert all(same_bits(plain[key], with_hook[key]) for key in plain)
    takes = {"forward": 3, "forward_pre": 2, "backward": 3, "backward_pre": 2, "tensor": 1}
    passes = 2 if kind.startswith("forward") else 1  # values are changed in the run that checks too
    assert counts == [takes[kind]] * 4 * passes  # at the model and its three layers


# Hook sets.


def test_hooks_come_off_whatever_ends_the_block() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for error in (None, ValueError, KeyboardInterrupt):
        try:
            with HookSet(model) as hooks:
                hooks.before(model[0], lambda *a: None)
                hooks.after(model[0], lambda *a: None)
                hooks.listen(model[0].weight, lambda grad: None)
                hooks.around_step(optimizer, lambda *a: None, lambda *a: None)
                assert hooks_left(model) == 3
                assert len(optimizer._optimizer_step_pre_hooks) == 1
                assert len(optimizer._optimizer_step_post_hooks) == 1
                if error:
                    raise error
        except (ValueError, KeyboardInterrupt):
            assert error
        assert hooks_left(model) == 0
        assert not optimizer._optimizer_step_pre_hooks
        assert not optimizer._optimizer_step_post_hooks


def test_hooks_that_cannot_all_be_attached_are_all_taken_off(monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    model, limit = net(), sys.getrecursionlimit()
    monkeypatch.setattr(HookSet, "on_registration", fail)
    with pytest.raises(KeyboardInterrupt), hookscope.record(model, grads=True):
        pass
    assert hooks_left(model) == 0
    assert sys.getrecursionlimit() == limit


def test_before_and_after_see_and_change_arguments_and_output() -> None:
    model = Module(lambda self, x, *, scale: x * scale)
    seen: list[Any] = []

    def before(module: nn.Module, args: Any, kwargs: Any) -> Any:
        seen.append((module is model, args, kwargs))
        return (args[0] + 1,), {"scale": 3}

    def after(module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> Any:
        seen.append((module is model, args, kwargs, output.item()))
        return output * 10

    with HookSet(model) as hooks:
        hooks.before(model, before)
        hooks.after(model, after)
        found = model(torch.tensor(1.0), scale=2)
    assert found.item() == 60
    assert seen[0] == (True, (torch.tensor(1.0),), {"scale": 2})
    assert seen[1] == (True, (torch.tensor(2.0),), {"scale": 3}, 6.0)


def test_the_first_comes_before_those_that_are_there_and_always_after_a_failure() -> None:
    def fail(self: Module, x: Tensor) -> Tensor:
        raise ValueError("no")

    order: list[str] = []
    model = Module(fail)
    with HookSet(model) as hooks:
        hooks.before(model, lambda *a: order.append("a"))
        hooks.before(model, lambda *a: order.append("b"))
        hooks.before(model, lambda *a: order.append("first"), first=True)
        hooks.after(model, lambda *a: order.append("never"))
        hooks.after(model, lambda m, a, k, output: order.append(f"always {output}"), always=True)
        with pytest.raises(ValueError, match="no"):
            model(X)
    assert order == ["first", "a", "b", "always None"]


def test_compiled_modules_are_noticed() -> None:
    model = nn.Sequential(nn.Tanh())
    with HookSet(model) as hooks:
        assert not hooks.stands_in_for_compiled
    model[0].compile(backend="eager")
    with HookSet(model) as hooks:
        assert hooks.stands_in_for_compiled


def test_how_deep_hooks_are_in_one_another_is_known() -> None:
    depths = [hook_depth()]

    def inner(value: int, *, more: int) -> int:
        depths.append(hook_depth())
        return value + more

    def outer() -> int:
        depths.append(hook_depth())
        return int(as_hook(inner, 2, more=3))

    assert as_hook(outer) == 5
    with pytest.raises(ZeroDivisionError):
        as_hook(lambda: 1 // 0)
    depths.append(hook_depth())
    assert depths == [0, 1, 2, 0]


def test_a_backward_pass_is_noticed_from_inside() -> None:
    x = torch.ones(1, requires_grad=True)
    seen: list[bool] = []
    x.register_hook(lambda grad: seen.append(inside_backward()))
    (x * 2).sum().backward()
    assert [inside_backward(), *seen, inside_backward()] == [False, True, False]


@pytest.mark.parametrize(
    ("kind", "path", "name"),
    [
        ("output", (), "output"),
        ("output", ("1", "0"), "output.1.0"),
        ("input", ("0", "2"), "input.2"),
        ("input", ("1", "mask"), "input.mask"),
        ("input", ("0", "0", "a"), "input.0.a"),
    ],
)
def test_a_place_in_a_value_has_a_name(kind: str, path: tuple[str, ...], name: str) -> None:
    assert what_of(kind, path) == name


# Gates and lent clones.


def test_a_gate_shows_the_gradients_of_all_its_tensors_at_once() -> None:
    a, b = (torch.ones(2, requires_grad=True) for _ in range(2))
    whole, seen = torch.arange(3), []

    def function(grads: Any) -> Any:
        seen.append([None if grad is None else grad.tolist() for grad in grads])
        return tuple(None if grad is None else grad * 10 for grad in grads)

    value = insert_gradient_gate({"a": a, "n": whole, "both": [b, a]}, function)
    assert value["n"] is whole and value["a"] is value["both"][1]
    assert value["a"] is not a and torch.equal(value["a"], a)
    (value["a"].sum() + value["both"][1].sum() * 2).backward()
    assert seen == [[[3, 3], None, None]]
    assert a.grad is not None and a.grad.tolist() == [30, 30]
    assert b.grad is None or b.grad.tolist() == [0, 0]


def test_a_gate_needs_a_gradient_to_stand_in_the_way_of() -> None:
    x = torch.ones(2)
    assert insert_gradient_gate(x, lambda grads: grads) is x
    with torch.no_grad():
        y = torch.ones(2, requires_grad=True)
        assert insert_gradient_gate(y, lambda grads: grads) is y and not carries_gradient(y)
    assert carries_gradient(y) and not carries_gradient(x)
    inside: list[bool] = []

    def look(t: Tensor) -> Tensor:
        inside.append(carries_gradient(t))
        return (t * y).sum()

    torch.func.grad(look)(x)
    assert inside == [False]


def test_what_a_gate_hands_on_may_be_changed_in_place() -> None:
    x = torch.ones(2, requires_grad=True)
    y = insert_gradient_gate(x * 1, lambda grads: tuple(grad * 2 for grad in grads))
    y.mul_(5)
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [10, 10]


def test_the_way_back_knows_both_ends_of_a_call() -> None:
    seen: list[Any] = []

    def function(into: Any, out: Any) -> Any:
        seen.append(([g if g is None else g.tolist() for g in into], [g.tolist() for g in out]))
        return tuple(None if grad is None else grad * 2 for grad in into)

    arrived: list[Any] = []
    way = BackwardHookPair(function, arrived.append)
    x = torch.ones(2, requires_grad=True)
    (given,) = way.enter((x,))
    out = way.leave(given * 3)
    (out * 5).sum().backward()
    assert seen == [([[15, 15]], [[5, 5]])]
    assert [g.tolist() for g in arrived[0]] == [[5, 5]]
    assert x.grad is not None and x.grad.tolist() == [30, 30]


def test_the_way_back_ends_at_the_output_where_no_input_asks_for_a_gradient() -> None:
    seen: list[Any] = []

    def function(into: Any, out: Any) -> Any:
        seen.append((into, [g.tolist() for g in out]))
        return into

    way = BackwardHookPair(function)
    weight = torch.ones(2, requires_grad=True)
    x, y = torch.ones(2), torch.ones(2)
    assert way.enter((x, y, x)) == (x, y, x)
    way.leave(weight * x).sum().backward()
    assert seen == [((None, None), [[1, 1]])]
    assert weight.grad is not None and weight.grad.tolist() == [1, 1]


def test_a_change_in_place_behind_a_gate_reaches_the_caller() -> None:
    way = BackwardHookPair(lambda into, out: into)
    base = torch.ones(2, requires_grad=True)
    x = base * 1
    (given,) = way.enter((x,))
    assert given is not x
    given.mul_(3)
    assert x.tolist() == [1, 1]
    way.leave(given)
    assert x.tolist() == [3, 3]


LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "plain": lambda: torch.randn(3, 4),
    "transposed": lambda: torch.randn(4, 3).T,
    "gaps between rows": lambda: torch.randn(3, 8)[:, :4],
    "every other": lambda: torch.randn(6, 8)[::2, ::2],
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "one row": lambda: torch.randn(1, 8)[:, :4],
    "no dimension": lambda: torch.tensor(3.0),
    "empty": lambda: torch.empty(0, 4),
    "gaps, in double precision": lambda: torch.randn(3, 8, dtype=torch.float64)[:, :4],
    "from the middle": lambda: torch.randn(5, 6)[1:3, 2:4],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_lent_clone_lies_in_memory_as_the_tensor_does(layout: str) -> None:
    tensor = LAYOUTS[layout]()
    clone = clone_preserving_strides(tensor)
    assert clone.stride() == tensor.stride() and same_bits(clone, tensor)
    assert storage_id(clone) != storage_id(tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(1).expand(4),
        torch.ones(3, 1).expand(3, 4),
        torch.arange(6.0).as_strided((3, 3), (1, 1)),
        torch.arange(9.0).as_strided((2, 4), (3, 1)),
        torch.eye(3).to_sparse(),
    ],
)
def test_a_tensor_whose_entries_share_memory_is_cloned_plainly(tensor: Tensor) -> None:
    clone = clone_preserving_strides(tensor)
    dense = clone.to_dense() if clone.is_sparse else clone
    assert torch.equal(dense, tensor.to_dense() if tensor.is_sparse else tensor)
    if not clone.is_sparse:
        clone.add_(torch.arange(clone.numel()).reshape(clone.shape))  # each entry is its own
        assert torch.equal(clone, tensor + torch.arange(clone.numel()).reshape(clone.shape))


def lent(original: Tensor) -> InputClone:
    clone = original.detach().clone()
    return InputClone(original, clone, clone._version)


def test_only_a_clone_that_was_changed_is_given_back() -> None:
    x = torch.zeros(3)
    same, changed, reshaped = lent(x), lent(x), lent(x)
    version = x._version
    assert write_back(same) and not same.changed and x._version == version
    changed.clone.add_(2)
    assert changed.changed and write_back(changed) and x.tolist() == [2, 2, 2]
    reshaped.clone.unsqueeze_(0)
    assert not write_back(reshaped) and x.tolist() == [2, 2, 2]


def test_memory_in_common_is_that_of_two_tensors() -> None:
    x, y = torch.zeros(4), torch.zeros(4)
    assert shared_storages([x, y]) == set()
    assert shared_storages([x, x]) == set()
    assert shared_storages([x, x[1:], y]) == {storage_id(x)}
    assert shared_storages([x, x[1:], x[2:], y, y.view(2, 2)]) == {storage_id(x), storage_id(y)}
    sparse = torch.eye(2).to_sparse()
    assert storage_id(sparse) == id(sparse)
    assert storage_id(x.view(2, 2)) == storage_id(x) != storage_id(y)


# Wrapped modules.


def test_what_a_wrapped_module_returns_is_what_its_functions_made_of_it() -> None:
    inner = nn.Linear(2, 2)

    def before(module: nn.Module, input: tuple[Tensor, ...]) -> Any:
        return input[0] + 1

    def after(module: nn.Module, input: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return output * input[0].sum()

    wrapped = hookscope.wrap(inner, before=before, after=after)
    assert same_bits(wrapped(X), inner(X + 1) * (X + 1).sum())
    nothing = hookscope.wrap(inner, lambda m, i: None, lambda m, i, o: None, lambda m, i, o: None)
    assert same_bits(nothing(X), inner(X))
    as_tuple = hookscope.wrap(inner, before=lambda m, i: (i[0] * 2,))
    assert same_bits(as_tuple(X), inner(X * 2))


@pytest.mark.parametrize("place", ["before", "after", "backward"])
def test_what_has_another_shape_is_refused_where_it_is_returned(place: str) -> None:
    def shorter(module: nn.Module, value: Any, output: Any = None) -> Any:
        return (output if place == "after" else value[0])[:1]

    wrapped = hookscope.wrap(nn.Linear(2, 2), **{place: shorter})
    with pytest.raises(HookscopeError, match=r"shorter returned .*1x2.* in place of .*3x2"):
        wrapped(X.clone().requires_grad_()).sum().backward()


@pytest.mark.parametrize("place", ["before", "after", "backward"])
def test_what_is_no_function_cannot_be_wrapped_around_a_module(place: str) -> None:
    with pytest.raises(RequestError, match=f"{place} must be a function or None, not int"):
        hookscope.wrap(nn.Linear(2, 2), **{place: 3})


def test_a_forward_of_its_own_is_kept_inside() -> None:
    inner = nn.Linear(2, 2)
    inner.forward = lambda x: x * 3  # type: ignore[method-assign]
    wrapped = hookscope.wrap(inner, after=lambda m, i, o: o + 1)
    assert same_bits(wrapped(X), X * 3 + 1)
    wrapped.register_buffer("extra", torch.ones(1))
    assert "extra" not in inner._buffers and list(inner.state_dict()) == ["weight", "bias"]


def test_the_functions_around_a_module_get_the_module_itself() -> None:
    seen: list[Any] = []
    wrapped = hookscope.wrap(
        nn.Linear(2, 2),
        before=lambda module, input: seen.append((module, len(input))),
        after=lambda module, input, output: seen.append((module, len(input), output.shape)),
    )
    wrapped(X.clone().requires_grad_()).sum().backward()  # without a function for the way back
    assert seen == [(wrapped, 1), (wrapped, 1, (3, 2))]


def test_a_wrapped_module_of_any_class_goes_by_its_name_and_can_be_pickled() -> None:
    home = types.ModuleType("a_module_of_ones_own")
    made = type("Own", (nn.Linear,), {"__module__": home.__name__, "__doc__": "Its text."})
    home.Own = made  # type: ignore[attr-defined]
    sys.modules[home.__name__] = home
    try:
        wrapped = hookscope.wrap(made(2, 2), after=plus_one)
        kind = type(wrapped)
        assert (kind.__name__, kind.__qualname__) == ("Own", "Own")
        assert (kind.__module__, kind.__doc__) == (home.__name__, "Its text.")
        assert same_bits(pickle.loads(pickle.dumps(wrapped))(X), wrapped(X))
        assert same_bits(copy.deepcopy(wrapped)(X), wrapped(X))
    finally:
        del sys.modules[home.__name__]


def plus_one(module: nn.Module, input: Any, output: Tensor) -> Tensor:
    return output + 1


def test_a_hook_before_a_module_may_return_one_value_or_a_tuple() -> None:
    for value in (lambda x: x + 1, lambda x: (x + 1,)):
        shot = hookscope.capture(net(), input=X, layers="0", hooks=lambda module, input, v=value: v(
            input[0]), hook_kind="forward_pre")  # fmt: skip
        assert same_bits(shot["0/output"], net()[0](X + 1))


@pytest.mark.parametrize("kind", ["forward", "forward_pre", "backward", "backward_pre"])
def test_a_hook_gets_the_module_at_which_it_runs(kind: str) -> None:
    model, seen = net(), []

    def hook(module: nn.Module, *more: Any) -> None:
        seen.append(module)

    hookscope.grads(model, input=X, loss="sum", layers="1", hooks=hook, hook_kind=kind)
    assert seen and all(module is model[1] for module in seen)


def test_a_call_that_failed_leaves_the_gradients_of_the_next_one_alone() -> None:
    def forward(self: Module, x: Tensor) -> Tensor:
        if x.shape[0] == 1:
            raise ValueError("too short")
        return x * 3

    def forgiving(self: Module, x: Tensor) -> Tensor:
        y = self.first(x)
        with pytest.raises(ValueError, match="too short"):
            self.part(y[:1])
        return self.part(y)

    seen: list[Any] = []
    model = Module(forgiving, part=Module(forward), first=nn.Linear(2, 2))
    hookscope.grads(
        model, input=X, loss="sum", layers="part", hook_kind="backward",
        hooks=lambda module, into, out: seen.append((into[0].tolist(), out[0].tolist())),
    )  # fmt: skip
    assert seen == [([[3.0] * 2] * 3, [[1.0] * 2] * 3)]


def test_a_hook_of_a_step_runs_once_on_its_side_of_it() -> None:
    model, seen = net(), []

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        seen.append(("before", model[0].weight.detach().clone()))

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        seen.append(("after", model[0].weight.detach().clone()))

    kinds = ["step_pre", "step_post"]
    hookscope.step(model, input=X, target=1, hooks=[before, after], hook_kind=kinds)
    assert [name for name, _ in seen] == kinds_told(kinds)
    assert not torch.equal(seen[0][1], seen[1][1])

    def fail(optimizer: Any, args: Any, kwargs: Any) -> None:
        raise ValueError("no")

    for kind, side in zip(kinds, ("before", "after"), strict=True):
        with pytest.raises(HookError, match=f"{side} the optimizer's step: ValueError: no"):
            hookscope.step(net(), input=X, target=1, hooks=fail, hook_kind=kind)


def kinds_told(kinds: list[str]) -> list[str]:
    return ["before" if kind == "step_pre" else "after" for kind in kinds]


def test_a_call_within_a_call_that_failed_leaves_the_outer_ones_gradients_alone() -> None:
    def forward(self: Module, x: Tensor) -> Tensor:
        if x.shape[0] == 1:
            raise ValueError("too short")
        with pytest.raises(ValueError, match="too short"):
            self(x[:1])
        return x * 3

    seen: list[Any] = []
    part = Module(forward)
    model = Module(lambda self, x: self.part(self.first(x)), part=part, first=nn.Linear(2, 2))

    def look(module: nn.Module, into: Any, out: Any) -> None:
        seen.append((into[0].tolist(), out[0].tolist()))

    hookscope.grads(model, input=X, loss="sum", layers="part", hook_kind="backward", hooks=look)
    assert seen == [([[3.0] * 2] * 3, [[1.0] * 2] * 3)]
