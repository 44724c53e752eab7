"""The options of ``tree`` and of weights, and those that apply to models and not to weights.

The last are refused in one way by all commands.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hookscope.errors import RequestError
from hookscope.specs.request import ModelRequest
from hookscope.specs.run_options import RunOptions
from hookscope.specs.settings import setting
from hookscope.specs.tolerances import ExactDiffOptions

# Of options that are given several times.
_SPELLINGS = {"types": "type", "layers": "layer", "model_args": "model-arg"}

# The options that both have; ``trust`` is for files that carry pickles.
TREE_WEIGHT_OPTIONS = ("layers", "depth", "leaves", "trust", "hash")

# The options of a comparison of two files of weights.
DIFF_WEIGHT_OPTIONS = ("layers", "atol", "rtol", "strict", "rename")
# Opens a side that is a pickled model, or an exported program.
TRUST = "trust"
# Further ones if one side is a model.
INITIAL_OPTIONS = ("weights", "partial", "model_args", "seed", TRUST)
_RUN_MODELS = (
    "Leave it out. To compare what a model computes with each of two files: hookscope diff MODEL"
    " MODEL --weights A --weights B"
)


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
    hash: bool = setting(
        False,
        "Print two hashes instead: of names and shapes, and of all weights.",
        section="Output",
        python="return the hashes of the architecture and of the weights instead. A model is loaded"
        " with its initial values.",
    )


@dataclass(frozen=True)
class WeightTrust:
    """Whether a pickled model may run its code to give its weights."""

    section = "Weights"

    trust: bool = setting(False, "Build a pickled model, which runs its code.", in_files=False)


def spell_option(name: str) -> str:
    """Return an option as it is typed, by the name of its keyword.

    Example:
        >>> spell_option("model_args"), spell_option("types")
        ('--model-arg', '--type')
    """
    return f"--{_SPELLINGS.get(name, name).replace('_', '-')}"


def check_model_options(chosen: Iterable[str], accepted: Collection[str], label: object) -> None:
    """Raise RequestError if an option is chosen that weights have no use for.

    Example:
        >>> check_model_options(["depth"], ["depth"], "model.safetensors")
        >>> check_model_options(["shapes"], ["depth"], "model.safetensors")
        Traceback (most recent call last):
        hookscope.errors.RequestError: --shapes is for models, and model.safetensors has only wei...
    """
    for name in chosen:
        if name not in accepted:
            options = ", ".join(map(spell_option, accepted))
            raise RequestError(
                f"{spell_option(name)} is for models, and {label} has only weights.",
                f"Leave it out. Weights take {options}." if options else "Leave it out.",
            )


def check_hash_options(chosen: Iterable[str]) -> None:
    """Raise RequestError if an option is chosen together with ``hash`` that selects names."""
    for name in chosen:
        if name in ("layers", "types", "depth", "leaves", "shapes", "shape"):
            raise RequestError(
                f"--hash is of all weights, and {spell_option(name)} cannot be combined with it.",
                "Leave out one of them.",
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
        if name in (*DIFF_WEIGHT_OPTIONS, TRUST) or (with_model and name in INITIAL_OPTIONS):
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
