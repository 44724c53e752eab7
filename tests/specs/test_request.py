"""Each rule about what can be asked for, once, and what a request remembers of the choices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hookscope
from hookscope.errors import HookscopeError
from hookscope.specs.command_options import CaptureOptions, CheckOptions
from hookscope.specs.diff_request import DiffRequest
from hookscope.specs.intervention_spec import Interventions
from hookscope.specs.request import (
    InputRequest,
    LayerSelection,
    LossRequest,
    ModelRequest,
    Request,
)
from hookscope.specs.run_options import RunOptions
from tests.conftest import needs_list

FIVE = str(Path(__file__).resolve().parents[2] / "sample_models" / "five.safetensors")


def halve(module: nn.Module, args: Any, output: Any) -> Any:
    return output / 2


def refusal(function: Any, *subjects: Any, **options: Any) -> str:
    with pytest.raises(HookscopeError) as caught:
        getattr(function, "checked", function)(*subjects, **options)
    assert caught.value.exit_code == 2
    return str(caught.value)


VALUES: dict[str, list[Any]] = {
    "layers": ["a{b", 5],
    "weights": ["missing.pth"],
    "model_args": [3, ["k=1", {}]],
    "attn": ["eager"],
    "shape": [{1, 2}],
    "mean": [[0.5, None]],
    "seed": [-1, 2**63, "x"],
    "dtype": ["int8"],
    "device": ["tpu", "cuda:one"],
    "device_map": ["wide"],
    "edits": ["fc", "fc=zeroes", 3],
    "grad_edits": ["input:fc=zero"],
    "hooks": ["halve", "!fc=os:fspath"],
    "loss": ["crossentropy", "mise"],
    "reduction": ["most"],
    "target": ["missing.npy"],
    "penalty": ["gpp"],
    "what": ["outputs"],
}
VALUES_OF: dict[Any, dict[str, list[Any]]] = {
    hookscope.grads: VALUES,
    hookscope.capture: {"what": ["outputs"], "verify": ["no"]},
    hookscope.check: {"only": ["nans"], "dead": [1.5], "ceiling": [0]},
    hookscope.cam: {"by": ["gradcams", ["gradcam"]], "target": ["missing.npy"]},
    hookscope.ablate: {"by": ["half", None]},
    hookscope.gradcheck: {"eps": [0]},
    hookscope.step: {"optimizer": ["sdg"], "lr": [float("nan")]},
    hookscope.extract: {"batch": [0], "decode": ["slow"], "memory": [0], "reduce": ["middle"]},
    hookscope.similar: {"every": [None, "x"]},
    RunOptions: {"dtype": ["int8"], "device": ["tpu", "cuda:one"]},
    LossRequest: {"loss": ["crossentropy"], "reduction": ["most"], "penalty": ["gpp"]},
    CaptureOptions: {"what": ["outputs"]},
    CheckOptions: {"only": ["nans"]},
}
LAYER = nn.Linear(1, 1)
TWICE, FILES = ("resnet18", "resnet18"), (FIVE, FIVE)
TOGETHER: list[tuple[Any, Any, dict[str, Any], str]] = [
    (hookscope.capture, LAYER, {"weights": "default"}, "weights"),
    (hookscope.capture, LAYER, {"method": "encode"}, "method"),
    (hookscope.capture, LAYER, {"device_map": "auto"}, "module"),
    (hookscope.tree, "missing.py:Net", {}, "missing.py"),
    (hookscope.grads, "resnet18", {"hooks": "missing.py:halve"}, "missing.py"),
    (hookscope.grads, "resnet18", {"hooks": {"a{b": "os:fspath"}}, "'a{b'"),
    (hookscope.grads, "resnet18", {"loss": "missing.py:loss"}, "missing.py"),
    (hookscope.grads, "resnet18", {"size": 8}, "--size"),
    (hookscope.grads, "resnet18", {"input": "zeros:1x3", "mean": [0.5]}, "--mean"),
    (hookscope.grads, "resnet18", {"max_memory": {"cpu": 1}}, "--device-map"),
    (hookscope.grads, "resnet18", {"device": "cpu", "device_map": "auto"}, "--device cpu"),
    (hookscope.grads, "resnet18", {"hook_kind": "forward"}, "--hook-kind"),
    (hookscope.grads, "resnet18", {"hook_args": {"n": 1}}, "--hook-arg"),
    (hookscope.grads, "resnet18", {"hooks": [halve, "halve"]}, "'halve'"),
    (hookscope.grads, "resnet18", {"hooks": [halve], "hook_kind": ["forward"] * 2}, "1 hook"),
    (hookscope.grads, "resnet18", {"grad_edits": "fc=zero", "penalty": "gp"}, "--penalty"),
    (hookscope.grads, "resnet18", {"penalty": "gp", "reduction": "mean"}, "--penalty"),
    (hookscope.grads, "resnet18", {"loss": "sum", "reduction": "mean"}, "reduction"),
    (hookscope.grads, "resnet18", {"loss": halve, "raw": True}, "--raw"),
    (hookscope.grads, "resnet18", {"loss": "mine.py:loss", "reduction": "sum"}, "--reduction"),
    (hookscope.check, "resnet18", {"loss": "ce", "forward_only": True}, "--forward-only"),
    (hookscope.capture, "resnet18", {"hooks": halve, "hook_kind": "backward"}, "backward"),
    (hookscope.capture, "resnet18", {"compare": True}, "--compare"),
    (hookscope.capture, "resnet18", {"stop": True, "verify": True}, "--verify"),
    (hookscope.capture, "resnet18", {"chat": True}, "--chat"),
    (hookscope.step, "resnet18", {"lr": 1, "opt_args": {"lr": 2}}, "--opt-arg lr"),
    (hookscope.diff, TWICE, {"atol": -1}, "--atol -1"),
    (hookscope.diff, TWICE, {"size": 8}, "--size"),
    (hookscope.diff, TWICE, {"dtype": ("float32",) * 3}, "--dtype"),
    (hookscope.diff, ("resnet18", FIVE), {}, FIVE),
    (hookscope.diff, FILES, {"seed": 3}, "--seed"),
    (hookscope.diff, FILES, {"model_args": {"a": 1}}, "--model-arg"),
    (hookscope.diff, FILES, {"what": "outputs"}, "'outputs'"),
    (hookscope.diff, FILES, {"layers": "a{b"}, "'a{b'"),
]


@pytest.mark.parametrize("function", VALUES_OF, ids=lambda function: function.__name__)
def test_a_wrong_value_is_refused_when_it_is_asked_for(function) -> None:
    subjects = () if isinstance(function, type) else ("resnet18",)
    for name, values in VALUES_OF[function].items():
        for value in values:
            said = refusal(function, *subjects, **{name: value})
            assert f"Invalid value for {name}" in said or str(value) in said or name in said, said


@pytest.mark.parametrize(("function", "subject", "options", "named"), TOGETHER)
def test_options_that_do_not_go_together_are_refused_when_they_are_asked_for(
    function, subject, options, named: str
) -> None:
    subjects = subject if isinstance(subject, tuple) else (subject,)
    assert named in refusal(function, *subjects, **options)


@needs_list
def test_an_unknown_name_is_refused_when_it_is_asked_for() -> None:
    assert "'IMAGENET'" in refusal(ModelRequest, "resnet18", weights="IMAGENET")
    assert "Did you mean resnet18" in refusal(ModelRequest, "resnt18")
    assert refusal(DiffRequest, "resnet18", "resnt18").startswith("B: ")


def test_a_module_is_no_spec() -> None:
    with pytest.raises(HookscopeError, match="Linear"):
        hookscope.load_model(LAYER)


def test_what_is_parsed_stays_parsed() -> None:
    changes = Interventions(["conv1[3]=scale:2"])
    assert changes.value_edits is changes.value_edits
    assert [edit.channels for edit in changes.value_edits] == [(3,)]


def test_a_generator_is_read_once() -> None:
    assert CaptureOptions(what=(name for name in ["input"])).kinds == {"input"}
    assert CheckOptions(only=(name for name in ["nan"])).names == ("nan",)


def test_choices_for_images_look_into_no_file(tmp_path: Path) -> None:
    (tmp_path / "empty.png").touch()
    assert InputRequest([str(tmp_path)], size=8).size == 8
    assert InputRequest(str(tmp_path / "missing"), size=8).size == 8


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1", "mps", "auto", torch.device("cuda:0")])
def test_a_device_that_may_exist_is_taken(device: Any) -> None:
    assert RunOptions(device=device).device == device


def test_both_runs_of_a_comparison_are_made_with_it() -> None:
    request = DiffRequest("resnet18", "alexnet", dtype=("float32", "float64"), shape=(1, 3, 64, 64))
    a, b = request.requests
    assert (a.model.model, b.model.model) == ("resnet18", "alexnet")
    assert (a.run.dtype, b.run.dtype) == ("float32", "float64")
    assert a.input == b.input == InputRequest(shape=(1, 3, 64, 64))


def test_a_lone_text_need_not_stand_in_a_list() -> None:
    assert LayerSelection("fc", Path("Linear")) == LayerSelection(["fc"], ["Linear"])
    assert Interventions("fc=zero") == Interventions(["fc=zero"])


def test_choices_are_remembered_and_defaults_are_not() -> None:
    request = Request(
        "grads",
        ModelRequest("resnet18"),
        layers=LayerSelection("fc"),
        input=InputRequest("zeros:1x3x8x8"),
        run=RunOptions(seed=3),
        interventions=Interventions(hooks=halve),
        loss=LossRequest("kl"),
    )
    assert request.chosen(CaptureOptions(verify=True)) == {
        "layers": ["fc"],
        "seed": 3,
        "hooks": {"python object": "function"},
        "loss": "kl",
        "verify": True,
    }
    assert Request("grads", ModelRequest("resnet18"), loss=LossRequest()).chosen() == {}
