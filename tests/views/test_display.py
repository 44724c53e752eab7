"""Every result is printed by the view of its type, and a view is imported when it is needed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from hookscope.hooks.capture import Capture
from hookscope.results.health import Health
from hookscope.stores.captures.capture_file import CaptureFile
from hookscope.views import display
from hookscope.views.ablation import ablation_lines
from hookscope.views.capture import capture_lines
from hookscope.views.capture_diff import diff_lines
from hookscope.views.grad_check import gradcheck_lines
from hookscope.views.grads import grads_lines
from hookscope.views.health import check_lines
from hookscope.views.module_tree import tree_lines
from hookscope.views.step import step_lines
from hookscope.views.stored_tensors import tensor_lines
from hookscope.views.text.text_table import PIPE, TextOptions
from hookscope.views.trace import trace_lines
from tests.views.text import samples


def of_command(command: str, make: Callable[[], Capture]) -> Capture:
    capture = make()
    capture.metadata["command"] = command
    return capture


def healthy() -> Health:
    return Health((), (), {}, {}, {})


RESULTS: dict[str, tuple[Callable[[], Any], Callable[..., Any]]] = {
    "ablate": (samples.ablation, ablation_lines),
    "capture": (samples.outputs, capture_lines),
    "check": (healthy, check_lines),
    "diff": (samples.compared, diff_lines),
    "gradcheck": (samples.checked, gradcheck_lines),
    "grads": (lambda: of_command("grads", samples.gradients), grads_lines),
    "step": (lambda: of_command("step", samples.stepped), step_lines),
    "trace": (samples.trace, trace_lines),
    "tree": (samples.small_tree, tree_lines),
}


@pytest.mark.parametrize("command", RESULTS)
@pytest.mark.parametrize("options", [PIPE, TextOptions(60, ascii=True, verbose=True)])
def test_a_result_has_the_text_of_its_command(command: str, options: TextOptions) -> None:
    make, view = RESULTS[command]
    result = make()
    assert display.text(result, options) == view(result, options) != []


@pytest.mark.parametrize("command", RESULTS)
def test_a_result_has_a_document_of_its_command(command: str) -> None:
    document = display.document(RESULTS[command][0](), "a.file")
    assert list(document)[:2] == ["schema", "command"]
    assert document["command"] == command
    assert document.get("file", "a.file") == "a.file"


def test_a_view_of_a_tensor_has_a_text() -> None:
    view = samples.looked()
    assert display.text(view, PIPE) == tensor_lines(view, PIPE)


def test_subclasses_of_a_recording_share_its_view() -> None:
    for type in (Capture, CaptureFile):
        assert display.text.dispatch(type) is display.text.dispatch(Capture)
        assert display.document.dispatch(type) is display.document.dispatch(Capture)


@pytest.mark.parametrize("function", [lambda x: display.text(x, PIPE), display.document])
def test_a_type_without_a_view_is_a_type_error(function: Callable[[object], Any]) -> None:
    with pytest.raises(TypeError, match="list has no view"):
        function([])


def test_a_document_loads_no_view_and_no_rich() -> None:
    code = (
        "import sys\n"
        "from hookscope.results.health import Health\n"
        "from hookscope.views import display\n"
        "display.document(Health((), (), {}, {}, {}))\n"
        "print(*sorted(m for m in sys.modules if m in ('rich', 'torch')"
        " or m.startswith('hookscope.views.text.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["hookscope.views.text.documents"]
