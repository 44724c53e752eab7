"""What the user asks to be done to a run, and that in force: edits, and hooks of their own.

Going forward they come before the recording hooks, and going back too: what is recorded is what
went on. Where a layer has both, its edits come first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from hookscope.hooks.edits.bound_edit import BoundEdit
from hookscope.hooks.edits.editor import Editor
from hookscope.hooks.recorder import Recorder
from hookscope.hooks.user_hooks.hook_binding import attach_user_hooks
from hookscope.hooks.user_hooks.hook_loader import UserHook
from hookscope.specs.choices import GRADIENT_HOOKS, VALUE_HOOKS
from hookscope.tensors.interrupts import signal_safe_contextmanager


@dataclass(frozen=True)
class BoundInterventions:
    """All that is to be done to a run.

    Attributes:
        values: edits of what goes forward.
        gradients: edits of the gradients that come back.
        hooks: the user's own, of every kind.
    """

    values: tuple[BoundEdit, ...] = ()
    gradients: tuple[BoundEdit, ...] = ()
    hooks: tuple[UserHook, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.values or self.gradients or self.hooks)

    @property
    def hands_on_clones(self) -> bool:
        """Whether what is done to gradients hands clones through the model, which it may notice."""
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
    """Change what goes forward; enter it before the recorder.

    Args:
        plan: what is to be done.
        model: the model that runs.
        seed: the run's.
        recorder: keeps what hooks emit; None where the run only checks another one.
        keep: let the recorder keep edited values as they were before, too.
    """
    hooks = plan.hooks_of(VALUE_HOOKS)
    with (
        Editor(model, plan.values, seed, recorder if keep else None) as editor,
        attach_user_hooks(model, hooks, recorder),
    ):
        yield editor


@signal_safe_contextmanager
def backward_interventions(
    plan: BoundInterventions, model: nn.Module, seed: int, recorder: Recorder
) -> Iterator[Editor]:
    """Change the gradients that come back; enter it after the recorder.

    What is attached last stands nearest to the loss: that is why the edits come after the hooks.
    """
    hooks = plan.hooks_of(GRADIENT_HOOKS)
    with (
        attach_user_hooks(model, hooks, recorder),
        Editor(model, plan.gradients, seed, recorder) as editor,
    ):
        yield editor
