"""The options of ``tree`` and of weights, and those that apply to models and not to weights.

The last are refused in one way by all commands.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from hookscope.errors import RequestError
from hookscope.specs.settings import setting

# Of options that are given several times.
_SPELLINGS = {"types": "type", "layers": "layer", "model_args": "model-arg"}


# The options that both have; ``trust`` is for files that carry pickles.
WEIGHT_OPTIONS = ("layers", "depth", "leaves", "trust", "hash")


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
