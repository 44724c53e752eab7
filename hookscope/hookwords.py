"""The grammar of a hook's word: ``[GLOB=]FILE.py:FUNCTION`` or ``[GLOB=]package.module:FUNCTION``.

Torch-free, so that a wrong word is refused at once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hookscope.choices import FORWARD, GRADIENT_HOOKS, HOOK_KINDS
from hookscope.errors import RequestError
from hookscope.patterns import compile_pattern
from hookscope.spec import ended
from hookscope.suggest import did_you_mean

_FORM = "Write FILE.py:FUNCTION or package.module:FUNCTION, with GLOB= before it for own layers."
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True)
class HookWord:
    """A hook's word, taken apart.

    Attributes:
        word: the part that names the function, as it was typed.
        glob: the layers that are its own; None where it goes to those that ``--layer`` chose.
        home: the Python file, or the dotted name of a module.
        name: what the function is called there.
    """

    word: str
    glob: str | None
    home: str
    name: str

    @property
    def in_file(self) -> bool:
        """Whether ``home`` is a file rather than a module to import."""
        return self.home.endswith(".py")


def parse_hook(text: str) -> HookWord:
    r"""Take a hook's word apart; a file must be there.

    Raises:
        RequestError: the word has another form, or names a missing file.
        LayerError: its glob cannot be read.

    Example:
        >>> parse_hook("layer3.*=mine.hooks:halve")
        HookWord(word='mine.hooks:halve', glob='layer3.*', home='mine.hooks', name='halve')
    """
    before, equals, after = text.partition("=")
    glob, word = (before, after) if equals else (None, before)
    home, colon, name = word.rpartition(":")
    in_file = home.endswith(".py")
    if not colon or not name.isidentifier() or not (in_file or _MODULE.fullmatch(home)):
        raise RequestError(f"{text!r} names no hook.", _FORM)
    if glob is not None:
        if not glob.removeprefix("!"):
            raise RequestError(f"{text!r} has an empty layer pattern.", _FORM)
        if glob.startswith("!"):
            raise RequestError(
                f"{text!r} says where its hook does not go, and not where it goes.",
                "Take layers away with --layer '!GLOB', and give the hook without a glob.",
            )
        compile_pattern(glob)
    if in_file and not Path(home).is_file():
        folder = Path(home).parent
        files = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
        near = did_you_mean(Path(home).name, files)
        raise RequestError(f"There is no file of hooks {home!r}.", near or _FORM)
    return HookWord(word, glob, home, name)


def settle_kinds(kinds: Sequence[str], count: int, *, backward: bool) -> list[str]:
    """Return the kind of each of ``count`` hooks: one kind may stand for all, none is ``forward``.

    Args:
        kinds: what was chosen, none, one, or as many as there are hooks.
        count: how many hooks there are.
        backward: whether a backward pass will run.

    Raises:
        RequestError: a kind is unknown, needs a backward pass, or their number does not fit.

    Example:
        >>> settle_kinds(["tensor"], 2, backward=True)
        ['tensor', 'tensor']
    """
    for kind in kinds:
        if kind not in HOOK_KINDS:
            near = did_you_mean(kind, HOOK_KINDS)
            raise RequestError(
                f"{kind!r} is no kind of hook.", f"{near} There are {', '.join(HOOK_KINDS)}."
            )
        if kind in GRADIENT_HOOKS and not backward:
            raise RequestError(
                f"A hook of kind {kind!r} waits for a gradient, and capture runs no backward pass.",
                "Use grads, or a hook of kind forward or forward_pre.",
            )
    if kinds and not count:
        raise RequestError("A kind of hook is given and no hook.", ended("Add --hook"))
    if len(kinds) > 1 and len(kinds) != count:
        raise RequestError(
            f"{len(kinds)} kinds are given for {count} hook{'' if count == 1 else 's'}.",
            "Give one kind for all hooks, or one for each in the same order.",
        )
    return list(kinds or [FORWARD]) * (count if len(kinds) <= 1 else 1)
