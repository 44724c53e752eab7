"""The options of ``tree``, and those of weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hookscope.errors import RequestError
from hookscope.specs.request import ModelRequest, Request, chosen_options
from hookscope.specs.run_options import RunOptions
from hookscope.specs.settings import setting, spell_option
from hookscope.specs.tolerances import ExactDiffOptions


@dataclass(frozen=True)
class TreeOptions:
    """What ``tree`` shows."""

    section = "Layers"

    shapes: bool = setting(
        False,
        "Show output shapes, call counts and FLOPs.",
        python="add output shapes, calls and FLOPs, from a pass on the meta device, or from a real"
        " run if the model cannot run there. The shapes are those of the first call; a note names"
        " those of later calls that differ.",
    )
    receptive: bool = setting(
        False,
        "Show receptive fields: size, stride and first centre, in positions of the input.",
        python="add the receptive field of each module's output: the largest number of positions"
        " of the input that a unit depends on, the positions from a unit to the next, and the"
        " centre of the first unit's field, for each side of an image, a volume or a signal."
        " Without ``shape``, the input is enlarged until no field is cut, as far as the model takes"
        " that.",
    )
    hash: bool = setting(
        False,
        "Print two hashes instead: of names and shapes, and of all weights.",
        section="Output",
        python="return the hashes of the architecture and of the weights instead. A model is loaded"
        " with its initial values.",
    )

    def check_request(self, request: Request) -> None:
        """Raise RequestError if ``hash`` is combined with what selects or runs modules."""
        if self.hash:
            shown = {
                "shapes": self.shapes,
                "receptive": self.receptive,
                "shape": request.input.shape,
            }
            chosen = [name for name in shown if shown[name]]
            check_hash_options([*chosen_options(request.layers), *chosen])


@dataclass(frozen=True)
class WeightTrust:
    """Whether a pickled model may run its code to give its weights."""

    section = "Weights"

    trust: bool = setting(False, "Build a pickled model, which runs its code.", in_files=False)


def check_hash_options(chosen: Iterable[str]) -> None:
    """Raise RequestError if an option is chosen together with ``hash`` that selects names."""
    for name in chosen:
        if name in ("layers", "types", "depth", "leaves", "shapes", "receptive", "shape"):
            raise RequestError(
                f"--hash is of all weights, and {spell_option(name)} cannot be combined with it.",
                "Leave out one of them.",
            )


@dataclass(frozen=True)
class WeightDiffOptions(ExactDiffOptions):
    """How two sets of weights are compared; with ``strict``, another dtype is a difference."""

    rename: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None


@dataclass(frozen=True)
class InitialWeights:
    """How a model is loaded whose values are compared with weights."""

    weights: Any = ()
    partial: bool = False
    model_args: Any = None
    seed: int = 0
    trust: bool = False

    def __post_init__(self) -> None:
        RunOptions(self.seed)

    def request_of(self, model: Any, side: int) -> ModelRequest:
        """Return how the model is loaded, which is A (0) or B (1)."""
        for name in ("weights", "model_args"):
            value = getattr(self, name)
            if isinstance(value, list | tuple) and len(value) > 1:
                raise RequestError(
                    f"{spell_option(name)} is given twice, but only {'AB'[side]} is a model.",
                    "Give it once.",
                )
        weights, model_args = self.weights, self.model_args
        if isinstance(weights, list | tuple):
            weights = weights[0] if weights else "random"
        if isinstance(model_args, list | tuple):
            model_args = model_args[0] if model_args else None
        return ModelRequest(
            model,
            weights=weights,
            partial=self.partial,
            model_args=model_args,
            trust=self.trust,
        )
