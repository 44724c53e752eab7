"""The words behind ``--edit`` and ``--grad-edit``: ``GLOB=OP:ARG`` read into plain data.

Torch-free, so that a wrong word is reported before anything heavy is imported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from hookscope.errors import EditError
from hookscope.specs.choices import GRADIENT_HOOKS
from hookscope.specs.edit_operations import GRADIENTS, VALUES, Formula
from hookscope.specs.patterns import compile_pattern
from hookscope.specs.record_kinds import INPUT, OUTPUT, OUTPUT_GRAD
from hookscope.specs.suggest import did_you_mean

# What stands before the equals sign: a glob, then a call, then channels. A last bracket of nothing
# but numbers is channels; to match one character of a set of digits, write {1,2}.
_PLACE = re.compile(r"(.+?)(?::(\d+))?(?:\[([\d,\s-]*)\])?", re.DOTALL)
_RANGE = re.compile(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?")
_MOST = 1 << 20  # channels that one range may name


class Edit(NamedTuple):
    """One edit as it was asked for.

    Attributes:
        word: the whole word as typed, ``conv1[3]=scale:0.5``.
        kind: what is changed: ``output``, ``input`` or ``output.grad``.
        pattern: glob over the names of layers.
        call: the one call of the module that is meant, from 1; None for all.
        channels: the channels that are meant, rising; None for all.
        name: the operation.
        argument: its argument, as its formula reads it.
    """

    word: str
    kind: str
    pattern: str
    call: int | None
    channels: tuple[int, ...] | None
    name: str
    argument: Any

    @property
    def what(self) -> str:
        """The operation as typed, ``scale:0.5``."""
        return self.word.partition("=")[2]


def read_edits(words: str | Iterable[str], *, gradients: bool = False) -> tuple[Edit, ...]:
    """Read edits, in the order given; a lone word need not stand in a list.

    Args:
        words: each ``[input:]GLOB[:CALL][[CHANNELS]]=OP[:ARGUMENT]``.
        gradients: read them as edits of the gradient at a module's output.

    Raises:
        EditError: a word cannot be read, names no operation, or its argument is wrong.
        LayerError: a pattern has a brace without its partner.

    Example:
        >>> [edit] = read_edits("layer3.0.relu:2[3,7,10-12]=scale:0.5")
        >>> edit.pattern, edit.call, edit.channels, edit.name, edit.argument
        ('layer3.0.relu', 2, (3, 7, 10, 11, 12), 'scale', 0.5)
    """
    listed = [words] if isinstance(words, str) else list(words)
    return tuple(_read(word, gradients) for word in listed)


def files_of(words: Iterable[str]) -> list[str]:
    """Return the files that edits of values read.

    >>> files_of(["fc=zero", "fc=scale:2"])
    []
    """
    read = [edit for edit in read_edits(words) if edit.name in ("add", "patch")]
    return [edit.argument[0] if edit.name == "add" else edit.argument for edit in read]


def refuse_idle_comparison(compare: bool, *changes: object) -> None:
    """Raise EditError if a comparison with the unchanged run is asked for and nothing changes."""
    if compare and not any(changes):
        raise EditError(
            "--compare compares with a run without edits and hooks, and there are none.",
            "Add --edit 'LAYER=OPERATION', or leave out --compare.",
        )


def refuse_second_order(penalty: object, grad_edits: object, kinds: Iterable[str]) -> None:
    """Raise EditError if gradients are changed on a way that is going to be differentiated again.

    What the second pass reads of the values that the first one saved goes past the change, so the
    result would not be that of the same hook on the tensor itself.
    """
    hooked = [kind for kind in kinds if kind in GRADIENT_HOOKS]
    if penalty and (grad_edits or hooked):
        given = "--grad-edit" if grad_edits else f"a hook of kind {hooked[0]}"
        raise EditError(
            f"--penalty differentiates gradients again, and {given} would change them on the way.",
            "Leave out one of the two.",
        )


def _read(word: str, gradients: bool) -> Edit:
    flag = "--grad-edit" if gradients else "--edit"
    place, equals, what = str(word).partition("=")
    side = INPUT if place.startswith("input:") else OUTPUT
    match = _PLACE.fullmatch(place.removeprefix("input:"))
    if not equals or not what or match is None or match[1].startswith("!"):
        raise EditError(
            f"{word!r} is no edit.",
            f"Write {flag} 'LAYER=OPERATION', such as 'layer1.*=scale:0.5'; a pattern takes nothing"
            " away here.",
        )
    if gradients and side == INPUT:
        raise EditError(
            f"{word!r} edits an input, and a gradient is edited at a module's output.",
            "Name the layer whose output that input is.",
        )
    compile_pattern(match[1])
    name, _, argument = what.partition(":")
    known = GRADIENTS if gradients else VALUES
    if name not in known:
        other = VALUES if gradients else GRADIENTS
        elsewhere = f"{'--edit' if gradients else '--grad-edit'} has it." if name in other else ""
        raise EditError(
            f"{word!r}: there is no operation {name!r} for {flag}.",
            f"{elsewhere or did_you_mean(name, known)} There are {', '.join(known)}.".strip(),
        )
    call = int(match[2]) if match[2] else None
    if call == 0:
        raise EditError(f"{word!r} names call 0.", "Calls are counted from 1.")
    channels = None if match[3] is None else _channels(word, match[3])
    value = _argument(word, known[name], argument)
    return Edit(word, OUTPUT_GRAD if gradients else side, match[1], call, channels, name, value)


def _argument(word: str, formula: Formula, text: str) -> Any:
    try:
        return formula.read(text)
    except ValueError as error:
        raise EditError(f"{word!r}: {error}.", f"Write {formula.example}.") from None


def _channels(word: str, text: str) -> tuple[int, ...]:
    """The numbers of ``3,7,10-12``, each once and rising."""
    found: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not 0 <= last - first < _MOST:
            raise EditError(
                f"{word!r}: {part!r} names no channels.", "Write numbers and ranges: [3,7,10-12]."
            )
        found.update(range(first, last + 1))
    return tuple(sorted(found))
