"""Interventions in a run: edits and user hooks. Without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hookscope.errors import RequestError
from hookscope.files.shell_words import quote_word
from hookscope.files.suggestions import did_you_mean
from hookscope.specs import choices
from hookscope.specs.edit import Edit, check_comparison, parse_edits
from hookscope.specs.model_spec import FunctionSpec, parse_function
from hookscope.specs.patterns import as_texts, compile_pattern
from hookscope.specs.settings import setting
from hookscope.specs.value_readers import read_arguments

_FORM = (
    "Write FILE.py:FUNCTION or package.module:FUNCTION, or GLOB=FILE.py:FUNCTION for some layers."
)

Hook = str | Callable[..., Any]
Hooks = Hook | Mapping[str, Hook] | Iterable[Hook]


@dataclass(frozen=True)
class HookSpec:
    """A parsed spec of a user hook."""

    function: FunctionSpec
    glob: str | None


def parse_hook(text: str) -> HookSpec:
    """Parse the spec of a user hook; its file must exist."""
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
    """Return the kind of each of ``count`` hooks. One counts for all, none is ``forward``."""
    for kind in kinds:
        if kind not in choices.HOOK_KINDS:
            near = did_you_mean(kind, choices.HOOK_KINDS)
            raise RequestError(
                f"{kind!r} is not a kind of hook.",
                f"{near} The kinds are {', '.join(choices.HOOK_KINDS)}.".strip(),
            )
        if kind not in choices.HOOK_KINDS_OF[verb]:
            what = "an optimizer's step" if kind in choices.STEP_HOOKS else "a backward pass"
            there = [name for name, kinds in choices.HOOK_KINDS_OF.items() if kind in kinds]
            here = ", ".join(choices.HOOK_KINDS_OF[verb])
            raise RequestError(
                f"A hook of kind {kind!r} needs {what}, which {verb} does not run.",
                f"Use {' or '.join(there)}, or a hook of kind {here}.",
            )
    if kinds and not count:
        raise RequestError("--hook-kind is given without a hook.", "Add --hook.")
    if len(kinds) > 1 and len(kinds) != count:
        raise RequestError(
            f"{len(kinds)} kinds are given for {count} hook{'' if count == 1 else 's'}.",
            "Give one kind for all hooks, or one for each in the same order.",
        )
    return list(kinds or [choices.FORWARD]) * (count if len(kinds) <= 1 else 1)


@dataclass(frozen=True)
class Interventions:
    """The interventions in a run: edits and user hooks."""

    section = "Edits"

    edits: str | Iterable[str] = setting(
        (),
        "Edit layer outputs, such as 'conv1[3,7]=zero'. Repeatable.",
        flags=("--edit",),
        metavar="GLOB=OP",
        many=True,
        complete="layers",
        python="edits of activations during the run, each ``GLOB=OP:ARG`` (see docs/edits.md), in"
        " order. The value before an edit is recorded as ``<module>/output.unedited``. The model"
        ' runs once more without edits: ``metadata["effect"]`` has the change of its output.',
    )
    grad_edits: str | Iterable[str] = setting(
        (),
        "Edit output gradients, such as 'layer4=clip:1e-4'. Repeatable.",
        flags=("--grad-edit",),
        metavar="GLOB=OP",
        many=True,
        complete="layers",
        python="edits of the gradient at modules' outputs, each ``GLOB=OP:ARG``, which also change"
        " all gradients further back. ``<module>/output.grad`` is the edited gradient,"
        " ``<module>/output.grad.unedited`` the one before.",
    )
    compare: bool = setting(
        False,
        "Also run without edits and hooks, and show how much every later layer changes.",
        python="record that run too, and report the change at every later layer.",
    )
    hooks: Hooks = setting(
        (),
        "Run a custom hook, FILE.py:FUNCTION, at these layers. Repeatable.",
        section="Hooks",
        flags=("--hook",),
        metavar="[GLOB=]HOOK",
        many=True,
        python="custom hooks: ``[GLOB=]FILE.py:FUNCTION`` or ``[GLOB=]package.module:FUNCTION``,"
        " functions, or a dict from globs to either. Without a glob, a hook is registered on the"
        " selected layers.",
    )
    hook_args: Mapping[str, Any] | None = setting(
        None,
        "Extra argument for the hooks that take it. Repeatable.",
        section="Hooks",
        flags=("--hook-arg",),
        metavar="KEY=VALUE",
        collect=read_arguments,
        python="further arguments, passed to every hook that has a parameter of that name.",
    )
    hook_kind: str | Iterable[str] = setting(
        (),
        "Kind of the hooks: forward, forward_pre. Default: forward.",
        section="Hooks",
        metavar="KIND",
        many=True,
        choices=choices.HOOK_KINDS,
        aliases=choices.HOOK_KIND_ALIASES,
        python="``forward`` or ``forward_pre``; one for all hooks or one for each. The default is"
        " ``forward``: ``hook(module, input, output)``, whose result replaces the output unless it"
        " is None.",
    )

    def __post_init__(self) -> None:
        for name in ("edits", "grad_edits", "hook_kind"):
            object.__setattr__(self, name, as_texts(getattr(self, name)))
        if not isinstance(self.hooks, Mapping | str) and not callable(self.hooks):
            object.__setattr__(self, "hooks", tuple(self.hooks))
        check_comparison(self.compare, self.value_edits, self.gradient_edits, self.hooks)
        self.hook_specs  # noqa: B018 - computed for its checks

    @cached_property
    def value_edits(self) -> tuple[Edit, ...]:
        """The edits of activations, parsed."""
        return parse_edits(self.edits)

    @cached_property
    def gradient_edits(self) -> tuple[Edit, ...]:
        """The edits of gradients, parsed."""
        return parse_edits(self.grad_edits, gradients=True)

    @cached_property
    def hook_specs(self) -> tuple[HookSpec, ...]:
        """The parsed specs of hooks; those given as functions have none."""
        if isinstance(self.hooks, Mapping):
            named = [f"{glob}={hook}" for glob, hook in self.hooks.items() if isinstance(hook, str)]
        else:
            hooks = [self.hooks] if isinstance(self.hooks, str) else self.hooks
            named = [] if callable(hooks) else [hook for hook in hooks if isinstance(hook, str)]
        return tuple(map(parse_hook, named))

    @property
    def hook_count(self) -> int:
        """How many hooks there are."""
        return 1 if isinstance(self.hooks, str) or callable(self.hooks) else len(tuple(self.hooks))
