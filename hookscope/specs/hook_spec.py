"""The spec of a user hook: ``[GLOB=]FILE.py:FUNCTION`` or ``[GLOB=]package.module:FUNCTION``.

It is parsed without torch, so that a mistake is reported at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hookscope.errors import RequestError
from hookscope.files.shell_words import quote_word
from hookscope.files.suggestions import did_you_mean
from hookscope.specs.choices import FORWARD, HOOK_KINDS, HOOK_KINDS_OF, STEP_HOOKS
from hookscope.specs.model_spec import FunctionSpec, parse_function
from hookscope.specs.patterns import compile_pattern

_FORM = (
    "Write FILE.py:FUNCTION or package.module:FUNCTION, or GLOB=FILE.py:FUNCTION for some layers."
)


@dataclass(frozen=True)
class HookSpec:
    """A parsed spec of a user hook."""

    function: FunctionSpec
    glob: str | None


def parse_hook(text: str) -> HookSpec:
    """Parse the spec of a user hook; its file must exist.

    Example:
        >>> hook = parse_hook("layer3.*=mine.hooks:halve")
        >>> hook.glob, hook.function.home, hook.function.name
        ('layer3.*', 'mine.hooks', 'halve')
    """
    before, equals, after = text.partition("=")
    glob, function = (before, after) if equals else (None, before)
    if glob is not None:
        if not glob.removeprefix("!"):
            raise RequestError(f"{text!r} has an empty layer pattern.", _FORM)
        if glob.startswith("!"):
            raise RequestError(
                f"{text!r} only excludes layers.",
                "Give a pattern that includes some, or exclude layers by"
                f" --layer {quote_word('!GLOB')}.",
            )
        compile_pattern(glob)
    return HookSpec(parse_function(function), glob)


def resolve_hook_kinds(kinds: Sequence[str], count: int, *, verb: str) -> list[str]:
    """Return the kind of each of ``count`` hooks. One counts for all, none is ``forward``.

    Example:
        >>> resolve_hook_kinds(["tensor"], 2, verb="grads")
        ['tensor', 'tensor']
    """
    for kind in kinds:
        if kind not in HOOK_KINDS:
            near = did_you_mean(kind, HOOK_KINDS)
            raise RequestError(
                f"{kind!r} is not a kind of hook.",
                f"{near} The kinds are {', '.join(HOOK_KINDS)}.".strip(),
            )
        if kind not in HOOK_KINDS_OF[verb]:
            what = "an optimizer's step" if kind in STEP_HOOKS else "a backward pass"
            there = [name for name, kinds in HOOK_KINDS_OF.items() if kind in kinds]
            raise RequestError(
                f"A hook of kind {kind!r} needs {what}, which {verb} does not run.",
                f"Use {' or '.join(there)}, or a hook of kind {', '.join(HOOK_KINDS_OF[verb])}.",
            )
    if kinds and not count:
        raise RequestError("--hook-kind is given without a hook.", "Add --hook.")
    if len(kinds) > 1 and len(kinds) != count:
        raise RequestError(
            f"{len(kinds)} kinds are given for {count} hook{'' if count == 1 else 's'}.",
            "Give one kind for all hooks, or one for each in the same order.",
        )
    return list(kinds or [FORWARD]) * (count if len(kinds) <= 1 else 1)
