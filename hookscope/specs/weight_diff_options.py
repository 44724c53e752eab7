"""The options of ``diff`` for weights, checked without torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hookscope.errors import RequestError
from hookscope.specs.request import ModelRequest
from hookscope.specs.run_options import RunOptions
from hookscope.specs.tolerances import ExactDiffOptions
from hookscope.specs.weight_options import spell_option

# The options of a comparison of two files of weights.
WEIGHT_OPTIONS = ("layers", "atol", "rtol", "strict", "rename")
# Opens a side that is a pickled model, or an exported program.
TRUST = "trust"
# Further ones if one side is a model.
INITIAL_OPTIONS = ("weights", "partial", "model_args", "seed", TRUST)
_RUN_MODELS = (
    "Leave it out. To compare what a model computes with each of two files: hookscope diff MODEL"
    " MODEL --weights A --weights B"
)


@dataclass(frozen=True)
class WeightDiffOptions(ExactDiffOptions):
    """How two sets of weights are compared.

    The patterns are of names of tensors, or of modules that contain them. With ``strict``, another
    dtype is a difference, even with the same values.
    """

    rename: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None


@dataclass(frozen=True)
class InitialWeights:
    """A model whose values are compared with weights."""

    model: Any
    side: int
    weights: Any = ()
    partial: bool = False
    model_args: Any = None
    seed: int = 0
    trust: bool = False

    def __post_init__(self) -> None:
        for name in ("weights", "model_args"):
            value = getattr(self, name)
            if isinstance(value, list | tuple) and len(value) > 1:
                raise RequestError(
                    f"{spell_option(name)} is given twice, but only {'AB'[self.side]} is a model.",
                    "Give it once.",
                )
        RunOptions(self.seed)
        self.request  # noqa: B018 - computed for its checks

    @cached_property
    def request(self) -> ModelRequest:
        """How the model is loaded."""
        weights, model_args = self.weights, self.model_args
        if isinstance(weights, list | tuple):
            weights = weights[0] if weights else "random"
        if isinstance(model_args, list | tuple):
            model_args = model_args[0] if model_args else None
        return ModelRequest(
            self.model,
            weights=weights,
            partial=self.partial,
            model_args=model_args,
            trust=self.trust,
        )


def check_weight_diff_options(chosen: Iterable[str], with_model: bool) -> None:
    """Raise RequestError if an option of ``diff`` is chosen that weights have no use for."""
    for name in chosen:
        if name in (*WEIGHT_OPTIONS, TRUST) or (with_model and name in INITIAL_OPTIONS):
            continue
        option = spell_option(name)
        if name == "equal_nan":
            message, hint = "is not for weights", "NaN in both is equal in weights. Leave it out."
        elif name == "map":
            message, hint = "is not for weights", "To replace prefixes of names, use --rename."
        elif name in INITIAL_OPTIONS:
            message, hint = "is for models, and A and B contain weights alone", _RUN_MODELS
        else:
            message, hint = (
                "is for models that run, and weights are compared as stored",
                _RUN_MODELS,
            )
        raise RequestError(f"{option} {message}.", hint)
