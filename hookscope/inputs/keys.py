"""Which of the tensors in a file a word means."""

from __future__ import annotations

from collections.abc import Sequence

from hookscope.errors import InputError
from hookscope.specs.input import InputWord
from hookscope.specs.suggest import did_you_mean

_SHOWN = 5


def one_of(word: InputWord, names: Sequence[str]) -> str:
    """Return the name that a word asks for, or the only one there is.

    Raises:
        InputError: there is none of that name, or several to choose from.
    """
    if word.rest in names:
        return word.rest
    if not word.rest and len(names) == 1:
        return names[0]
    listing = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    holds = f"It holds {listing}." if names else "It holds nothing."
    if word.rest:
        raise InputError(
            f"There is no {word.rest!r} in {word.path!r}.",
            f"{did_you_mean(word.rest, names)} {holds}".strip(),
        )
    raise InputError(
        f"{word.path!r} holds {len(names)} tensors: which one to take is not clear.",
        f"{holds} Write {word.path}:{names[0] if names else 'KEY'} for one of them.",
    )
