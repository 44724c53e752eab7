"""A failed forward pass, as plain data."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from hookscope.files.words import shape_text
from hookscope.specs.patterns import ROOT


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


def _list(tensors: list[TensorInfo] | tuple[TensorInfo, ...]) -> str:
    # The device is shown only if the tensors are on several devices.
    several = len({tensor.device for tensor in tensors}) > 1
    texts = []
    for tensor in tensors:
        device = f" on {tensor.device}" if several else ""
        texts.append(f"{tensor.name} {tensor.size} {tensor.dtype}{device}".strip())
    return ", ".join(texts)
