"""A failed forward or backward pass, as plain data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hookscope.files.words import shape_text
from hookscope.specs.patterns import ROOT

# The kinds of failed backward passes, and the messages of PyTorch that tell them. An error of
# hookscope tells it by its attribute ``failure_kind``.
IN_PLACE, FREED, NO_GRADIENT = "in-place", "freed", "no-gradient"
NAN, SHAPE, DDP = "nan", "shape", "ddp"
_MESSAGES = {
    "modified by an inplace operation": IN_PLACE,
    "backward through the graph a second time": FREED,
    "does not require grad and does not have a grad_fn": NO_GRADIENT,
    "returned nan values in its": NAN,
    "returned an invalid gradient at index": SHAPE,
    "returned an incorrect number of gradients": SHAPE,
    "expected Variable or None (got": SHAPE,
    "Expected to have finished reduction in the prior iteration": DDP,
    "Expected to mark a variable ready only once": DDP,
}


@dataclass(frozen=True)
class TensorInfo:
    """Name, shape, dtype and device of a tensor, without its values."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    device: str

    @property
    def size(self) -> str:
        """The shape as text: ``1x676``, or ``scalar``."""
        return shape_text(self.shape)


@dataclass(frozen=True)
class LayerCall:
    """One call of a layer.

    ``call`` counts from 1, ``arguments`` is the module's ``extra_repr()``. A call that did not
    return has no ``outputs``.
    """

    layer: str
    type: str
    call: int
    arguments: str = ""
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()

    @property
    def name(self) -> str:
        """The layer's name, with the call number from the second call on."""
        return self.layer if self.call < 2 else f"{self.layer}:{self.call}"


@dataclass(frozen=True)
class ForwardFailure:
    """A forward pass that failed.

    Attributes:
        failed: the innermost call that was running; its number is 0 if unknown.
        ran: the calls that had returned, in that order.
        complete: whether ``ran`` has the calls of all layers, not only of the selected ones.
        variables: the tensors that the failing line names.
        expected: what the layer expects, and how its input differs; empty if unknown.
        fixes: changes that would help, the best first. Each says what was checked.
        file: the user's file with the failing call; empty if there is none.
        line: line number in the file, from 1.
        function: the function that contains the line.
        source: the text of the line.
    """

    failed: LayerCall
    ran: tuple[LayerCall, ...] = ()
    complete: bool = False
    variables: tuple[TensorInfo, ...] = ()
    expected: str = ""
    fixes: tuple[str, ...] = ()
    file: str = ""
    line: int = 0
    function: str = ""
    source: str = ""

    @property
    def where(self) -> str:
        """The name of the failed layer, for a sentence."""
        return "the model itself" if self.failed.layer == ROOT else self.failed.name

    def explanation(self) -> list[str]:
        """Return a line each for the failing line, the inputs, what was expected and the fixes."""
        lines = []
        if self.file:
            brief = re.split(r"(?:site|dist)-packages[/\\\\]", self.file)[-1]
            lines.append(f"Line: {brief}:{self.line}, in {self.function}: {self.source}")
        if self.failed.inputs:
            owner = self.where if self.failed.layer == ROOT else f"layer {self.where}"
            lines.append(f"Input of {owner}: {_list(self.failed.inputs)}.")
        inputs = {(v.shape, v.dtype, v.device) for v in self.failed.inputs}
        if others := [v for v in self.variables if (v.shape, v.dtype, v.device) not in inputs]:
            lines.append(f"In that line: {_list(others)}.")
        if self.expected:
            lines.append(f"Expected: {self.expected}")
        lines += [f"{'Or' if i else 'Fix'}: {fix}" for i, fix in enumerate(self.fixes)]
        return lines

    def to_json(self) -> dict[str, Any]:
        """Return the failure as a plain dict."""
        return asdict(self)


def kind_of_failure(error: BaseException) -> str:
    """Return the kind of a failed backward pass; empty for any other error.

    >>> kind_of_failure(RuntimeError("Trying to backward through the graph a second time (or"))
    'freed'
    """
    if kind := getattr(error, "failure_kind", ""):
        return str(kind)
    text = " ".join(str(error).split())
    return next((kind for message, kind in _MESSAGES.items() if message in text), "")


@dataclass(frozen=True)
class CodeLine:
    """A line of a user's file, the function that contains it, and its text."""

    file: str
    line: int
    function: str
    source: str


@dataclass(frozen=True)
class BackwardFailure:
    """A backward pass that failed.

    Attributes:
        kind: ``in-place``, ``freed``, ``no-gradient``, ``nan``, ``shape`` or ``ddp``.
        story: what happened, a sentence each, in the order in which it happened.
        lines: the lines of code that the story names.
        tried: changes with which the backward pass ran.
        suggestions: changes that were not tried.
        note: how to learn more; empty if nothing is missing.
    """

    kind: str
    story: tuple[str, ...]
    lines: tuple[CodeLine, ...] = ()
    tried: tuple[str, ...] = ()
    suggestions: tuple[str, ...] = ()
    note: str = ""

    def explanation(self) -> list[str]:
        """Return a line for each sentence."""
        tried = [f"Tried: {text}" for text in self.tried]
        suggested = [f"Suggestion: {text}" for text in self.suggestions]
        return [*self.story, *tried, *suggested, *filter(None, [self.note])]

    def to_json(self) -> dict[str, Any]:
        """Return the failure as a plain dict."""
        return asdict(self)


def backward_failure(data: Mapping[str, Any]) -> BackwardFailure:
    """Return the failure that ``to_json`` made a dict of."""
    lines = tuple(CodeLine(**line) for line in data["lines"])
    texts = {name: tuple(data[name]) for name in ("story", "tried", "suggestions")}
    return BackwardFailure(data["kind"], lines=lines, note=data.get("note", ""), **texts)


def _list(tensors: list[TensorInfo] | tuple[TensorInfo, ...]) -> str:
    # The device is shown only if the tensors are on several devices.
    several = len({tensor.device for tensor in tensors}) > 1
    texts = []
    for tensor in tensors:
        device = f" on {tensor.device}" if several else ""
        texts.append(f"{tensor.name} {tensor.size} {tensor.dtype}{device}".strip())
    return ", ".join(texts)
