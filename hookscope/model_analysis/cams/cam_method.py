"""The interface of the methods of ``cam``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from hookscope.model_analysis.cams.cam_input import CamInput
from hookscope.model_analysis.cams.layer_scan import LayerCandidate
from hookscope.results.records import Coverage


@dataclass
class CamResult:
    """The maps of a method, and the run that they come from."""

    maps: Tensor
    output: Any
    coverage: Coverage = field(default_factory=Coverage)
    candidate: LayerCandidate | None = None
    attribution: Tensor | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


class CamMethod(ABC):
    """A method that explains the score of a class by a map over each image."""

    @abstractmethod
    def attribute(self, inputs: CamInput) -> CamResult:
        """Run the model as often as the method needs, and return the maps.

        Raises:
            RequestError: the model has no layer or score that the method could use.
            LossError, ForwardError, CheckFailed: as for ``grads``.
        """
