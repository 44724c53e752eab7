"""Whether a recorded run ends before the model returns, and after which calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hookscope.execution.prepare import Prepared
from hookscope.execution.prompt_tokens import prompt_tokens
from hookscope.execution.trial_pass import CallOrder
from hookscope.hooks.layers import Layer
from hookscope.results.records import Coverage
from hookscope.specs.command_options import CaptureOptions
from hookscope.specs.early_stop_checks import may_stop
from hookscope.specs.patterns import ROOT
from hookscope.specs.request import Request


@dataclass(frozen=True)
class StopPoint:
    """Where a run ends: after the last calls of the selected layers."""

    order: CallOrder | None

    def calls(self, layers: Sequence[Layer]) -> dict[Layer, int]:
        """Return the number of the last call of each layer that runs.

        All have to return, not only the last, in case the run differs from the trial.
        """
        if self.order is None:
            return dict.fromkeys(layers, 1)
        known = self.order.calls
        return {layer: known[layer.name] for layer in layers if layer.name in known}

    def describe(self, coverage: Coverage, last: str) -> Coverage:
        """Return the coverage of a run that ended after the layer ``last``."""
        later = () if self.order is None else self.order.later
        return replace(
            coverage,
            stopped_after=last,
            not_run=later,
            calls_complete=self.order is not None and self.order.is_certain,
        )


def wants_stop(request: Request, options: CaptureOptions, prepared: Prepared) -> bool | None:
    """Return whether the run is to end early; None if it depends on what the run would do.

    Unless ``options.stop`` decides, it is not if something needs the output of the model: an
    option, the table of classes, or the prediction of the next token.
    """
    if any(layer.name == ROOT for layer in prepared.layers):
        return False  # there is nothing after it
    if options.stop is not None:
        return options.stop
    shows_output = prepared.loaded.categories or prompt_tokens(prepared.loaded, prepared.value)
    return None if may_stop(request, options) and not shows_output else False


def find_stop_point(stop: bool | None, order: CallOrder | None) -> StopPoint | None:
    """Return where the run ends; None if the whole model runs."""
    known = order is not None and order.later and order.is_certain
    if stop or (stop is None and known):
        return StopPoint(order)
    return None
