"""Which kind of tensor a series of the table ``layers`` measures, and its place in a step."""

from __future__ import annotations

from collections.abc import Iterable

from hookscope.stores.runs.series import Series

OUTPUT, OUTPUT_GRAD, PARAMETER, PARAMETER_GRAD, UPDATE, WHOLE = (
    *("output", "output.grad", "parameter", "parameter.grad", "update"),
    "whole",
)


def kind_of(series: Series) -> str:
    """Return the kind of a series: of an output, a parameter, a gradient, an update or the whole.

    >>> kind_of(Series("net", "fc/output.0.grad", "norm")), kind_of(Series("net", "fc/weight", ""))
    ('output.grad', 'parameter')
    >>> kind_of(Series("net", "gradients", "norm"))
    'whole'
    """
    if not series.module:
        return WHOLE
    what = series.what
    if what == "output" or what.startswith("output."):
        return OUTPUT_GRAD if what.endswith(".grad") else OUTPUT
    if what.endswith(".grad"):
        return PARAMETER_GRAD
    return UPDATE if what.endswith(".update") else PARAMETER


class ExecutionOrder:
    """The place of each layer in a step: that of its first output.

    A layer without an output, such as one that is called without hooks, has the place of the
    nearest module around it that has one.

    Example:
        >>> order = ExecutionOrder([Series("net", f"{x}/output", "rms") for x in ("a.b", "a", ".")])
        >>> [order.place(Series("net", f"{x}/weight", "norm")) for x in ("a.b", "a.c", "d")]
        [0, 1, 2]
    """

    def __init__(self, series: Iterable[Series]) -> None:
        self._places: dict[tuple[str, str], int] = {}
        for one in series:
            if kind_of(one) == OUTPUT:
                self._places.setdefault((one.model, one.module), len(self._places))

    def place(self, series: Series) -> int:
        """Return the place of the layer of a series, from 0."""
        module = series.module
        while (series.model, module) not in self._places:
            if module in ("", "."):
                return len(self._places)
            module = module.rpartition(".")[0] or "."
        return self._places[series.model, module]
