"""What needs the whole run, so that it cannot end after the last selected layer."""

from __future__ import annotations

from hookscope.errors import RequestError
from hookscope.specs.command_options import CaptureOptions
from hookscope.specs.model_spec import ONNX
from hookscope.specs.request import Request


def check_early_stop(request: Request, options: CaptureOptions) -> None:
    """Raise RequestError if the run is to end early and something else needs the rest of it.

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
    for option, reason in options_needing_output(request, options):
        raise RequestError(
            f"--stop ends the run before the model returns, but {option} {reason}.",
            f"Leave out --stop or {option}.",
        )


def may_stop(request: Request, options: CaptureOptions) -> bool:
    """Return whether no option and no kind of model needs the whole run.

    Example:
        >>> from hookscope.specs.request import ModelRequest
        >>> may_stop(Request("capture", ModelRequest("resnet18")), CaptureOptions(verify=True))
        False
    """
    return request.model.source != ONNX and not options_needing_output(request, options)


def options_needing_output(request: Request, options: CaptureOptions) -> list[tuple[str, str]]:
    """Return the chosen options that need the whole run, each with the reason."""
    edits = request.interventions.value_edits
    needs = (
        ("--verify", options.verify, "compares the outputs of the model"),
        ("--ops", options.ops, "compares the outputs of the model"),
        ("--attention", options.attention, "compares the outputs of the model"),
        ("--generate", request.run.generate is not None, "runs the model for every token"),
        ("--edit", bool(edits), "shows the change of the output"),
        ("--hook", request.interventions.hook_count > 0, "may be called by a later layer"),
    )
    return [(option, reason) for option, chosen, reason in needs if chosen]
