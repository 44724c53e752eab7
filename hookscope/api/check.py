"""Diagnose a model, a training run or a file of weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from hookscope.api.weight_source import as_weights, label_of_weights
from hookscope.file_analysis.run_findings.run_health import check_run, check_runs
from hookscope.file_analysis.weight_findings.weight_health import check_weights
from hookscope.files.output_path import runs_in
from hookscope.files.progress import NamedProgress
from hookscope.results.health import Health
from hookscope.specs.choices import DEFAULT_MODEL
from hookscope.specs.command_options import CheckOptions, RunCheckOptions, WeightCheckOptions
from hookscope.specs.health_checks import DEFAULT_THRESHOLDS
from hookscope.specs.model_spec import ONNX
from hookscope.specs.request import (
    InputRequest,
    LossRequest,
    ModelRequest,
    Request,
    chosen_options,
)
from hookscope.specs.run_checks import check_run_options
from hookscope.specs.run_options import RunOptions
from hookscope.specs.weight_checks import WEIGHT_OPTIONS
from hookscope.specs.weight_options import check_model_options
from hookscope.stores.runs.training_run import is_run_folder
from hookscope.stores.weights.weight_set import WeightSet

if TYPE_CHECKING:
    import torch
    from torch import nn


def check(
    model: (
        str | os.PathLike[str] | WeightSet | nn.Module | torch.export.ExportedProgram
    ) = DEFAULT_MODEL,
    *,
    only: str | Iterable[str] | None = None,
    skip: str | Iterable[str] | None = None,
    dead: float = DEFAULT_THRESHOLDS.dead,
    saturated: float = DEFAULT_THRESHOLDS.saturated,
    margin: float = DEFAULT_THRESHOLDS.margin,
    vanishing: float = DEFAULT_THRESHOLDS.vanishing,
    exploding: float = DEFAULT_THRESHOLDS.exploding,
    floor: float | None = None,
    ceiling: float = DEFAULT_THRESHOLDS.ceiling,
    forward_only: bool = False,
    loss: str | Callable[..., Any] | None = None,
    target: Any = "argmax",
    reduction: str | None = None,
    raw: bool = False,
    input: Any = None,
    shape: Sequence[int] | None = None,
    preprocess: str | None = None,
    size: int | tuple[int, int] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    chat: bool = False,
    weights: str | os.PathLike[str] = "random",
    rename: Mapping[str, str] | None = None,
    partial: bool = False,
    model_args: Mapping[str, Any] | None = None,
    method: str | None = None,
    attn: str | None = None,
    trust: bool = False,
    onnx_optimize: str | None = None,
    adapter: str | os.PathLike[str] | None = None,
    seed: int = 0,
    dtype: str | None = None,
    device: str | None = None,
    train: bool = False,
    progress: NamedProgress | None = None,
) -> Health:
    """Run a model forward and a loss backward once, and diagnose it.

    Tensors are measured during the run; no activation or gradient is stored. Keywords that
    ``grads`` also has mean the same here.

    The folder of a training run that ``hookscope run`` wrote is checked without torch: its curves
    are compared with the thresholds of ``hookscope.specs.run_checks.RunThresholds``. Of the
    keywords, only ``only``, ``skip``, ``dead``, ``vanishing`` and ``floor`` apply to it.

    A file of weights is checked without a model: its tensors are compared with the thresholds of
    ``hookscope.specs.weight_checks.WeightThresholds``. The keywords ``only``, ``skip`` and
    ``trust`` apply to it, and no others.

    Args:
        model: as for ``capture``, or the folder of a run or of several, or weights: a file, a
            folder or an index, or the result of ``load``.
        only: names of the checks to run, as a list or separated by commas; None for all.
        skip: names of checks to skip.
        dead: share of dead units (always zero) from which a ReLU-like layer is reported. The
            default, half, is that of the rule ``DeadRelu`` of Amazon SageMaker Debugger, see
            ``hookscope.specs.health_checks.Thresholds``. ``units`` of a finding has their indices.
        saturated: share of entries at a bound from which an activation is reported.
        margin: distance from a bound that counts as at it, as a share of the width between bounds.
        vanishing: a gradient vanishes if its norm is below this share of the norm nearest to the
            loss; for parameters, 1/100 of this.
        exploding: a gradient explodes if its norm is above this multiple of the norm nearest to the
            loss; for parameters, 100 times this.
        floor: norm below which a gradient vanishes in any case. None: 1e-8; in a run 1e-7.
        ceiling: entry above which a gradient explodes in any case.
        forward_only: run no backward pass.
        loss: as for ``grads``. None, without a target: the output along a random direction, which
            is defined for any model.
        trust: as for ``capture``; of a pickled model, build it, which runs code, and check its
            weights.
        progress: of weights: called with the megabytes that were read, the total, and the name of
            the tensor.

    Raises:
        LossError: the loss or its target does not fit the output.
        RequestError: there is no such check, a threshold is out of range, or an option is given
            that a run has no use for.
        ResultsFileError: a file of a run is damaged.
        WeightsFileError: a file of weights is damaged.
        CheckFailed: hooks change the output of the model.
        ForwardError: the model raised SystemExit. Another error of the model is a finding.

    Example:
        >>> import torch, hookscope
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU())
        >>> _ = torch.nn.init.constant_(net[0].bias, -100)
        >>> [(f.check, f.layer) for f in hookscope.check(net, input=torch.ones(2, 4)).findings]
        [('dead', '1'), ('vanishing', '0')]
    """
    loss_request = LossRequest(loss, target, reduction, raw, forward_only=forward_only)
    input_request = InputRequest(input, shape, preprocess, size, mean, std, tokenizer, chat)
    run_options = RunOptions(seed, dtype, device, train=train)
    runs = runs_in(model) if isinstance(model, str | os.PathLike) else []
    is_run = bool(runs) or (isinstance(model, str | os.PathLike) and is_run_folder(model))
    label = "" if is_run else label_of_weights(model)
    if is_run or label:
        of_models = CheckOptions(
            saturated=saturated, margin=margin, exploding=exploding, ceiling=ceiling
        )
        parts = (of_models, loss_request, input_request, run_options)
        chosen = [name for part in parts for name in chosen_options(part)]
        others = {
            **{"input": input is not None, "weights": weights != "random", "rename": rename},
            **{"partial": partial, "model_args": model_args, "method": method},
            **{"attn": attn, "trust": trust and is_run, "onnx_optimize": onnx_optimize},
            **{"adapter": adapter},
        }
        chosen += [name for name, value in others.items() if value]
        if is_run:
            check_run_options(model, chosen)
            folder = cast("str | os.PathLike[str]", model)
            of_run = RunCheckOptions(only, skip, dead, vanishing, floor)
            return check_runs(runs, of_run) if runs else check_run(folder, of_run)
        chosen += chosen_options(CheckOptions(dead=dead, vanishing=vanishing, floor=floor))
        check_model_options(chosen, WEIGHT_OPTIONS, label)
        checks = WeightCheckOptions(only, skip)  # before the file is opened, which may run code
        return check_weights(cast("WeightSet", as_weights(model, trust)), checks, progress)
    options = CheckOptions(
        only,
        skip,
        dead=dead,
        saturated=saturated,
        margin=margin,
        vanishing=vanishing,
        exploding=exploding,
        floor=floor,
        ceiling=ceiling,
    )
    model_request = ModelRequest(
        model, weights, rename, partial, model_args, method, attn, trust, onnx_optimize, adapter
    )
    if model_request.source == ONNX and loss_request.is_default:  # it has no gradients
        loss_request = replace(loss_request, forward_only=True)
    request = Request(
        "check",
        model_request,
        input=input_request,
        run=run_options,
        loss=loss_request,
    )
    from hookscope.model_analysis.health.model_health import check_model

    return check_model(request, options)
