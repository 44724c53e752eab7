"""Interventions in a run: edits and user hooks, bound to layers, and applied.

They act before the recorder, forward and backward. If a layer has both, its edits come first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from hookscope.files.signal_safety import signal_safe_contextmanager
from hookscope.hooks.edits.bound_edit import BoundEdit
from hookscope.hooks.edits.editor import Editor
from hookscope.hooks.recorder import Recorder
from hookscope.hooks.registry import CallRegistry
from hookscope.hooks.user_hooks import UserHook, attach_user_hooks
from hookscope.specs.choices import GRADIENT_HOOKS, VALUE_HOOKS


@dataclass(frozen=True)
class BoundInterventions:
    """All interventions in a run."""

    values: tuple[BoundEdit, ...] = ()
    gradients: tuple[BoundEdit, ...] = ()
    hooks: tuple[UserHook, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.values or self.gradients or self.hooks)

    @property
    def passes_clones(self) -> bool:
        """Whether the model gets clones, which may affect it, for an intervention in gradients."""
        return bool(self.gradients or self.hooks_of(GRADIENT_HOOKS))

    def hooks_of(self, kinds: tuple[str, ...]) -> list[UserHook]:
        """The hooks of these kinds, in the order given."""
        return [hook for hook in self.hooks if hook.kind in kinds]


@signal_safe_contextmanager
def forward_interventions(
    plan: BoundInterventions,
    model: nn.Module,
    seed: int,
    recorder: Recorder | None = None,
    *,
    keep: bool = False,
) -> Iterator[Editor]:
    """Intervene in the forward pass; enter it before the recorder."""
    calls = CallRegistry(model) if recorder is None else recorder.calls
    hooks = plan.hooks_of(VALUE_HOOKS)
    with (
        Editor(model, plan.values, seed, calls, recorder if keep else None) as editor,
        attach_user_hooks(calls, hooks, recorder),
    ):
        yield editor


@signal_safe_contextmanager
def backward_interventions(
    plan: BoundInterventions, model: nn.Module, seed: int, recorder: Recorder
) -> Iterator[Editor]:
    """Intervene in the backward pass; enter it after the recorder.

    What is attached last is nearest to the loss, so the edits come after the hooks.
    """
    hooks = plan.hooks_of(GRADIENT_HOOKS)
    with (
        attach_user_hooks(recorder.calls, hooks, recorder),
        Editor(model, plan.gradients, seed, recorder.calls, recorder) as editor,
    ):
        yield editor
