"""The models that a program calls: their names, the calls that are chosen, and what is said."""

from __future__ import annotations

import gc
import math
import multiprocessing
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hookscope
from hookscope.errors import RequestError
from hookscope.hooks.capture import Capture
from hookscope.results.health import Health
from hookscope.results.trace import Trace
from hookscope.specs.intervention_spec import Interventions
from hookscope.specs.program_options import ProgramOptions, read_calls
from hookscope.training.called_models import ProgramStopped
from hookscope.training.followed_models import FollowedModels
from hookscope.training.model_capture import ModelCapture
from tests.zoo import Module


@contextmanager
def following(
    options: ProgramOptions, layers: Sequence[str] = (), interventions: Interventions | None = None
) -> Iterator[FollowedModels]:
    """Follow the models that the block calls; afterwards nothing of it is left."""
    call = nn.Module.__call__
    followed = FollowedModels(options, layers, interventions or Interventions())
    followed.start()
    try:
        yield followed
    finally:
        followed.end()
        assert nn.Module.__call__ is call


def recorded(
    program: Callable[[], Any],
    layers: Sequence[str] = (),
    interventions: Interventions | None = None,
    **options: Any,
) -> tuple[Capture, list[str]]:
    """Record a program; return the capture and what is said at its end."""
    options = {"capture": True, **options}
    with following(ProgramOptions(**options), layers, interventions) as followed:
        program()
    result = followed.result("test")
    assert isinstance(result, Capture)
    return result, followed.unmet()


def test_names_are_those_of_variables_attributes_and_entries() -> None:
    class Pipeline:
        def __init__(self) -> None:
            self.unet = nn.Linear(2, 2)
            self.parts = {"vae": nn.Linear(2, 2)}
            self._hidden = nn.Linear(2, 2)

        def __call__(self, x: Tensor) -> Tensor:
            return self._hidden(self.parts["vae"](self.unet(x)))

    net, nets, pipe, x = nn.Linear(2, 2), [nn.Linear(2, 2)], Pipeline(), torch.ones(1, 2)
    with following(ProgramOptions(list=True)) as followed:
        net(x)
        nets[0](x)
        pipe(x)
        nn.Linear(2, 2)(x)
    names = [model.name for model in followed.called.result("test").models]
    assert names == ["net", "nets.0", "unet", "vae", "Linear", "Linear2"]


def test_two_models_of_one_name_are_numbered_and_a_replaced_one_is_another() -> None:
    def call(model: nn.Module) -> None:
        model(torch.ones(1, 2))

    with following(ProgramOptions(list=True)) as followed:
        for _ in range(2):
            call(nn.Sequential(nn.Linear(2, 2)))
    assert [m.name for m in followed.called.models] == ["model", "model2"]
    assert [m.calls for m in followed.called.models] == [1, 1]
    assert all(m.outer is None for m in followed.called.models)  # nothing keeps them


def test_chosen_calls_are_recorded_under_the_numbers_of_their_layers() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True))
    inputs = [torch.randn(1, 2) for _ in range(6)]
    expected = [net[0](x).clone() for x in inputs]

    def program() -> None:
        for x in inputs:
            net(x)

    for calls, numbers in (("2,4-5", [2, 4, 5]), ("last", [6]), ("1,last", [1, 6])):
        capture, _ = recorded(program, ["net.0"], calls=read_calls(calls))
        keys = [f"net.0{f':{n}' if n > 1 else ''}/output" for n in numbers]
        assert list(capture) == keys
        for key, number in zip(keys, numbers, strict=True):
            assert capture[key].equal(expected[number - 1])
    capture, _ = recorded(program, ["0"], every=4)
    assert list(capture) == ["net.0/output", "net.0:5/output"]


def test_the_last_call_leaves_nothing_of_the_earlier_ones() -> None:
    net = nn.Linear(2, 2)
    with following(ProgramOptions(capture=True, calls=read_calls("2,last"))) as followed:
        for _ in range(50):
            net(torch.ones(1, 2))
        hooked = followed._hooked
        assert isinstance(hooked, ModelCapture)
        sink = hooked.models["net"].sink
        assert len(sink.kept) == len(sink._root_calls) == 2
    result = followed.result("test")
    assert isinstance(result, Capture)
    assert list(result) == ["net:2/output", "net:50/output"]


@pytest.mark.parametrize(
    "kinds",
    [
        ["output", "input", "output.grad", "param.grad"],
        *(["output"], ["input"], ["output.grad"], ["param.grad"]),
    ],
    ids=",".join,
)
def test_inputs_and_gradients_are_those_of_autograd(kinds: list[str]) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    x = torch.randn(2, 3)
    before = net[0](x)
    hidden = net[1](before)
    inner, gradient, weight, bias = torch.autograd.grad(
        net[2](hidden).sum(), [before, hidden, net[0].weight, net[0].bias]
    )
    expected = {
        "output": {"net.0/output": before, "net.1/output": hidden},
        "input": {"net.0/input.0": x, "net.1/input.0": before},
        "output.grad": {"net.0/output.grad": inner, "net.1/output.grad": gradient},
        "param.grad": {"net.0/weight.grad": weight, "net.0/bias.grad": bias},
    }
    capture, _ = recorded(lambda: net(x).sum().backward(), ["net.0", "net.1"], what=kinds)
    assert {*capture} == {key for kind in kinds for key in expected[kind]}
    for kind in kinds:
        assert all(capture[key].equal(value) for key, value in expected[kind].items())


@pytest.mark.parametrize("mode", ["capture", "check", "trace"])
def test_an_edit_changes_the_program_and_one_that_does_not_fit_ends_it(mode: str) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    edits = Interventions(edits=["net.0=zero"])
    with following(ProgramOptions(**{mode: True}), ["net.0"], edits) as followed:
        changed = net(torch.ones(1, 2))
    assert changed.equal(net[1](torch.zeros(1, 2)))
    result = followed.result("test")
    if isinstance(result, Capture):
        assert result["net.0/output"].eq(0).all()
    with pytest.raises(ProgramStopped) as stopped:
        recorded(lambda: net(torch.ones(1, 2)), (), Interventions(edits=["net.0[9]=zero"]))
    assert stopped.value.code == 2


def test_the_program_ends_after_the_last_call_that_is_asked_for() -> None:
    net, done = nn.Linear(2, 2), []
    with (
        pytest.raises(ProgramStopped) as stopped,
        following(ProgramOptions(capture=True, stop_after=2)),
    ):
        for number in range(5):
            net(torch.ones(1, 2))
            done.append(number)
    assert stopped.value.code == 0 and done == [0]


def test_what_did_not_come_is_said() -> None:
    net, x = nn.Sequential(nn.Linear(2, 2)), torch.ones(1, 2)
    _, said = recorded(lambda: net(x), ["net.1", "ne.0"], calls=read_calls("1,3"))
    for sentence, words in zip(said, ("'net.1' net.0", "'ne.0' net.0", "net 1 3"), strict=True):
        assert all(word in sentence for word in words.split())
    [said] = recorded(lambda: None)[1]
    assert "no model" in said
    capture, [said] = recorded(lambda: [net(x) for _ in range(9)], ["0"], max_bytes=40)
    assert len(capture) == 5 and "net.0" in said and "--max-bytes is 40" in said


def test_a_forward_that_is_called_itself_is_named() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with following(ProgramOptions(list=True)) as followed:
        net.forward(torch.ones(1, 2))
    result = followed.called.result("test")
    assert not result.models and [one.what for one in result.unseen] == ["net (Sequential)"]


def test_a_checkpoint_and_a_failed_call_leave_the_models_as_they_are() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    x = torch.ones(1, 2, requires_grad=True)

    def program() -> None:
        output = torch.utils.checkpoint.checkpoint(net, x, use_reentrant=False)
        output.sum().backward()
        with pytest.raises(RuntimeError) as failed:
            net(torch.ones(1, 3))
        files = [entry.path for entry in failed.traceback]
        assert not any("hookscope" in str(path) and "tests" not in str(path) for path in files)

    with following(ProgramOptions(list=True)) as followed:
        program()
    assert [(m.name, m.calls) for m in followed.called.models] == [("net", 2)]


def test_a_check_finds_the_first_nan_and_units_that_are_dead_in_all_calls() -> None:
    net = nn.Sequential(nn.Linear(4, 32), nn.ReLU())
    log = nn.Sequential(nn.Linear(1, 1))
    with torch.no_grad():
        net[0].weight[:] = torch.randn(32, 4)
        net[0].bias[:20] = -1e3
        log[0].weight.fill_(math.nan)
    with following(ProgramOptions(check=True)) as followed, torch.no_grad():
        for _ in range(3):
            net(torch.randn(16, 4))
        log(torch.ones(1, 1))
    result = followed.result("test")
    assert isinstance(result, Health)
    found = {(finding.check, finding.layer) for finding in result.findings}
    assert ("dead", "net.1") in found and ("nan", "log.0") in found


@pytest.mark.parametrize("layers", [["net"], ["net", "net.blocks"]])
def test_own_times_in_a_program_are_without_layers_that_are_not_listed(layers: list[str]) -> None:
    blocks = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))
    net = Module(lambda self, x: self.blocks[1](self.blocks[0](x)), blocks=blocks)
    with following(ProgramOptions(trace=True), layers) as followed:
        net(torch.ones(1, 2))
    result = followed.result("test")
    assert isinstance(result, Trace)
    whole, *inside = result.events
    assert [event.module for event in inside] == ["net.blocks.0", "net.blocks.1"][
        : 2 * len(layers) - 2
    ]
    assert whole.own < whole.time
    if inside:
        assert whole.own == pytest.approx(whole.time - sum(event.time for event in inside))


def test_record_without_a_model_records_what_the_block_calls() -> None:
    encoder, decoder = nn.Linear(2, 3), nn.Linear(3, 1)
    with hookscope.record(layers=["encoder", "decoder"], grads=True) as shot:
        decoder(encoder(torch.ones(1, 2))).sum().backward()
    assert shot["encoder/output.grad"].equal(decoder.weight)
    refused = pytest.raises(hookscope.HookscopeError, match="encoder")
    with refused, hookscope.record(layers="encodr"):
        encoder(torch.ones(1, 2))
    assert not encoder._forward_hooks and not encoder._forward_pre_hooks


def test_a_dict_of_locals_stays_as_it_was_when_a_block_is_recorded() -> None:
    def main(lr: int = 1) -> dict[str, Any]:
        config = locals()
        net = nn.Linear(2, 2)
        with hookscope.record() as shot:
            net(torch.ones(1, 2))
        assert list(shot) == ["net/output"]
        return config

    assert main() == {"lr": 1}


def test_an_object_that_runs_code_when_it_is_asked_is_not_asked() -> None:
    class Lazy:
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(f"asked for {name}")

    lazy, nets = Lazy(), [nn.Linear(2, 2)]
    with following(ProgramOptions(list=True)) as followed:
        nets[0](torch.ones(1, 2))
    assert lazy is not None and [model.name for model in followed.called.models] == ["nets.0"]


KINDS = ["output", "input", "output.grad", "input.grad", "param.grad"]
MODES = {
    "list": ({"list": True}, {}),
    "capture": ({"capture": True}, {}),
    "gradients": ({"capture": True, "what": KINDS}, {}),
    "operators": ({"capture": True, "ops": True, "attention": True}, {}),
    "check": ({"check": True}, {}),
    "trace": ({"trace": True}, {}),
    "edits": ({}, {"edits": ["*.0=zero"], "grad_edits": ["*.2=zero"]}),
    "weights": ({"capture": True}, {"edits": ["2=quantize-weights:4"]}),
    "hooks": ({"capture": True}, {"hooks": lambda module, args, output: None}),
}


@pytest.mark.parametrize("mode", MODES)
def test_a_model_is_gone_as_soon_as_the_program_drops_it(mode: str) -> None:
    options, changes = MODES[mode]
    left: list[weakref.ref[object]] = []

    def request() -> None:
        net = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU()), nn.Linear(2, 2))
        left.extend(map(weakref.ref, [*net.modules(), *net.parameters()]))
        net(torch.ones(1, 2, requires_grad=True)).sum().backward()

    gc.disable()  # nothing may wait for it
    try:
        with following(ProgramOptions(**options), (), Interventions(**changes)) as followed:
            for _ in range(3):
                request()
                assert [one() for one in left if one() is not None] == []
    finally:
        gc.enable()
    assert [model.calls for model in followed.called.models] == [1, 1, 1]


def test_what_is_known_of_a_deleted_model_is_that_of_its_calls() -> None:
    def program(*, keeps: bool) -> nn.Module | None:
        torch.manual_seed(0)
        layers, log = nn.ModuleList([nn.Linear(2, 2)]), nn.Linear(2, 2)
        nn.init.constant_(log.weight, math.nan)
        net = Module(lambda self, x: self.layers[0](x), layers=layers, log=log)
        net(torch.ones(1, 2))
        return net if keeps else None

    results = []
    for keeps in (True, False):
        kept = []
        capture, said = recorded(lambda: kept.append(program(keeps=keeps)))  # noqa: B023
        with following(ProgramOptions(check=True)) as followed:
            kept.append(program(keeps=keeps))
        health = followed.result("test")
        assert isinstance(health, Health)
        with following(ProgramOptions(trace=True), ["net.layers"]) as followed:
            kept.append(program(keeps=keeps))
        trace = followed.result("test")
        assert isinstance(trace, Trace)
        calls = [(event.module, event.depth, event.call) for event in trace.events]
        assert calls == [("net.layers.0", 0, 1)]  # a list is never called
        results.append((capture.coverage, dict(capture), said, health.findings, calls))
    (coverage, tensors, *others), (same, same_tensors, *same_others) = results
    assert same == coverage and same_others == others
    assert any("container" in layer.reason for layer in coverage.not_executed)
    assert any(finding.check == "nan" for finding in results[0][3])
    assert tensors.keys() == same_tensors.keys()
    assert all(tensors[key].equal(same_tensors[key]) for key in tensors)


def test_processes_are_noted_by_what_they_run() -> None:
    with following(ProgramOptions(list=True)) as followed:
        context = multiprocessing.get_context("fork")
        for target in (print, [].append):  # a method of a built-in type has no module
            process = context.Process(target=target, args=("",))
            process.start()
            process.join()
        loader = torch.utils.data.DataLoader([1, 2], num_workers=1, multiprocessing_context="fork")
        assert len(list(loader)) == 2
    assert len(followed.called.unseen) == 2


def test_an_error_of_hookscope_that_the_program_itself_raises_stays_its_own() -> None:
    def fail(self: Module, x: Tensor) -> Tensor:
        raise RequestError("of the program")

    net = Module(fail)
    with following(ProgramOptions(capture=True)), pytest.raises(RequestError, match="of the prog"):
        net(torch.ones(1))
