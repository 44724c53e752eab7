"""Interventions in a run: edits and user hooks. Without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hookscope.specs.edit import Edit, check_comparison, parse_edits
from hookscope.specs.hook_spec import HookSpec, parse_hook
from hookscope.specs.patterns import as_texts

Hook = str | Callable[..., Any]
Hooks = Hook | Mapping[str, Hook] | Iterable[Hook]


@dataclass(frozen=True)
class Interventions:
    """The interventions in a run: edits and user hooks."""

    edits: Iterable[str] = ()
    grad_edits: Iterable[str] = ()
    compare: bool = False
    hooks: Hooks = ()
    hook_args: Mapping[str, Any] | None = None
    hook_kind: Iterable[str] = ()

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
