"""A result as text, as HTML or as a JSON document: one dispatch on the type of the result.

``text`` and ``document`` take any result of a command; ``html`` is the text as HTML for a notebook.
The view of a type is imported when a result of that type is drawn, so a command loads no view of
another command, and rich for text only. To add a result, register its type here. Types of packages
that come after this one (``Exported``, ``Extraction``, ``Report``) are registered in their files.

A few views are called directly, because the type of their argument does not determine them:

- ``models_lines``, ``extraction_lines`` and ``provenance_lines`` take a plain list or dict.
- ``cam_lines`` takes a recording, as ``show`` does, which prints the same file as a table. In a
  notebook the result of ``cam`` has these lines.
- ``weight_tree_lines`` and ``weight_tree_document``: ``tree`` of a file of weights loads no other
  result, and so no numpy.
- ``mermaid_text`` and ``dot_text`` return another form of a tree, as plain text.
- ``map_lines`` fills a window in colour, and ``show_document`` describes a part of a file.
- ``exported_lines`` takes the rows of a result that ``api`` defines, and ``failure_document`` names
  the command that failed.
- A page of HTML is built from one or two captures and from nothing else: ``html/page_builder.py``.

Example:
    >>> from hookscope.results.trace_events import Trace
    >>> from hookscope.results.records import Coverage
    >>> document(Trace((), Coverage(), {}))["command"]
    'trace'
"""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hookscope.errors import ForwardError
from hookscope.file_analysis.features.features_diff import FeaturesDiff
from hookscope.file_analysis.runs.key_curves import KeyCurves
from hookscope.file_analysis.runs.run_diff import RunDiff, RunDiffs
from hookscope.file_analysis.runs.run_summary import RunSummary
from hookscope.file_analysis.units.top_inputs import TopInputs
from hookscope.file_analysis.weights.weight_diff import WeightDiff
from hookscope.results.ablation import Ablation
from hookscope.results.attribution import Attribution
from hookscope.results.diff_result import Diff
from hookscope.results.grad_check import GradCheck
from hookscope.results.health import Health
from hookscope.results.layer_probes import LayerProbes
from hookscope.results.layer_similarity import LayerSimilarity
from hookscope.results.lens import Lens
from hookscope.results.module_tree import ModuleTree
from hookscope.results.records import Recording
from hookscope.results.sweep import Sweep
from hookscope.results.trace_events import Trace
from hookscope.stores.features.features import Features
from hookscope.stores.features.folder_verification import Verification
from hookscope.stores.runs.run_export import ExportedRun
from hookscope.stores.runs.run_list import RunList
from hookscope.stores.runs.training_run import TrainingRun
from hookscope.stores.weights.weight_hashes import WeightHashes
from hookscope.stores.weights.weight_set import WeightSet
from hookscope.stores.weights.weight_tree import WeightTree
from hookscope.views.images.tensor_view import TensorView
from hookscope.views.text import documents

if TYPE_CHECKING:
    from rich.text import Text

    from hookscope.stores.captures.capture_file import CaptureFile
    from hookscope.views.text.table import Column
    from hookscope.views.text.text_table import TextOptions


@singledispatch
def text(result: object, options: TextOptions) -> list[Text]:
    """Return a result as the lines that its command prints.

    Args:
        result: of one of the registered types.
        options: where the lines are printed.

    Raises:
        TypeError: no view is registered for the type.
    """
    raise TypeError(f"{type(result).__name__} has no view as text")


@singledispatch
def document(result: object, file: str | None = None) -> dict[str, Any]:
    """Return a result as the document that its command prints with ``--json``.

    Args:
        result: of one of the registered types.
        file: where the result was written; for the documents of recordings and ablations.

    Raises:
        TypeError: no document is registered for the type.
    """
    raise TypeError(f"{type(result).__name__} has no view as a JSON document")


def html(result: object) -> str:
    """Return a result as HTML for a notebook: the tables and sentences of ``text``, escaped.

    A table has at most 200 rows, of which the first 20 are unfolded. A result of ``cam`` begins
    with its picture.

    Args:
        result: of one of the types that ``text`` takes.

    Raises:
        TypeError: no view is registered for the type.
    """
    from hookscope.views.text.text_table import NOTEBOOK

    view: Callable[..., list[Text]] = text
    pictures: list[str] = []
    if isinstance(result, Recording) and result.metadata.get("command") == "cam":
        from hookscope.stores.captures.capture_arrays import InMemory
        from hookscope.stores.captures.capture_file import CaptureFile
        from hookscope.views.text.cam import cam_lines as view

        source = result.reader() if isinstance(result, InMemory) else result
        pictures = [_cam_picture(source)] if isinstance(source, CaptureFile) else []
    lines = (line.plain for line in view(result, NOTEBOOK))
    return "\n".join(["<div>", *pictures, *lines, "</div>"])


def _cam_picture(result: CaptureFile) -> str:
    """The picture of a result of ``cam``, which is part of the HTML."""
    import io
    from base64 import b64encode

    from hookscope.views.images.cam_sheet import OverlayStyle, paint, sheet_of

    stream = io.BytesIO()
    paint(sheet_of(result, OverlayStyle())).save(stream, "PNG")
    data = b64encode(stream.getvalue()).decode()
    return f'<img alt="cam" style="max-width:100%" src="data:image/png;base64,{data}">'


def result_columns(command: str) -> tuple[Column, ...]:
    """Return the columns by which the table of a command can be sorted; empty if they vary.

    Example:
        >>> [column.title for column in result_columns("grads")][-3:]
        ['std', 'grad/weight', 'note']
    """
    from hookscope.views.text.table import NOTE

    if command == "tree":
        from hookscope.views.text.tree import tree_columns
        from hookscope.views.text.weight_tree import COLUMNS

        return (*tree_columns(ran=True, sources=True), *COLUMNS, NOTE)
    if command in ("ablate", "sweep"):
        from hookscope.views.text.sweep import possible_columns

        return (*possible_columns(), NOTE)
    if command == "extract":
        from hookscope.views.text.extract import EXTRACTION_COLUMNS, STATISTICS_COLUMNS

        return (*EXTRACTION_COLUMNS, *STATISTICS_COLUMNS, NOTE)
    others = ("attribute", "cam", "gradcheck", "lens", "models")
    if command not in ("capture", "diff", "grads", "step", "trace", *others):
        return ()
    file = "attribution" if command == "attribute" else command
    columns: tuple[Column, ...] = import_module(f"hookscope.views.text.{file}").COLUMNS
    if command == "diff":  # its other tables
        kinds = (
            import_module(f"hookscope.views.text.{kind}_diff")
            for kind in ("run", "weight", "features")
        )
        columns = (*columns, *(column for kind in kinds for column in kind.COLUMNS))
    without_notes = ("attribute", "lens", "models", "trace")
    return columns if command in without_notes else (*columns, NOTE)


@text.register(Ablation)
def _(result: Ablation, options: TextOptions) -> list[Text]:
    from hookscope.views.text.ablate import ablation_lines

    return ablation_lines(result, options)


@document.register(Ablation)
def _(result: Ablation, file: str | None = None) -> dict[str, Any]:
    return documents.document("ablate", {**result.to_json(), "file": file})


@text.register(Attribution)
def _(result: Attribution, options: TextOptions) -> list[Text]:
    from hookscope.views.text.attribution import attribution_lines

    return attribution_lines(result, options)


@document.register(Attribution)
def _(result: Attribution, file: str | None = None) -> dict[str, Any]:
    return documents.document("attribute", {**result.to_json(), "file": file})


@text.register(Diff)
def _(result: Diff, options: TextOptions) -> list[Text]:
    from hookscope.views.text.diff import diff_lines

    return diff_lines(result, options)


@document.register(Diff)
def _(result: Diff, file: str | None = None) -> dict[str, Any]:
    return documents.document("diff", result.to_json())


@text.register(ExportedRun)
def _(result: ExportedRun, options: TextOptions) -> list[Text]:
    from hookscope.views.text.training_run import exported_run_lines

    return exported_run_lines(result, options)


@text.register(Features)
def _(result: Features, options: TextOptions) -> list[Text]:
    from hookscope.views.text.extract import features_lines

    return features_lines(result, options)


@document.register(Features)
def _(result: Features, file: str | None = None) -> dict[str, Any]:
    return documents.features_document(result)


@text.register(FeaturesDiff)
def _(result: FeaturesDiff, options: TextOptions) -> list[Text]:
    from hookscope.views.text.features_diff import features_diff_lines

    return features_diff_lines(result, options)


@document.register(FeaturesDiff)
def _(result: FeaturesDiff, file: str | None = None) -> dict[str, Any]:
    return documents.document("diff", result.to_json())


@text.register(ForwardError)
def _(result: ForwardError, options: TextOptions) -> list[Text]:
    from hookscope.views.text.forward_failure import failure_lines

    return failure_lines(result, options)


@text.register(GradCheck)
def _(result: GradCheck, options: TextOptions) -> list[Text]:
    from hookscope.views.text.gradcheck import gradcheck_lines

    return gradcheck_lines(result, options)


@document.register(GradCheck)
def _(result: GradCheck, file: str | None = None) -> dict[str, Any]:
    return documents.document("gradcheck", result.to_json())


@text.register(Health)
def _(result: Health, options: TextOptions) -> list[Text]:
    from hookscope.views.text.check import check_lines

    return check_lines(result, options)


@document.register(Health)
def _(result: Health, file: str | None = None) -> dict[str, Any]:
    return documents.document("check", result.to_json())


@text.register(KeyCurves)
def _(result: KeyCurves, options: TextOptions) -> list[Text]:
    from hookscope.views.text.training_run import curve_lines

    return curve_lines(result, options)


@text.register(LayerProbes)
def _(result: LayerProbes, options: TextOptions) -> list[Text]:
    from hookscope.views.text.probe import probe_lines

    return probe_lines(result, options)


@document.register(LayerProbes)
def _(result: LayerProbes, file: str | None = None) -> dict[str, Any]:
    return documents.document("probe", {**result.to_json(), "file": file})


@text.register(LayerSimilarity)
def _(result: LayerSimilarity, options: TextOptions) -> list[Text]:
    from hookscope.views.text.similar import similarity_lines

    return similarity_lines(result, options)


@document.register(LayerSimilarity)
def _(result: LayerSimilarity, file: str | None = None) -> dict[str, Any]:
    return documents.document("similar", {**result.to_json(), "file": file})


@text.register(Lens)
def _(result: Lens, options: TextOptions) -> list[Text]:
    from hookscope.views.text.lens import lens_lines

    return lens_lines(result, options)


@document.register(Lens)
def _(result: Lens, file: str | None = None) -> dict[str, Any]:
    return documents.document("lens", {**result.to_json(), "file": file})


@text.register(ModuleTree)
def _(result: ModuleTree, options: TextOptions) -> list[Text]:
    from hookscope.views.text.tree import tree_lines

    return tree_lines(result, options)


@document.register(ModuleTree)
def _(result: ModuleTree, file: str | None = None) -> dict[str, Any]:
    return documents.tree_document(result)


@text.register(Recording)
def _(result: Recording, options: TextOptions) -> list[Text]:
    """The summary of the command that made the recording, which its metadata names."""
    command = result.metadata.get("command")
    if command == "grads":
        from hookscope.views.text.grads import grads_lines

        return grads_lines(result, options)
    if command == "step":
        from hookscope.views.text.step import step_lines

        return step_lines(result, options)
    if command == "statistics":
        from hookscope.views.text.extract import statistics_lines

        return statistics_lines(result, options)
    from hookscope.views.text.capture import capture_lines

    return capture_lines(result, options)


@document.register(Recording)
def _(result: Recording, file: str | None = None) -> dict[str, Any]:
    return documents.capture_document(result, file)


@text.register(RunDiff)
def _(result: RunDiff, options: TextOptions) -> list[Text]:
    from hookscope.views.text.run_diff import run_diff_lines

    return run_diff_lines(result, options)


@document.register(RunDiff)
def _(result: RunDiff, file: str | None = None) -> dict[str, Any]:
    return documents.document("diff", result.to_json())


@text.register(RunDiffs)
def _(result: RunDiffs, options: TextOptions) -> list[Text]:
    from hookscope.views.text.run_diff import run_diffs_lines

    return run_diffs_lines(result, options)


@document.register(RunDiffs)
def _(result: RunDiffs, file: str | None = None) -> dict[str, Any]:
    return documents.document("diff", result.to_json())


@text.register(RunList)
def _(result: RunList, options: TextOptions) -> list[Text]:
    from hookscope.views.text.run_list import run_list_lines

    return run_list_lines(result, options)


@document.register(RunList)
def _(result: RunList, file: str | None = None) -> dict[str, Any]:
    return documents.run_list_document(result)


@text.register(RunSummary)
def _(result: RunSummary, options: TextOptions) -> list[Text]:
    from hookscope.views.text.training_run import run_lines

    return run_lines(result, options)


@document.register(RunSummary)
def _(result: RunSummary, file: str | None = None) -> dict[str, Any]:
    return documents.run_document(result)


@text.register(TensorView)
def _(result: TensorView, options: TextOptions) -> list[Text]:
    from hookscope.views.text.show import tensor_lines

    return tensor_lines(result, options)


@text.register(Sweep)
def _(result: Sweep, options: TextOptions) -> list[Text]:
    from hookscope.views.text.sweep import sweep_lines

    return sweep_lines(result, options)


@document.register(Sweep)
def _(result: Sweep, file: str | None = None) -> dict[str, Any]:
    return documents.document("sweep", {**result.to_json(), "file": file})


@text.register(TopInputs)
def _(result: TopInputs, options: TextOptions) -> list[Text]:
    from hookscope.views.text.top import top_lines

    return top_lines(result, options)


@document.register(TopInputs)
def _(result: TopInputs, file: str | None = None) -> dict[str, Any]:
    return documents.document("top", {**result.to_json(), "file": file})


@text.register(Trace)
def _(result: Trace, options: TextOptions) -> list[Text]:
    from hookscope.views.text.trace import trace_lines

    return trace_lines(result, options)


@document.register(Trace)
def _(result: Trace, file: str | None = None) -> dict[str, Any]:
    return documents.trace_document(result)


@text.register(TrainingRun)
def _(result: TrainingRun, options: TextOptions) -> list[Text]:
    return text(RunSummary.of(result), options)


@document.register(TrainingRun)
def _(result: TrainingRun, file: str | None = None) -> dict[str, Any]:
    return documents.run_document(RunSummary.of(result))


@text.register(Verification)
def _(result: Verification, options: TextOptions) -> list[Text]:
    from hookscope.views.text.extract import verification_lines

    return verification_lines(result, options)


@document.register(Verification)
def _(result: Verification, file: str | None = None) -> dict[str, Any]:
    return documents.document("verify", result.to_json())


@text.register(WeightSet)
def _(result: WeightSet, options: TextOptions) -> list[Text]:
    from hookscope.views.text.weights import weight_table_lines

    return weight_table_lines(result, options)


@document.register(WeightSet)
def _(result: WeightSet, file: str | None = None) -> dict[str, Any]:
    return documents.weights_document(result)


@text.register(WeightDiff)
def _(result: WeightDiff, options: TextOptions) -> list[Text]:
    from hookscope.views.text.weight_diff import weight_diff_lines

    return weight_diff_lines(result, options)


@document.register(WeightDiff)
def _(result: WeightDiff, file: str | None = None) -> dict[str, Any]:
    return documents.document("diff", result.to_json())


@text.register(WeightHashes)
def _(result: WeightHashes, options: TextOptions) -> list[Text]:
    from hookscope.views.text.weight_tree import hash_lines

    return hash_lines(result, options)


@document.register(WeightHashes)
def _(result: WeightHashes, file: str | None = None) -> dict[str, Any]:
    return documents.document("tree", result.to_json())


@text.register(WeightTree)
def _(result: WeightTree, options: TextOptions) -> list[Text]:
    from hookscope.views.text.weight_tree import weight_tree_lines

    return weight_tree_lines(result, options)


@document.register(WeightTree)
def _(result: WeightTree, file: str | None = None) -> dict[str, Any]:
    from hookscope.views.text.weight_tree import weight_tree_document

    return weight_tree_document(result)
