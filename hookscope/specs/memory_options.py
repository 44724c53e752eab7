"""What ``memory`` measures: a training step or inference, and the limit it is to fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hookscope.errors import RequestError
from hookscope.files.training_scripts import calls_backward
from hookscope.specs.command_options import StepOptions
from hookscope.specs.extract_options import ExtractOptions
from hookscope.specs.model_spec import FILE, ONNX
from hookscope.specs.request import Request
from hookscope.specs.settings import same_setting, setting
from hookscope.specs.value_readers import read_byte_count


@dataclass(frozen=True)
class MemoryOptions:
    """The step of ``memory``."""

    section = "Memory"

    optimizer: str | None = same_setting(
        StepOptions,
        "optimizer",
        None,
        section=section,
        help="Measure a training step with this optimizer, such as adamw. Default: inference.",
        python="measure a training step with this optimizer of ``torch.optim``, such as ``adamw``;"
        " None for inference.",
    )
    opt_args: Mapping[str, Any] | None = same_setting(StepOptions, "opt_args", section=section)
    autocast: str | None = same_setting(ExtractOptions, "autocast", section=section)
    limit: int | None = setting(
        None,
        "Find the largest batch within this size, such as 24GB, and what to checkpoint.",
        kind="bytes",
        parse=read_byte_count,
        python="bytes, for which the largest batch is found, and the layers to checkpoint if the"
        " batch of the input is larger.",
    )

    def check_request(self, request: Request) -> None:
        """Raise RequestError for what is only for a training step, and for a graph of ONNX."""
        script = script_path(request)
        if script is not None and (request.input.input is not None or request.input.shape):
            raise RequestError(
                f"{script} is a training script, which makes its own input.",
                "Leave out --input and --shape, or name its model, as FILE.py:NAME.",
            )
        if self.optimizer is None:
            loss = request.loss is not None and request.loss.loss is not None
            for option, given in (("--loss", loss), ("--opt-arg", bool(self.opt_args))):
                if given:
                    raise RequestError(
                        f"{option} is for a training step, and this is inference.",
                        "Add --optimizer, such as --optimizer adamw.",
                    )
        if request.model.source == ONNX:
            raise RequestError(
                "The graph of an ONNX file runs in onnxruntime, which allocates its own memory.",
                "Give the PyTorch model that it was made from.",
            )


def script_path(request: Request) -> str | None:
    """Return the file of a training script; None for a model."""
    spec = request.model.spec
    if spec is None or spec.source != FILE or spec.text != spec.path:
        return None
    return spec.path if calls_backward(spec.path) else None
