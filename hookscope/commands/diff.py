"""Compare two captures, runs, sets of weights, features folders, or models on one input."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from hookscope.cli.commands import Example, command
from hookscope.cli.console import Console
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import global_options, table_options
from hookscope.cli.run_context import reading, running
from hookscope.commands.public import Given, public
from hookscope.errors import FAILED, TROUBLE
from hookscope.files.progress import Progress
from hookscope.specs.diff_request import (
    MODEL_OPTIONS,
    RUN_OPTIONS,
    DiffRequest,
    RunDiffOptions,
    are_captures,
    are_features,
    are_runs,
    check_capture_options,
    check_more_runs,
    check_run_diff_options,
)
from hookscope.specs.weight_options import (
    DIFF_WEIGHT_OPTIONS,
    INITIAL_OPTIONS,
    InitialWeights,
    WeightDiffOptions,
    check_weight_diff_options,
)

if TYPE_CHECKING:
    from hookscope.file_analysis.features_diff import FeaturesDiff
    from hookscope.file_analysis.run_diff import RunDiff, RunDiffs
    from hookscope.file_analysis.weight_diff import WeightDiff
    from hookscope.results.diff_result import Diff

if TYPE_CHECKING:
    import torch

    from hookscope.stores.weights.weight_set import WeightSet

    Side = str | os.PathLike[str] | WeightSet | torch.nn.Module | torch.export.ExportedProgram


@public
def diff(
    a: Side,
    b: Side,
    *more: str | os.PathLike[str],
    options: Given[DiffRequest],
    progress: Progress | None = None,
) -> Diff | RunDiff | RunDiffs | WeightDiff | FeaturesDiff:
    """Compare two captures, runs, sets of weights, features folders, or models on one input.

    Two files are read without torch, one block of each tensor at a time. Two models first run once
    each, then in lockstep, so that memory needs to hold only about one tensor of each. The input is
    built once, for A. Tensors are matched by their keys, then by ``map``, then by order, module
    type and shape. A is the reference.

    Two folders of training runs that ``hookscope run`` wrote are compared without torch, at the
    steps that both have; the result is a ``RunDiff``, which names the first step and layer that
    differ. The keywords ``layers``, ``atol``, ``rtol`` and ``strict`` apply; the default
    tolerance is 0, because a repeated run has the same bits, and NaN in both is equal. With
    ``more`` runs, A is compared with each of them, and the result is a ``RunDiffs``.

    Two files of weights, folders of them or results of ``load`` are compared tensor by tensor,
    without torch; the result is a ``WeightDiff``, the most changed tensors first. If one side is a
    model, its parameters and buffers are compared with the weights, and no model runs. The
    keywords ``layers``, ``atol``, ``rtol``, ``strict``, ``rename`` and ``trust`` apply, and for a
    model ``weights``, ``partial``, ``model_args`` and ``seed``. The default tolerance is 0, NaN in
    both is equal, and a tensor of one side alone is a difference.

    Two features folders of the same inputs, which the hashes in them must show, are compared row by
    row without torch; the result is a ``FeaturesDiff``. The keywords ``layers``, ``atol``, ``rtol``
    and ``strict`` apply, with the defaults of weights; a key of one folder alone is a difference
    with ``strict``.

    Args:
        a: the file of a capture, the folder of a run, weights, the spec of a model, or a module.
        b: the capture, run, weights or model to compare with A.
        more: more folders of runs to compare with A, if it is one.
        progress: of features: called with the number of rows compared, over all keys, and the
            total; of weights: called with the number of megabytes compared and the total.

    Raises:
        RequestError: one is a capture and the other a model, no tensor in A matches one in B, no
            step is in both runs, or a spec, a pattern or a file is wrong.
        ResultsFileError: a file cannot be read.
        WeightsFileError: a file of weights cannot be read.
        ForwardError: a model raised; says which, and the layer.

    Example:
        >>> import hookscope
        >>> found = hookscope.diff(
        ...     "resnet18", "resnet18", dtype=["float32", "float64"], shape=(1, 3, 64, 64)
        ... )
        >>> len(found.rows), found.same, found.rows[0].dtypes
        (76, True, ('float32', 'float64'))
    """
    from hookscope.commands.weight_source import as_weights, check_no_state_dict
    from hookscope.file_analysis.capture_comparator import Comparator, compare_captures
    from hookscope.file_analysis.features_diff import compare_features
    from hookscope.file_analysis.record_matches import LayerFilter
    from hookscope.file_analysis.run_diff import RunDiffs, compare_runs
    from hookscope.stores.weights.open_weights import weight_sides

    chosen = options.chosen
    sides: Any = (a, b)
    for side in sides:
        check_no_state_dict(side)
    check_more_runs(a, b, more)
    if are_runs(a, b):
        check_run_diff_options(chosen)
        options_of_runs = RunDiffOptions(**options.part(*RUN_OPTIONS))
        diffs = [compare_runs(sides[0], other, options_of_runs) for other in (sides[1], *more)]
        return RunDiffs(tuple(diffs)) if more else diffs[0]
    if are_features(a, b):
        check_run_diff_options(chosen, "features folders")
        options_of_rows = RunDiffOptions(**options.part(*RUN_OPTIONS))
        return compare_features(sides[0], sides[1], options_of_rows, progress)
    are_weights = weight_sides(a, b)
    if any(are_weights):
        check_weight_diff_options(chosen, not all(are_weights))
        weight_options = WeightDiffOptions(**options.part(*DIFF_WEIGHT_OPTIONS))
        side = are_weights.index(False) if False in are_weights else None
        if side is not None:  # checked before a file is opened, which may run code
            model = InitialWeights(sides[side], side, **options.part(*INITIAL_OPTIONS))
        pairs = zip(sides, are_weights, strict=True)
        sides = [as_weights(one, options["trust"]) if own else one for one, own in pairs]
        if side is None:
            from hookscope.file_analysis.weight_diff import compare_weights

            return compare_weights(sides[0], sides[1], weight_options, progress)
        from hookscope.model_analysis.diff.model_comparison import compare_with_model

        return compare_with_model(sides[0], sides[1], model, weight_options, progress)
    request = options.make(a=a, b=b)
    if not request.compares_captures:
        from hookscope.model_analysis.diff.model_comparison import compare_models

        return compare_models(request)
    selection = request.selection
    return compare_captures(
        sides,
        request.map or {},
        Comparator(request.atol, request.rtol, request.equal_nan),
        LayerFilter(tuple(selection.layers), tuple(selection.types), request.depth),
        tuple(request.kinds),
        request.strict,
    )


EXAMPLES = (
    Example(
        "hookscope diff sample_models/digits.py:trained sample_models/digits_scripted.pt",
        "A model and its scripted file, on the example input of the model.",
    ),
    Example(
        "hookscope diff sample_models/digits_scripted.pt sample_models/digits_traced.pt",
        "A scripted and a traced file.",
    ),
    Example(
        "hookscope diff sample_models/digits.py:trained sample_models/digits.onnx"
        " --input sample_models/five.png",
        "A model and its ONNX file: the first module that differs.",
    ),
    Example(
        "hookscope diff sample_models/digits.onnx sample_models/digits.onnx --onnx-optimize none"
        " --onnx-optimize all",
        "What the optimization of onnxruntime changes.",
    ),
    Example(
        "hookscope diff sample_models/five.safetensors sample_models/five.safetensors",
        "Two captures, read without torch.",
    ),
    Example(
        "hookscope diff sample_models/digits.safetensors sample_models/digits.safetensors",
        "The weights in two files, which may be of different formats.",
    ),
    Example(
        "hookscope diff sample_models/features sample_models/features",
        "Two features folders of the same inputs, row by row.",
    ),
    Example(
        "hookscope diff sample_models/digits.py:trained sample_models/digits.safetensors",
        "The values that a model is loaded with, and the weights in a file.",
    ),
    Example(
        "hookscope diff sample_models/digits_traced.pt sample_models/digits_exported.pt2"
        " --input sample_models/five.png --json",
        "A traced and an exported file on an image, as JSON.",
    ),
    Example(
        "hookscope diff resnet18 resnet18 --dtype float32 --dtype float64 --shape 1x3x64x64"
        " --rtol 0.001 --atol 0.001",
        "A model in two precisions: an option given twice applies to A, then B.",
    ),
)


@command(
    "diff",
    click.argument("a", help="A capture, run folder, weights, features or model."),
    click.argument("b", help="What to compare with A, of the same kind."),
    click.argument("more", nargs=-1, metavar="[RUN]...", help="More runs to compare with A."),
    options_of(
        DiffRequest,
        *("map", "atol", "rtol", "equal_nan", "strict"),
        *("layers", "types", "depth", "leaves", "what"),
        *("model_args", "method", "attn", "trust", "onnx_optimize", "adapter"),
        *("input", "shape", "preprocess", "size", "mean", "std", "tokenizer", "chat"),
        *("weights", "rename", "partial", "seed", "dtype", "device", "train"),
    ),
    table_options,
    global_options,
    click.pass_context,
    examples=EXAMPLES,
    main="layer map atol input weights model-arg",
    topics="model-specs layers inputs weights keys",
)
def diff_command(ctx: click.Context, more: tuple[str, ...], **values: Any) -> None:
    """Compare two captures, runs or files of weights, or models on one input.

    Prints one row for each tensor of A that matches one of B, in execution order: largest absolute
    and relative difference, cosine similarity, signal-to-noise ratio in decibels, and the number of
    entries beyond tolerance. Unmatched tensors follow. Tensors match by name, by their name
    after --map, or by order if module type and shape are equal.

    With two models, an option applies to both. --weights, --dtype, --device, --method, --attn and
    --onnx-optimize may be given twice, for A and then B.

    With an ONNX file, the default tolerance is wider, because onnxruntime adds numbers in another
    order than PyTorch. Modules that the exporter folded or left out are listed with the reason.
    For the first difference, the operators in the file and the parameters that differ are named.

    With two folders that 'hookscope run' wrote, prints the first step at which each kind of series
    differs, and names the first layer. With more than two, compares the first with each of the
    others. --layer, --atol, --rtol and --strict apply.

    With two files of weights, prints each tensor that changed, the most changed first: relative L2
    distance, change of the norm, cosine similarity, largest change of an entry, share of entries
    that changed. A tensor of one file alone is a difference. With a model and a file of weights,
    compares the values that the model is loaded with (--weights, --seed); no model runs. --layer,
    --rename, --atol, --rtol and --strict apply.

    With two features folders of the same inputs, prints each tensor whose rows differ: relative L2
    distance, cosine similarity, largest difference, number of rows beyond tolerance and the first
    of them. --layer, --atol, --rtol and --strict apply.

    Exit status: 0 if equal within tolerance, 1 if different, 2 if there was an error.
    """
    console: Console = ctx.obj
    console.failed = TROUBLE
    check_more_runs(values["a"], values["b"], more)
    if are_runs(values["a"], values["b"]):
        _diff_runs(ctx, values, more=more)
        return
    if are_features(values["a"], values["b"]):
        _diff_runs(ctx, values, "features folders")
        return
    from hookscope.stores.weights.open_weights import weight_sides

    if any(are_weights := weight_sides(values["a"], values["b"])):
        _diff_weights(ctx, values, are_weights)
        return
    captures = are_captures(values["a"], values["b"])
    if captures:
        typed = ParameterSource.COMMANDLINE
        check_capture_options([x for x in MODEL_OPTIONS if ctx.get_parameter_source(x) is typed])
        # Settings that hold for all commands, such as a seed, do not concern files.
        values = {name: value for name, value in values.items() if name not in MODEL_OPTIONS}
    DiffRequest(**values)  # for its checks, before torch is imported
    what = f"Comparing {values['a']} with {values['b']} ..."
    with console.status(what) if captures else running(console, what):
        result = diff(**values)
    console.show(result)
    if not result.same:
        ctx.exit(FAILED)


def _diff_runs(
    ctx: click.Context,
    values: dict[str, Any],
    what: str = "training runs",
    more: tuple[str, ...] = (),
) -> None:
    typed = ParameterSource.COMMANDLINE
    options = [name for name in values if name not in ("a", "b")]
    chosen_options = [x for x in options if ctx.get_parameter_source(x) is typed]
    check_run_diff_options(chosen_options, what)
    chosen = {name: values[name] for name in RUN_OPTIONS}
    RunDiffOptions(**chosen)  # for its checks, before anything is read
    status = ctx.obj.status(f"Comparing {values['a']} with {values['b']} ...")
    with status, ctx.obj.bar("Rows compared") as advance:
        result = diff(values["a"], values["b"], *more, **chosen, progress=advance)
    ctx.obj.show(result)
    if not result.same:
        ctx.exit(FAILED)


def _diff_weights(
    ctx: click.Context, values: dict[str, Any], are_weights: tuple[bool, bool]
) -> None:
    from hookscope.specs.weight_options import (
        DIFF_WEIGHT_OPTIONS,
        INITIAL_OPTIONS,
        TRUST,
        InitialWeights,
        WeightDiffOptions,
        check_weight_diff_options,
    )

    console: Console = ctx.obj
    typed = ParameterSource.COMMANDLINE
    options = [name for name in values if name not in ("a", "b")]
    with_model = not all(are_weights)
    check_weight_diff_options(
        [x for x in options if ctx.get_parameter_source(x) is typed], with_model
    )
    chosen = {name: values[name] for name in DIFF_WEIGHT_OPTIONS}
    WeightDiffOptions(**chosen)  # for its checks, before anything is read
    chosen[TRUST] = values[TRUST]
    if with_model:
        initial = {name: values[name] for name in INITIAL_OPTIONS}
        side = are_weights.index(False)
        InitialWeights(values["ab"[side]], side, **initial)
        chosen |= initial
    what = f"Comparing {values['a']} with {values['b']} ..."
    loads_model = reading(console, what, with_model or values[TRUST])
    with loads_model, console.bar("MB compared") as advance:
        result = diff(values["a"], values["b"], **chosen, progress=advance)
    console.show(result)
    if not result.same:
        ctx.exit(FAILED)
