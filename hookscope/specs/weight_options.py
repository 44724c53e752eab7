"""Options that apply to models and not to weights, refused in one way by all commands."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from hookscope.errors import RequestError

# Of options that are given several times.
_SPELLINGS = {"types": "type", "layers": "layer", "model_args": "model-arg"}


# The options that both have; ``trust`` is for files that carry pickles.
WEIGHT_OPTIONS = ("layers", "depth", "leaves", "trust", "hash")


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
