"""Compare captures, runs, weights, features folders, fingerprints, or models on one input."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import click

from hookscope.cli.commands import Example
from hookscope.cli.console import Console
from hookscope.cli.declared import options_of
from hookscope.cli.global_options import command, table_options
from hookscope.cli.output_file import OutputFile, analysis_if_named, files_read, without_output
from hookscope.cli.runner import NOTHING_WRITTEN, checked_job, job_step
from hookscope.commands.subject import as_weights, check_no_state_dict, subject_of
from hookscope.errors import FAILED, TROUBLE, RequestError
from hookscope.files.output_path import (
    PAGE,
    PICTURE_SUFFIXES,
    is_fingerprint,
    is_hookscope_file,
)
from hookscope.files.progress_types import Progress
from hookscope.specs.diff_request import (
    CAPTURE_OPTIONS,
    DUMP_OPTIONS,
    MODEL_OPTIONS,
    STRUCTURE_OPTIONS,
    DiffRequest,
    DumpRequest,
    RunDiffOptions,
    are_captures,
    are_features,
    are_runs,
    check_more_runs,
    check_no_fingerprint,
)
from hookscope.specs.fingerprint_request import FINGERPRINT_OPTIONS, FingerprintRequest
from hookscope.specs.public import Only, handles, public
from hookscope.specs.subject_kinds import (
    CAPTURE_AND_DUMP,
    CAPTURES,
    FEATURES,
    FINGERPRINTS,
    MODEL_AND_DUMP,
    MODEL_AND_FINGERPRINT,
    MODEL_AND_WEIGHTS,
    MODELS,
    RUNS,
    STRUCTURES,
    WEIGHTS,
    Subject,
)
from hookscope.specs.tolerances import ExactDiffOptions
from hookscope.specs.value_readers import names_rules
from hookscope.specs.weight_options import InitialWeights, WeightDiffOptions, WeightTrust

if TYPE_CHECKING:
    import torch

    from hookscope.file_analysis.features_diff import FeaturesDiff
    from hookscope.file_analysis.run_diff import RunDiff, RunDiffs
    from hookscope.file_analysis.weight_diff import WeightDiff
    from hookscope.results.diff_result import Diff
    from hookscope.results.fingerprint_diff import FingerprintDiff
    from hookscope.results.local_diff import LocalDiff
    from hookscope.results.structure_diff import StructureDiff
    from hookscope.stores.weights.weight_set import WeightSet

    Side = str | os.PathLike[str] | WeightSet | torch.nn.Module | torch.export.ExportedProgram


_NAN_IS_EQUAL = "NaN in both is equal."
_IN_FINGERPRINT = "How much of a difference is rounding stands in the fingerprint."
_OF_FINGERPRINT = dict.fromkeys(("atol", "rtol"), _IN_FINGERPRINT)
_RUN_MODELS = (
    "To compare what a model computes with each of two files: hookscope diff MODEL MODEL --weights"
    " A --weights B"
)
_HINTS_OF_WEIGHTS = {
    **dict.fromkeys(MODEL_OPTIONS, _RUN_MODELS),
    "equal_nan": _NAN_IS_EQUAL,
    "map": "To replace prefixes of names, use --rename.",
}


@public
def diff(
    a: Side,
    b: Side,
    *more: str | os.PathLike[str],
    options: DiffRequest,
    progress: Progress | None = None,
) -> (
    Diff
    | LocalDiff
    | RunDiff
    | RunDiffs
    | WeightDiff
    | FeaturesDiff
    | StructureDiff
    | FingerprintDiff
):
    """Compare captures, runs, weights, features folders, fingerprints, or models on one input.

    Two files are read without torch, one block of each tensor at a time. Two models run
    in lockstep, so that memory needs to hold only about one tensor of each. The input is built
    once, for A. Tensors are matched by their keys, then by ``map``, then by order, module
    type and shape. A is the reference. With ``local`` or ``floor``, each module of B also runs on
    the inputs of its counterpart in A, and the result is a ``LocalDiff``, which names the modules
    in which differences arise.

    Two folders of training runs that ``hookscope run`` wrote are compared without torch, at the
    steps that both have; the result is a ``RunDiff``, which names the first step and layer that
    differ. The keywords ``layers``, ``atol``, ``rtol`` and ``strict`` apply; the default
    tolerance is 0, because a repeated run has the same bits, and NaN in both is equal. With
    ``more`` runs, A is compared with each of them, and the result is a ``RunDiffs``. With
    ``shift``, B is a run that was resumed after so many steps of A.

    Two files of weights, folders of them or results of ``load`` are compared tensor by tensor,
    without torch; the result is a ``WeightDiff``, the most changed tensors first. If one side is a
    model, its parameters and buffers are compared with the weights, and no model runs. The
    keywords ``layers``, ``atol``, ``rtol``, ``strict``, ``rename`` and ``trust`` apply, and for a
    model ``weights``, ``partial``, ``model_args`` and ``seed``. The default tolerance is 0, NaN in
    both is equal, and a tensor of one side alone is a difference.

    A model or a capture A is compared with the dump B of another program: a folder of arrays, or a
    file, whose names are those of modules or are given by the rules of ``map``. A model runs on the
    input in the dump, or on ``input``; the result is a ``Diff`` of the tensors in the dump.

    Two features folders of the same inputs, which the hashes in them must show, are compared row by
    row without torch; the result is a ``FeaturesDiff``. The keywords ``layers``, ``atol``, ``rtol``
    and ``strict`` apply, with the defaults of weights; a key of one folder alone is a difference
    with ``strict``.

    Two files that ``fingerprint`` wrote are compared without torch. A model A is compared with a
    fingerprint B, which is the reference, on the input and with the seed and options that B was
    made with; those that are given replace them. The result is a ``FingerprintDiff``, which names
    the first layer beyond its rounding. The keywords ``layers`` and ``strict`` apply.

    With ``structure``, the layers of two models are compared, and no model runs; the result is a
    ``StructureDiff``. The keywords ``layers``, ``types``, ``depth``, ``leaves`` and ``map`` apply,
    and ``model_args``, ``attn``, ``adapter`` and ``trust``.

    Args:
        a: the file of a capture, the folder of a run, weights, the spec of a model, or a module.
        b: the capture, run, weights, model or dump to compare with A.
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
    from hookscope.model_analysis.diff.model_comparison import compare_models

    return compare_models(options)


@handles(diff, CAPTURES)
def diff_captures(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    options: Annotated[DiffRequest, Only(*CAPTURE_OPTIONS)],
) -> Diff:
    """Compare two captures, one block of each tensor at a time."""
    from hookscope.file_analysis.capture_comparator import Comparator, compare_captures
    from hookscope.file_analysis.record_matches import LayerFilter

    selection = options.selection
    return compare_captures(
        (a, b),
        options.prefixes,
        Comparator(options.atol, options.rtol, options.equal_nan),
        LayerFilter(tuple(selection.layers), tuple(selection.types), options.depth),
        tuple(options.kinds),
        options.strict,
    )


@handles(diff, CAPTURE_AND_DUMP)
def diff_capture_and_dump(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    options: Annotated[DumpRequest, Only(*CAPTURE_OPTIONS)],
) -> Diff:
    """Compare a capture with what another program wrote."""
    from hookscope.file_analysis.dump_matches import compare_capture_with_dump
    from hookscope.stores.dump import open_dump

    return compare_capture_with_dump(open_dump(os.fspath(b)), options)


@handles(diff, MODEL_AND_DUMP)
def diff_model_and_dump(
    a: Side,
    b: str | os.PathLike[str],
    *,
    options: Annotated[DumpRequest, Only(*DUMP_OPTIONS)],
) -> Diff | WeightDiff:
    """Run a model, and compare it with what another program wrote."""
    from hookscope.model_analysis.diff.dump_comparison import compare_model_with_dump
    from hookscope.stores.dump import open_dump

    return compare_model_with_dump(open_dump(os.fspath(b)), options)


@handles(diff, FINGERPRINTS, **_OF_FINGERPRINT)
def diff_fingerprints(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    options: Annotated[ExactDiffOptions, Only("layers", "strict")],
) -> FingerprintDiff:
    """Compare two fingerprints."""
    from hookscope.file_analysis.fingerprint_diff import compare_fingerprints
    from hookscope.stores.fingerprint_file import open_fingerprint

    return compare_fingerprints(open_fingerprint(a), open_fingerprint(b), options)


@handles(diff, MODEL_AND_FINGERPRINT, **_OF_FINGERPRINT)
def diff_model_and_fingerprint(
    a: Side,
    b: str | os.PathLike[str],
    *,
    options: Annotated[FingerprintRequest, Only(*FINGERPRINT_OPTIONS)],
) -> FingerprintDiff:
    """Run a model, and compare it with a fingerprint."""
    from hookscope.model_analysis.diff.fingerprint_comparison import compare_model_with_fingerprint
    from hookscope.stores.fingerprint_file import open_fingerprint

    return compare_model_with_fingerprint(open_fingerprint(b), options)


@handles(diff, RUNS, equal_nan=_NAN_IS_EQUAL)
def diff_runs(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *more: str | os.PathLike[str],
    options: RunDiffOptions,
) -> RunDiff | RunDiffs:
    """Compare a training run with one or several others."""
    from hookscope.file_analysis.run_diff import RunDiffs, compare_runs

    diffs = [compare_runs(a, other, options) for other in (b, *more)]
    return RunDiffs(tuple(diffs)) if more else diffs[0]


@handles(diff, FEATURES, equal_nan=_NAN_IS_EQUAL)
def diff_features(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    options: ExactDiffOptions,
    progress: Progress | None = None,
) -> FeaturesDiff:
    """Compare two features folders row by row."""
    from hookscope.file_analysis.features_diff import compare_features

    return compare_features(a, b, options, progress)


@handles(diff, WEIGHTS, **_HINTS_OF_WEIGHTS)
def diff_weights(
    a: Side,
    b: Side,
    *,
    options: WeightDiffOptions,
    pickled: WeightTrust,
    progress: Progress | None = None,
) -> WeightDiff:
    """Compare two sets of weights tensor by tensor."""
    from hookscope.file_analysis.weight_diff import compare_weights

    sides = [cast("WeightSet", as_weights(side, pickled.trust)) for side in (a, b)]
    return compare_weights(sides[0], sides[1], options, progress)


@handles(diff, MODEL_AND_WEIGHTS, **_HINTS_OF_WEIGHTS)
def diff_model_and_weights(
    a: Side,
    b: Side,
    *,
    options: WeightDiffOptions,
    initial: InitialWeights,
    progress: Progress | None = None,
) -> WeightDiff:
    """Compare the values that a model is loaded with, and weights."""
    from hookscope.model_analysis.diff.model_comparison import compare_with_model
    from hookscope.stores.weights.open_weights import weight_sides

    sides: Any = [a, b]
    of_weights = weight_sides(a, b).index(True)
    # Before a file is opened, which may run code.
    request = initial.request_of(sides[1 - of_weights], 1 - of_weights)
    sides[of_weights] = as_weights(sides[of_weights], initial.trust)
    return compare_with_model(sides[0], sides[1], request, initial.seed, options, progress)


@handles(diff, STRUCTURES)
def diff_structures(
    a: Side,
    b: Side,
    *,
    options: Annotated[DiffRequest, Only(*STRUCTURE_OPTIONS)],
) -> StructureDiff:
    """Compare the layers of two models."""
    from hookscope.model_analysis.diff.structure import compare_structures

    return compare_structures(options)


def _find_sides(given: Mapping[str, Any]) -> Subject:
    """Return what is compared, after checking that both sides are of the same kind."""
    from hookscope.stores.dump import is_dump_beside
    from hookscope.stores.weights.open_weights import weight_sides

    a, b = given["a"], given["b"]
    for side in (a, b):
        check_no_state_dict(side)
    check_more_runs(a, b, given.get("more", ()))
    if is_fingerprint(b):
        if is_fingerprint(a):
            return Subject(FINGERPRINTS, f"A and B are {FINGERPRINTS}")
        if subject_of(a).kind == MODELS:
            return Subject(MODEL_AND_FINGERPRINT, "B is a fingerprint")
    check_no_fingerprint(a, b)
    if are_runs(a, b):
        kind = RUNS
    elif are_features(a, b):
        kind = FEATURES
    elif is_dump_beside(a, b, names_rules(given.get("map"))):
        is_capture = isinstance(a, str | os.PathLike) and is_hookscope_file(Path(a))
        kind = CAPTURE_AND_DUMP if is_capture else MODEL_AND_DUMP
        return Subject(kind, "B is a dump of another program")
    elif any(are_weights := weight_sides(a, b)):
        if not all(are_weights):
            side = "AB"[are_weights.index(True)]
            return Subject(MODEL_AND_WEIGHTS, f"{side} has only weights")
        kind = WEIGHTS
    else:
        kind = CAPTURES if are_captures(a, b) else MODELS
    if kind == MODELS and given.get("structure"):
        return Subject(STRUCTURES, "--structure runs none")
    return Subject(kind, f"A and B are {kind}")


diff.find_subject = _find_sides


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
        "hookscope diff sample_models/digits.py:trained sample_models/digits_scripted.pt"
        " --structure",
        "The layers that were added, moved or changed; no model runs.",
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
        "hookscope diff sample_models/digits.py:trained sample_models/digits.fp",
        "A model and its fingerprint: the first layer that computes something else.",
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
        "hookscope diff sample_models/digits.py:trained sample_models/digits_scripted.pt --floor"
        " float64",
        "Which modules differ by more than rounding, each on equal inputs.",
    ),
    Example(
        "hookscope diff resnet18 resnet18 --dtype float32 --dtype float64 --shape 1x3x64x64"
        " --rtol 0.001 --atol 0.001",
        "A model in two precisions: an option given twice applies to A, then B.",
    ),
)


OUTPUT = analysis_if_named(
    ".json or .csv; of tensors in order of execution also .html or a picture (.png, .jpg, .svg,"
    " .pdf)",
    PAGE,
)
_IN_ORDER = (
    *(MODELS, CAPTURES, MODEL_AND_DUMP, CAPTURE_AND_DUMP),
    *(FINGERPRINTS, MODEL_AND_FINGERPRINT),
)


@command(
    "diff",
    click.argument("a", help="A capture, run folder, weights, features or model."),
    click.argument("b", help="What to compare with A, of the same kind; or a dump."),
    click.argument("more", nargs=-1, metavar="[RUN]...", help="More runs to compare with A."),
    options_of(DiffRequest),
    OUTPUT.options,
    table_options,
    views="capture_diff local_diff run_diff weight_diff features_diff structure_diff"
    " fingerprint_diff",
    examples=EXAMPLES,
    main="layer local map input weights",
    also="atol compile-b dtype floor onnx-optimize output rename shift structure",
    topics="model-specs layers inputs weights keys",
)
def diff_command(ctx: click.Context, **values: Any) -> None:
    """Compare two captures, runs or files of weights, or models on one input.

    Prints one row for each tensor of A that matches one of B, in execution order: largest absolute
    and relative difference, cosine similarity, signal-to-noise ratio in decibels, and the number of
    entries beyond tolerance. Unmatched tensors follow. Tensors match by name, by their name
    after --map, or by order if module type and shape are equal.

    With two models and --structure, prints each layer that was added, removed, moved, renamed or
    changed; no model runs. --markdown prints that for a pull request.

    With two models, an option applies to both. --weights, --dtype, --device, --method, --attn and
    --onnx-optimize may be given twice, for A and then B.

    With --local, each module of B also runs on the inputs of its counterpart in A, so that the
    module in which a difference arises is named, and not its echo in those after it. Errors are
    stated in units of A's own rounding errors, from a run in float64, or with --floor none compared
    with the tolerance. --compile-b compiles each module of B that has no others in it, and
    --compile-a those of A.

    With an ONNX file, the default tolerance is wider, because onnxruntime adds numbers in another
    order than PyTorch. Modules that the exporter folded or left out are listed with the reason.
    For the first difference, the operators in the file and the parameters that differ are named.

    With two folders that 'hookscope run' wrote, prints the first step at which each kind of series
    differs, and names the first layer. With more than two, compares the first with each of the
    others. With --shift N, B was resumed after N steps of A, and the first of these that differs is
    named: weights, optimizer state, learning rate, batch, random generators. --layer, --atol,
    --rtol and --strict apply.

    With two files of weights, prints each tensor that changed, the most changed first: relative L2
    distance, change of the norm, cosine similarity, largest change of an entry, share of entries
    that changed. A tensor of one file alone is a difference. With a model and a file of weights,
    compares the values that the model is loaded with (--weights, --seed); no model runs. --layer,
    --rename, --atol, --rtol and --strict apply.

    With a model or a capture and a dump, which are arrays that another program wrote, compares each
    tensor of the dump with the module that it is named after, or that a rule of --map FILE.toml
    names. A model runs on the tensor 'input', 'input_ids' or 'pixel_values' of the dump, or on
    --input.

    With two features folders of the same inputs, prints each tensor whose rows differ: relative L2
    distance, cosine similarity, largest difference, number of rows beyond tolerance and the first
    of them. --layer, --atol, --rtol and --strict apply.

    With two fingerprints, or a model and a fingerprint of 'hookscope fingerprint', names the first
    layer beyond its rounding, which stands in the file. The model runs on the input that the
    fingerprint was made with, or on --input. --layer and --strict apply.

    Exit status: 0 if equal within tolerance, 1 if different, 2 if there was an error.
    """
    console: Console = ctx.obj
    console.failed = TROUBLE
    a, b = values["a"], values["b"]
    sides = (a, b, *values["more"])
    job = checked_job(ctx, diff, without_output(values))
    file = OUTPUT.resolve(
        ctx, inputs=(*sides, *values["weights"], *files_read(values)), folders=sides
    )
    if file is not None:
        _check_drawn(file, job.kind)
        console.interrupt_message = NOTHING_WRITTEN
    unit = "MB" if job.kind in (WEIGHTS, MODEL_AND_WEIGHTS) else "Rows"
    with job_step(console, job, f"Comparing {a} with {b} ...", f"{unit} compared") as progress:
        result = job(**progress)
        if file is not None:
            from hookscope.views.display import write_analysis

            size = write_analysis(result, file.path, file.dpi)
    console.show(result)
    if file is not None:
        console.note(file.written(size))
    if not result.same:
        ctx.exit(FAILED)


def _check_drawn(file: OutputFile, kind: str) -> None:
    """Raise RequestError for a page or a picture of what has no order of execution."""
    if file.ending in (PAGE, *PICTURE_SUFFIXES) and kind not in _IN_ORDER:
        raise RequestError(
            f"{file.path}: a comparison of {kind} has no page or picture.",
            "Name a .json or .csv file with --output.",
        )
