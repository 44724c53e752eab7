"""What cannot be combined with a run that ends after the last selected layer."""

from __future__ import annotations

from hookscope.errors import RequestError
from hookscope.specs.command_options import CaptureOptions
from hookscope.specs.model_spec import ONNX
from hookscope.specs.request import Request


def check_early_stop(request: Request, options: CaptureOptions) -> None:
    """Raise RequestError if something else needs the rest of the run.

    Example:
        >>> from hookscope.specs.request import ModelRequest
        >>> check_early_stop(Request("capture", ModelRequest("resnet18")), CaptureOptions())
    """
    if not options.stop:
        return
    if request.model.source == ONNX:
        raise RequestError(
            "--stop does not work with an ONNX file: onnxruntime computes the whole graph at once.",
            "Leave it out.",
        )
    edits = request.interventions.value_edits
    needs = (
        ("--verify", options.verify, "compares the outputs of the model"),
        ("--ops", options.ops, "compares the outputs of the model"),
        ("--attention", options.attention, "compares the outputs of the model"),
        ("--generate", request.run.generate is not None, "runs the model for every token"),
        ("--edit", bool(edits), "shows the change of the output"),
        ("--hook", request.interventions.hook_count > 0, "may be called by a later layer"),
    )
    for option, chosen, reason in needs:
        if chosen:
            raise RequestError(
                f"--stop ends the run before the model returns, but {option} {reason}.",
                f"Leave out --stop or {option}.",
            )
