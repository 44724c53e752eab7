"""Each rule about what can be asked for, once, and what a request remembers of the choices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hookscope
from hookscope.errors import HookscopeError
from hookscope.specs.command_options import (
    CamOptions,
    CaptureOptions,
    CheckOptions,
    GradcheckOptions,
    StepOptions,
)
from hookscope.specs.diff_request import DiffRequest
from hookscope.specs.extract_options import ExtractOptions
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


def request_of(command: str = "grads", **parts: Any) -> Request:
    return Request(command, parts.pop("model", ModelRequest("resnet18")), **parts)


REFUSED_BY_LIST: list[tuple[Callable[[], Any], str]] = [
    (lambda: ModelRequest("resnet18", weights="IMAGENET"), "no weights called 'IMAGENET'"),
    (lambda: ModelRequest("resnt18"), "There is no model called 'resnt18'.\nDid you mean resnet18"),
    (lambda: DiffRequest("resnet18", "resnt18"), "B: There is no model called 'resnt18'"),
]
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: ModelRequest(nn.Linear(1, 1), weights="default"), "only for a model given by name"),
    (lambda: ModelRequest(nn.Linear(1, 1), method="encode"), "only for a model given by name"),
    (lambda: ModelRequest("resnet18", weights="missing.pth"), "no weights file 'missing.pth'"),
    (lambda: ModelRequest("resnet18", attn="eager"), "--attn is only for models of transformers"),
    (lambda: ModelRequest("missing.py:Net"), "There is no file 'missing.py'"),
    (lambda: LayerSelection("a{b"), "has an unbalanced brace"),
    (lambda: LayerSelection(["fc", "!"]), "A layer pattern is empty"),
    (lambda: InputRequest(size=8), "--size is for images, and no image is given"),
    (lambda: InputRequest("zeros:1x3", mean=[0.5]), "--mean is for images"),
    (lambda: RunOptions(seed=-1), "-1 is not a valid seed"),
    (lambda: RunOptions(seed=2**63), "is not a valid seed"),
    (lambda: RunOptions(dtype="int8"), "'int8' is not a valid dtype"),
    (lambda: RunOptions(device="tpu"), "'tpu' is not a valid device"),
    (lambda: RunOptions(device="cuda:one"), "'cuda:one' is not a valid device"),
    (lambda: request_of(run=RunOptions(max_memory={"cpu": 1})), "--max-memory needs --device-map"),
    (
        lambda: request_of(run=RunOptions(device_map="wide")),
        "'wide' is not a valid value for --device-map",
    ),
    (
        lambda: request_of(run=RunOptions(device="cpu", device_map="auto")),
        "--device cpu uses one device",
    ),
    (
        lambda: request_of(model=ModelRequest(nn.Linear(1, 1)), run=RunOptions(device_map="auto")),
        "only for a model given by name, not for a module",
    ),
    (lambda: Interventions("fc"), "'fc' is not a valid edit"),
    (lambda: Interventions("fc=zeroes"), "no operation 'zeroes' for --edit"),
    (lambda: Interventions(grad_edits="input:fc=zero"), "names an input"),
    (lambda: Interventions(compare=True), "--compare compares with a run without edits"),
    (lambda: Interventions(hooks="missing.py:halve"), "There is no file 'missing.py'"),
    (lambda: Interventions(hooks=[halve, "halve"]), "'halve' does not name a function"),
    (lambda: Interventions(hooks="!fc=os:fspath"), "only excludes layers"),
    (lambda: Interventions(hooks={"a{b": "os:fspath"}), "has an unbalanced brace"),
    (
        lambda: request_of(interventions=Interventions(hook_kind="forward")),
        "--hook-kind is given without a hook",
    ),
    (
        lambda: request_of(interventions=Interventions(hook_args={"n": 1})),
        "--hook-arg is given without a hook",
    ),
    (
        lambda: request_of(
            "capture", interventions=Interventions(hooks=halve, hook_kind="backward")
        ),
        "needs a backward pass",
    ),
    (
        lambda: request_of(interventions=Interventions(hooks=[halve], hook_kind=["forward"] * 2)),
        "2 kinds are given for 1 hook",
    ),
    (
        lambda: request_of(
            interventions=Interventions(grad_edits="fc=zero"), loss=LossRequest(penalty="gp")
        ),
        "--penalty differentiates the gradients again",
    ),
    (lambda: LossRequest("crossentropy"), "There is no loss called 'crossentropy'"),
    (lambda: LossRequest("mise"), "Did you mean mse"),
    (lambda: LossRequest("missing.py:loss"), "There is no file 'missing.py'"),
    (lambda: LossRequest("sum", reduction="mean"), "takes no reduction"),
    (lambda: LossRequest(reduction="most"), "no reduction called 'most'"),
    (lambda: LossRequest(halve, raw=True), "--raw is only for the built-in losses"),
    (
        lambda: LossRequest("mine.py:loss", reduction="sum"),
        "--reduction is only for the built-in losses",
    ),
    (lambda: LossRequest(target="missing.npy"), "no target file 'missing.npy'"),
    (lambda: LossRequest(penalty="gpp"), "no penalty called 'gpp'"),
    (lambda: LossRequest(penalty="gp", reduction="mean"), "the score is summed over the batch"),
    (lambda: CamOptions(target="missing.npy"), "no target file 'missing.npy'"),
    (lambda: LossRequest("ce", forward_only=True), "--loss is for the backward pass"),
    (lambda: CaptureOptions(what="outputs"), "'outputs' cannot be recorded"),
    (lambda: CheckOptions(only="nans"), "no check called 'nans'"),
    (lambda: CheckOptions(dead=1.5), "it is a share"),
    (lambda: CheckOptions(ceiling=0), "ceiling cannot be 0"),
    (lambda: hookscope.ablate.checked(by="half"), "'half' is not one of zero, mean, noise."),
    (lambda: hookscope.ablate(by=None), "by: None is not one of zero, mean, noise."),
    (lambda: hookscope.similar("x", every=None), "every: None is not a valid integer."),
    (lambda: hookscope.similar("x", every="x"), "every: 'x' is not a valid integer."),
    (lambda: hookscope.capture(model_args=["k=1", {}]), "is not a valid dict."),
    (
        lambda: hookscope.capture(mean=[0.5, None]),
        "mean: [0.5, None] is not a valid list of numbers.",
    ),
    (lambda: hookscope.capture(layers=5), "layers: 5 is not a valid text."),
    (lambda: hookscope.cam(by=["gradcam"]), "by: ['gradcam'] is not one of"),
    (lambda: hookscope.capture(shape={1, 2}), "shape: {1, 2} is not a valid shape."),
    (lambda: hookscope.load_model(nn.Linear(1, 1)), "of type Linear is not the spec of a model"),
    (lambda: hookscope.load_model("resnet18", seed="x"), "seed: 'x' is not a valid integer."),
    (lambda: hookscope.capture(edits=3), "edits: 3 is not a valid text."),
    (lambda: hookscope.capture(verify="no"), "verify: 'no' is not a valid boolean."),
    (lambda: hookscope.capture(model_args=3), "model_args: 3 is not a valid dict."),
    (lambda: hookscope.capture(stop=True, verify=True), "Leave out stop or verify."),
    (lambda: hookscope.capture(chat=True), 'Add input="text:WORDS".'),
    (lambda: hookscope.cam.checked(by="gradcams"), "gradcams"),
    (lambda: GradcheckOptions(eps=0), "eps must be above 0"),
    (lambda: hookscope.step.checked(optimizer="sdg"), "Did you mean sgd"),
    (lambda: StepOptions(lr=float("nan")), "nan is not a valid learning rate"),
    (lambda: StepOptions(lr=1, opt_args={"lr": 2}), "The learning rate is given twice"),
    (lambda: DiffRequest("resnet18", "resnet18", atol=-1), "--atol -1 is not a valid tolerance"),
    (lambda: DiffRequest("resnet18", FIVE), "diff compares two of the same kind"),
    (lambda: hookscope.diff.checked(FIVE, FIVE, seed=3), "--seed is for models, and A and B are"),
    (lambda: hookscope.diff(FIVE, FIVE, model_args={"a": 1}), "model_args is for models"),
    (lambda: DiffRequest("resnet18", "resnet18", size=8), "--size is for images"),
    (lambda: DiffRequest("resnet18", "resnet18", dtype=("float32",) * 3), "is given 3 times"),
    (lambda: DiffRequest(FIVE, FIVE, what="outputs"), "'outputs' cannot be recorded"),
    (lambda: DiffRequest(FIVE, FIVE, layers="a{b"), "has an unbalanced brace"),
    (lambda: hookscope.extract.checked(batch=0), "0 is not in the range x>=1."),
    (lambda: hookscope.extract.checked(decode="slow"), "'slow' is not one of exact, fast."),
    (lambda: ExtractOptions(memory=0), "memory must be at least 1, not 0"),
    (lambda: ExtractOptions(reduce="middle"), "middle"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=[text for _, text in REFUSED])
def test_what_cannot_be_run_is_refused_when_it_is_asked_for(make, message: str) -> None:
    with pytest.raises(HookscopeError) as caught:
        make()
    assert message in str(caught.value)


@needs_list
@pytest.mark.parametrize(("make", "message"), REFUSED_BY_LIST)
def test_an_unknown_name_is_refused_when_it_is_asked_for(make, message: str) -> None:
    with pytest.raises(HookscopeError) as caught:
        make()
    assert message in str(caught.value)
    assert caught.value.exit_code == 2


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
    request = request_of(
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
    assert request_of(loss=LossRequest()).chosen() == {}
