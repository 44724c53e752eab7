"""What cannot be asked of an ONNX file, whose whole graph onnxruntime computes at once."""

from __future__ import annotations

from typing import Any

from hookscope.errors import RequestError
from hookscope.specs.cam_methods import FROM_INPUT, FROM_VALUES, METHODS
from hookscope.specs.choices import ONNX_OPTIMIZATIONS, check_choice
from hookscope.specs.intervention_spec import Interventions
from hookscope.specs.model_spec import ONNX
from hookscope.specs.run_options import RunOptions
from hookscope.specs.settings import spell_option

_GIVE_SOURCE = "give the model that was exported: FILE.py:NAME."
_GRADIENTS = "onnxruntime computes no gradients"
_WHOLE_GRAPH = "onnxruntime computes the whole graph at once, so no layer can be replaced"
_WITHOUT_GRADIENTS = (FROM_VALUES, FROM_INPUT)
# Commands that an ONNX file cannot run, and what they need.
_COMMANDS = {
    "grads": _GRADIENTS,
    "step": _GRADIENTS,
    "gradcheck": _GRADIENTS,
    "ablate": _WHOLE_GRAPH,
    "sweep": _WHOLE_GRAPH,
    "attribute": _GRADIENTS,
}


def check_onnx_optimize(source: str, level: str | None) -> None:
    """Raise RequestError if a level of ``--onnx-optimize`` is unknown, or no ONNX file is given."""
    if level is None:
        return
    check_choice("--onnx-optimize", level, ONNX_OPTIMIZATIONS)
    if source != ONNX:
        raise RequestError("--onnx-optimize is only for ONNX files.", "Leave it out.")


def check_onnx_model(spec: str, **options: Any) -> None:
    """Raise RequestError if an option is given that builds or fills a model."""
    for name, value in options.items():
        if value:
            raise RequestError(
                f"{spec!r} is an ONNX file, which has its own weights and one graph, so"
                f" {spell_option(name)} does not apply.",
                f"Leave it out, or {_GIVE_SOURCE}",
            )


def check_onnx_run(
    command: str, run: RunOptions, interventions: Interventions, *, has_loss: bool = False
) -> None:
    """Raise RequestError if a command or an option cannot be used with an ONNX file."""
    if command in _COMMANDS:
        raise RequestError(
            f"{command} does not work with an ONNX file: {_COMMANDS[command]}.",
            f"To use it, {_GIVE_SOURCE}",
        )
    if has_loss:
        raise RequestError(
            f"A loss is only for gradients, and {_GRADIENTS}.",
            f"Leave out --loss and --target, or {_GIVE_SOURCE}",
        )
    if run.train:
        raise RequestError(
            "An ONNX file stays in the mode it was exported in, so --train does not apply.",
            "Leave it out, or export the model in training mode.",
        )
    if run.generate is not None:
        raise RequestError(
            "An ONNX file has no method generate, so it cannot generate tokens.",
            f"Leave out --generate, or {_GIVE_SOURCE}",
        )
    if run.device is not None and run.device.partition(":")[0] not in ("auto", "cpu", "cuda"):
        raise RequestError(
            "An ONNX file runs on the CPU or on a CUDA device, so"
            f" --device {run.device} does not apply.",
            "Leave it out. HOOKSCOPE_DEVICE counts as --device.",
        )
    for option, value in (("--dtype", run.dtype), ("--device-map", run.device_map)):
        if value is not None:
            raise RequestError(
                "An ONNX file runs on one device, in the dtypes that it was exported with, so"
                f" {option} {value} does not apply.",
                f"Leave it out, or {_GIVE_SOURCE}",
            )
    if interventions.value_edits or interventions.gradient_edits:
        raise RequestError(
            "--edit does not work with an ONNX file: onnxruntime computes the whole graph at once,"
            " so no value can be changed on the way.",
            f"Leave it out, or {_GIVE_SOURCE}",
        )


def check_onnx_ops(is_onnx: bool, ops: bool) -> None:
    """Raise RequestError if operations between modules of an ONNX file are asked for."""
    if is_onnx and ops:
        raise RequestError(
            "--ops records functions of PyTorch that a model calls between its modules, and an ONNX"
            " file calls none: onnxruntime computes the whole graph at once.",
            f"Leave it out: operators that belong to no module are modules. Or {_GIVE_SOURCE}",
        )


def check_onnx_cam(source: str, method: str) -> None:
    """Raise RequestError if a method of ``cam`` cannot be used with the model."""
    if source != ONNX or METHODS[method].source in _WITHOUT_GRADIENTS:
        return
    usable = [name for name, entry in METHODS.items() if entry.source in _WITHOUT_GRADIENTS]
    need = "gradients, which onnxruntime does not compute"
    if method == "rollout":
        need = "the modules of attention, which an ONNX file does not have"
    raise RequestError(
        f"--by {method} needs {need}.", f"Use --by {' or '.join(usable)}, or {_GIVE_SOURCE}"
    )
