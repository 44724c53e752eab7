"""Hooks of the user's own: words, kinds and layers, and what they emit; sets of hooks."""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope.errors import HookError, LayerError, RequestError
from hookscope.hooks.hook_set import HookSet
from hookscope.hooks.layers import select
from hookscope.hooks.user_hooks import bind_user_hooks, describe_hooks, load_user_hooks
from hookscope.specs.choices import HOOK_KINDS, HOOK_KINDS_OF
from hookscope.specs.intervention_spec import parse_hook, resolve_hook_kinds
from tests.hooks.recordings import hooks_left
from tests.oracle.by_hand import same_bits
from tests.zoo import Module

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


@pytest.mark.parametrize("glob", ["", "!", "!0"])
def test_a_glob_says_where_a_hook_goes(file: str, glob: str) -> None:
    word = f"{glob}={file}:look"
    with pytest.raises(RequestError, match=re.escape(repr(word))):
        parse_hook(word)


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


@pytest.mark.parametrize("kind", HOOK_KINDS)
@pytest.mark.parametrize("verb", HOOK_KINDS_OF)
def test_a_verb_runs_the_hooks_that_it_has_a_pass_for(verb: str, kind: str) -> None:
    if kind in HOOK_KINDS_OF[verb]:
        assert resolve_hook_kinds([kind], 1, verb=verb) == [kind]
        return
    needs = "step" if kind.startswith("step") else "backward pass"
    with pytest.raises(RequestError, match=f"{kind!r}.* {needs}.* {verb} ") as caught:
        resolve_hook_kinds([kind], 1, verb=verb)
    others = [name for name in HOOK_KINDS_OF if kind in HOOK_KINDS_OF[name]]
    assert " or ".join(others) in caught.value.hint


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
    with pytest.raises(RequestError, match="'fctor'") as caught:
        load_user_hooks(words, [], {"fctor": 1}, verb="capture")
    assert "factor" in caught.value.hint


def test_a_hook_of_a_step_has_no_layer(file: str) -> None:
    with pytest.raises(RequestError, match="'0'"):
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
    with pytest.raises(LayerError, match=r"spec.*'7'"):
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


def emitting(name: str, value: Any = 1) -> hookscope.Capture:
    def hook(module: nn.Module, input: Any, output: Tensor) -> None:
        hookscope.emit(name, value)

    return hookscope.capture(net(), input=X, layers="1", hooks=hook)


MISLEADING = ["", "a/b", "output", "output.1", "input.mask", "weight.grad", "weight.update"]


@pytest.mark.parametrize("name", MISLEADING)
def test_names_that_would_mislead_are_refused(name: str) -> None:
    with pytest.raises(HookError, match=re.escape(repr(name))):
        emitting(name)


@pytest.mark.parametrize("name", ["outputs", "my.output", "grad", "weight.gradient"])
def test_names_that_only_resemble_are_allowed(name: str) -> None:
    assert f"1/{name}" in emitting(name)


def test_what_is_no_number_cannot_be_emitted() -> None:
    with pytest.raises(HookError, match=r"str .*'seen'"):
        emitting("seen", "text")


def test_how_often_each_hook_ran_is_told(caplog: pytest.LogCaptureFixture) -> None:
    def look(module: nn.Module, input: Any, output: Tensor) -> None:
        pass

    model = Module(lambda self, x: self.a(self.a(x)), a=nn.Tanh(), b=nn.Tanh())
    with caplog.at_level(logging.INFO, "hookscope"):
        hookscope.capture(model, input=X, hooks={"[ab]": look, "b": look, ".": look})
    told = [r for r in caplog.records if "hook" in r.getMessage()]
    numbers = [re.findall(r"\d+(?: \w+)?|never", r.getMessage().split(")")[-1]) for r in told]
    assert numbers[1] == ["never", "1 layers"]
    assert [n[0] for n in (numbers[0], numbers[2])] == ["2 times", "1 time"]
    assert [n[-1] for n in (numbers[0], numbers[2])] == ["2 layers", "1 layer"]
    assert all(look.__qualname__ in r.getMessage() for r in told)
    assert [r.levelname for r in told] == ["INFO", "WARNING", "INFO"]


def test_the_call_in_which_a_hook_failed_is_counted() -> None:
    calls: list[int] = []

    def hook(module: nn.Module, input: Any, output: Tensor) -> None:
        calls.append(1)
        if len(calls) == 3:
            sys.exit(3)

    model = Module(lambda self, x: self.a(self.a(self.a(x))), a=nn.Tanh())
    with pytest.raises(HookError, match=r"a \(Tanh, call 3\): SystemExit: 3"):
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


@pytest.mark.parametrize("within", [False, True])
def test_a_call_that_failed_leaves_the_gradients_of_others_alone(within: bool) -> None:
    def forward(self: Module, x: Tensor) -> Tensor:
        if x.shape[0] == 1:
            raise ValueError("too short")
        if within:
            with pytest.raises(ValueError, match="too short"):
                self(x[:1])
        return x * 3

    def forgiving(self: Module, x: Tensor) -> Tensor:
        y = self.first(x)
        if not within:
            with pytest.raises(ValueError, match="too short"):
                self.part(y[:1])
        return self.part(y)

    def look(module: nn.Module, into: Any, out: Any) -> None:
        seen.append((into[0].tolist(), out[0].tolist()))

    seen: list[Any] = []
    model = Module(forgiving, part=Module(forward), first=nn.Linear(2, 2))
    hookscope.grads(model, input=X, loss="sum", layers="part", hook_kind="backward", hooks=look)
    assert seen == [([[3.0] * 2] * 3, [[1.0] * 2] * 3)]


def test_hooks_that_cannot_all_be_attached_are_all_taken_off(monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    model, limit = net(), sys.getrecursionlimit()
    monkeypatch.setattr(HookSet, "on_registration", fail)
    with pytest.raises(KeyboardInterrupt), hookscope.record(model, grads=True):
        pass
    assert hooks_left(model) == 0
    assert sys.getrecursionlimit() == limit
