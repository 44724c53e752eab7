"""The steps of a training that have begun: the current one, and parts whose step is not known."""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakSet

from torch.optim import Optimizer

from hookscope.files.signal_safety import uninterrupted
from hookscope.hooks.torch_state import inside_backward
from hookscope.specs.watch_options import WatchOptions
from hookscope.training.model_hooks import ModelHooks
from hookscope.training.run_recorder import RunRecorder
from hookscope.training.step_record import LossOfSteps, StepRecord
from hookscope.training.watched_models import WatchedModels


class EndedSteps(NamedTuple):
    """The steps of the training that have ended now that an optimizer has stepped."""

    held: list[int]
    current: bool


class StepClock:
    """Divides a training with one optimizer or several into steps.

    A turn is a backward pass and the steps of the optimizers that follow it. A step ends with the
    turn of one optimizer, the clock: the last of all to make its first step, as the generator's in
    a GAN.
    """

    def __init__(self) -> None:
        self._known: WeakSet[Optimizer] = WeakSet()
        self._clock: int | None = None
        self._held: list[list[int]] = []  # the optimizers of each turn
        self._turn: list[int] = []
        self._goes_on = False  # there was no backward pass since the last turn was held

    def add(self, optimizer: Optimizer) -> None:
        """Take a new optimizer into account; the clock is chosen anew."""
        if optimizer not in self._known:
            self._known.add(optimizer)
            self._clock = None

    def before_backward(self) -> None:
        """Begin a new turn: the script calls ``backward()``."""
        self._goes_on = False

    def resumes(self, optimizer: Optimizer) -> bool:
        """Whether a step of an optimizer goes on with the last turn, which is then held no more."""
        if not self._goes_on or id(optimizer) in self._held[-1]:
            return False
        self._goes_on = False
        self._turn = self._held.pop()
        return True

    def count(self, optimizer: Optimizer) -> EndedSteps:
        """Count a step of an optimizer; return which steps of the training have ended with it."""
        key = id(optimizer)
        ended = self._end_held(key)
        turn, self._turn = [*self._turn, key], []
        if self._clock is None:
            stepped = {one for held in (*self._held, turn) for one in held}
            if all(id(known) in stepped for known in self._known):
                self._clock = key
        is_end = key == self._clock
        self._held = [] if is_end else [*self._held, turn]
        self._goes_on = not is_end
        return EndedSteps(ended, is_end)

    def _end_held(self, key: int) -> list[int]:
        """End the turns that are held if an optimizer steps again that had one of them."""
        first = next((n for n, turn in enumerate(self._held) if key in turn), None)
        if first is None:
            return []
        ended = [1] * first + [len(self._held) - first]
        self._clock = self._held[-1][-1]
        self._held = []
        return ended


class OpenSteps:
    """Divides what is recorded into steps, and passes on those that have ended."""

    def __init__(
        self,
        options: WatchOptions,
        models: WatchedModels,
        hooks: ModelHooks,
        recorder: RunRecorder,
    ) -> None:
        self.clock = StepClock()
        self.count = 0
        self._options = options
        self._models = models
        self._hooks = hooks
        self._recorder = recorder
        self._losses = LossOfSteps()
        self._held: list[StepRecord] = []  # parts, until it is known to which step they belong
        self._holds_after_backward = False
        self.record = self._new_record(0)

    def _new_record(self, *numbers: int) -> StepRecord:
        """A record of what may become the step with one of these numbers."""
        sketches = any(map(self._options.fingerprints, numbers))
        is_sampled = any(map(self._options.samples, numbers))
        return StepRecord(is_sampled, self._losses, sketches=sketches)

    @property
    def is_fresh(self) -> bool:
        """Whether nothing was measured so far in the current step."""
        called = any(layers.called for layers in self.record.layers)
        return not self._held and not called and self.record.is_empty

    def renew_hooks(self) -> None:
        """Make the hooks anew: a model was found, or has changed."""
        self._hooks.renew(self._models, self.record, self.count)

    def forget(self) -> None:
        """Forget what was measured of layers and parameters, and the models with it."""
        for record in (*self._held, self.record):
            record.forget()

    def leave(self) -> None:
        """Remove the hooks on the tensors of parts that are held."""
        for record in self._held:
            record.forget()

    def before_backward(self) -> None:
        """Expect gradients at outputs from now on."""
        if not inside_backward():  # else a checkpoint runs a part again
            self.clock.before_backward()
        for record in (*self._held, self.record):
            record.expect_gradients(True)

    def after_backward(self) -> None:
        """Measure the gradients of parameters."""
        for record in (*self._held, self.record):
            record.expect_gradients(False)
        if self.record.is_sampled:
            for parameters in self.record.parameters:
                parameters.after_backward()
        if self._holds_after_backward:
            self._hold()

    @uninterrupted
    def resume(self, optimizer: Optimizer) -> None:
        """Go on with the last part if the optimizer steps after the same backward pass."""
        if self._holds_after_backward:
            if self.clock.resumes(optimizer):
                self._holds_after_backward = False
            else:
                self._hold()
        elif self._held and self.clock.resumes(optimizer):
            record = self._held.pop()
            record.resume(self.record)
            self.record = record

    @uninterrupted
    def count_step(self, optimizer: Optimizer) -> None:
        """End what has ended now that an optimizer has stepped."""
        ended = self.clock.count(optimizer)
        for count in ended.held:
            parts, self._held = self._held[:count], self._held[count:]
            self._end(parts)
        if ended.current:
            self.end_step()
        elif inside_backward():  # others step in it, too
            self._holds_after_backward = True
        else:
            self._hold()

    def _hold(self) -> None:
        """End a part. The next step of an optimizer tells whether it was a step."""
        self._holds_after_backward = False
        self.record.hold()
        self._held.append(self.record)
        numbers = (self.count, self.count + len(self._held))
        self.record = self._new_record(*numbers)
        self._hooks.begin_part(self.record)

    @uninterrupted
    def end_step(self) -> None:
        """End the current step, and begin the next."""
        was_sampled = self.record.is_sampled
        self.end_open()
        self.record = self._new_record(self.count)
        if self.record.is_sampled and self._models.renew():
            self.renew_hooks()
        elif self.record.is_sampled or was_sampled or self._hooks.has_work:
            self._hooks.begin(self.record, self.count)

    def end_open(self) -> None:
        """End the current step with all of its parts."""
        if self.record.is_sampled:
            self._hooks.end()
        parts, self._held = [*self._held, self.record], []
        self._end(parts)

    def _end(self, parts: list[StepRecord]) -> None:
        first, *others = parts
        if first.has_ended:  # the script is stopped at this step
            return
        for part in parts:
            part.end_part(None)
        for part in others:
            first.join(part)
        first.sketches = self._options.fingerprints(self.count)
        first.end(self.count, is_sampled=self._options.samples(self.count))
        self.count += 1
        self._recorder.add(first, self._losses.rule)

    def end_last(self) -> None:
        """Record a step that has begun, and write all steps."""
        if self._held or not self.record.is_empty:
            self.end_open()
        self._recorder.write_all()
