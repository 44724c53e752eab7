"""The models of a program with hooks in them: the chosen layers, edits and user hooks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar
from weakref import ref

from torch import nn

from hookscope.errors import HookscopeError, LayerError
from hookscope.files.signal_safety import untouched_signals
from hookscope.files.suggestions import did_you_mean
from hookscope.files.words import join_first, plural
from hookscope.hooks.edits.bound_edit import BoundEdit, bind_edits
from hookscope.hooks.edits.editor import Editor
from hookscope.hooks.hook_set import LastingHooks
from hookscope.hooks.layers import GONE, Layer, WeakLayer, select, weakly
from hookscope.hooks.module_call import RecordKey
from hookscope.hooks.op_recorder import record_ops
from hookscope.hooks.recorder import Recorder
from hookscope.hooks.registry import CallRegistry
from hookscope.hooks.tracer import Tracer
from hookscope.hooks.user_hooks import UserHook, attach_user_hooks
from hookscope.results.result import Result
from hookscope.sources.torchscript.private import is_scripted
from hookscope.sources.wrappers import class_name, unwrapped
from hookscope.specs.choices import GRADIENT_HOOKS, VALUE_HOOKS
from hookscope.specs.edit import Edit
from hookscope.specs.intervention_spec import Interventions
from hookscope.specs.patterns import ROOT, near_patterns, split_exclusions
from hookscope.specs.program_options import CallChoice, ProgramOptions
from hookscope.training.called_models import (
    CalledModels,
    ProgramStopped,
    RootCall,
    RootFollower,
)
from hookscope.training.found_models import compiled_parts, name_in_program
from hookscope.training.script_messages import say
from hookscope.training.watched_models import COMPILED, SCRIPTED


class CallGate(threading.local):
    """Whether the call of a model that runs on this thread is one of the chosen ones."""

    def __init__(self, choice: CallChoice) -> None:
        self.choice = choice
        self.number = 0

    def begin(self, number: int) -> None:
        """A call of the model begins."""
        is_chosen = self.choice.last or number in self.choice
        self.number = number if is_chosen else 0

    def end(self) -> None:
        """It has ended."""
        self.number = 0

    @property
    def is_open(self) -> bool:
        """Whether this call is chosen."""
        return self.number > 0


class ProgramEditor(Editor):
    """Applies edits as long as a program runs. It notes changed layers: calls have no end."""

    def note_change(self, position: int, key: RecordKey) -> None:
        """Note the layer of a changed tensor."""
        self.changed[position][key.layer.name] = None

    def changed_by(self, edit: Edit) -> set[str]:
        """Return the layers, or the weights, that an edit changed."""
        positions = {bound.position for bound in self.bounds if bound.edit.text == edit.text}
        return {name for position in positions for name in self.changed[position]}


class HookedModel:
    """One model of a program, and the hooks that stay in it until the program ends.

    Attributes:
        name: the name of the model in the program.
        gate: says which calls are chosen.
        whole: the model as a layer if it can have no hooks; only its input and output are seen.
        layers: the chosen layers that have hooks. Their names begin with that of the model.
        every: all layers that can have hooks.
        keeps_edited: whether the observer records values before an edit, and those that hooks emit.
    """

    keeps_edited: ClassVar[bool] = False

    def __init__(self, name: str, module: nn.Module, gate: CallGate) -> None:
        self.name = name
        self.gate = gate
        self._module = ref(module)  # a program that frees a model has its memory back
        self.whole: Layer | None = None
        self.layers: tuple[Layer, ...] = ()
        self.every: tuple[Layer, ...] = ()
        self.has_ended = False  # a call of it
        self.editors: tuple[ProgramEditor, ...] = ()
        self._open = ExitStack()

    @property
    def module(self) -> nn.Module:
        """The module; ``GONE`` once the program has deleted it."""
        return self._module() or GONE

    def begin(self, call: RootCall) -> None:
        """Act before the model is called."""
        self.gate.begin(call.number)

    def end(self, call: RootCall, output: Any = None, *, failed: bool = False) -> None:
        """Act when the call has ended."""
        self.gate.end()
        if not self.has_ended:
            self.has_ended = True
            self.note_state()

    def note_state(self) -> None:
        """Note what the model's modules are asked for in the end; they may be gone by then."""
        if self.layers and self.observer is not None:
            self.observer.note_state()

    @cached_property
    def observer(self) -> Recorder | Tracer | None:
        """What observes the layers, if something does; made when they are known."""
        return None

    def attach(
        self,
        layers: Sequence[Layer],
        edits: tuple[BoundEdit, ...],
        gradient_edits: tuple[BoundEdit, ...],
        hooks: Sequence[UserHook],
    ) -> None:
        """Attach edits and hooks around those that observe, as a run of ``capture`` does."""
        self.layers = tuple(layers)
        observer, enter = self.observer, self._open.enter_context
        lasting = LastingHooks(self.module)
        calls = CallRegistry(self.module, lasting) if observer is None else observer.calls
        recorder = observer if isinstance(observer, Recorder) else None
        keeper = recorder if self.keeps_edited else None
        forward = [hook for hook in hooks if hook.kind in VALUE_HOOKS]
        backward = [hook for hook in hooks if hook.kind in GRADIENT_HOOKS]
        with untouched_signals():
            if edits:
                self._enter_editor(edits, calls, keeper)
            enter(attach_user_hooks(calls, forward, keeper))
            if observer is not None:
                enter(observer)
            if recorder is not None:
                enter(record_ops(recorder))
            enter(attach_user_hooks(calls, backward, keeper))
            if gradient_edits:
                self._enter_editor(gradient_edits, calls, keeper)

    def _enter_editor(
        self, edits: tuple[BoundEdit, ...], calls: CallRegistry, keeper: Recorder | None
    ) -> None:
        editor = ProgramEditor(self.module, edits, 0, calls, keeper)
        self._open.enter_context(editor)
        self.editors += (editor,)

    def detach(self) -> None:
        """Remove all hooks."""
        self._open.close()


M = TypeVar("M", bound=HookedModel)


class HookedModels(RootFollower, Generic[M]):
    """Puts hooks into the models of a program at their first calls. A subclass says which."""

    def __init__(
        self,
        options: ProgramOptions,
        patterns: Sequence[str],
        interventions: Interventions,
        hooks: Sequence[UserHook] = (),
        on_hooks: Callable[[nn.Module], None] = lambda model: None,
    ) -> None:
        super().__init__(options.stop_after)
        self.options = options
        self.interventions = interventions
        self.patterns = tuple(patterns)
        self.called = CalledModels(self)
        self.choice = options.choice
        self.models: dict[str, M] = {}
        self._hooks = tuple(hooks)
        self._on_hooks = on_hooks
        self._matched: set[str] = set()  # patterns
        self._names: set[str] = set()  # of layers
        self._starting = threading.RLock()
        self._is_over = False  # a model was scripted or exported
        self._is_detached = False

    def make(self, name: str, module: nn.Module) -> M:
        """Return a model without hooks."""
        raise NotImplementedError

    def result(self, metadata: dict[str, Any]) -> Result:
        """Return what was observed, once the hooks are removed."""
        raise NotImplementedError

    def before_root(self, call: RootCall) -> None:
        """Put hooks into a model at its first call."""
        super().before_root(call)
        with self._starting:
            if call.model.name not in self.models:
                self._start(call.model.name, call.module)
        self.models[call.model.name].begin(call)

    def after_root(self, call: RootCall, output: Any) -> None:
        """End what was begun for the call."""
        self.models[call.model.name].end(call, output)
        super().after_root(call, output)

    def failed_root(self, call: RootCall, error: BaseException) -> None:
        """End the program if what was asked for is wrong, such as an edit that does not fit."""
        self.models[call.model.name].end(call, failed=True)
        # Without edits and hooks it is an error of the program, which uses hookscope itself.
        if isinstance(error, HookscopeError) and self.interventions != Interventions():
            say(f"stopped the program. {error.message} {error.hint}".strip())
            raise ProgramStopped(error.exit_code) from None

    def _start(self, name: str, outer: nn.Module) -> None:
        module = unwrapped(outer)
        model = self.models[name] = self.make(name, module)
        tree = _ModelTree(name, module, self._matched)
        self._names.update(layer.name for layer in tree.layers)
        chosen = tree.choose(self.patterns)
        closed = self._closed(name, outer)
        if module in closed and any(layer.module is module for layer in chosen):
            model.whole = WeakLayer(name, outer)
        layers = [layer for layer in chosen if layer.module not in closed]
        model.every = tuple(layer for layer in tree.layers if layer.module not in closed)
        asked = self.interventions
        edits = tree.bind(asked.value_edits, closed)
        gradient_edits = tree.bind(asked.gradient_edits, closed)
        hooks = [
            replace(hook, layers=tuple(found))
            for hook in self._hooks
            if (found := layers if hook.glob is None else tree.choose([hook.glob]))
        ]
        if not self._is_detached and (layers or edits or gradient_edits or hooks):
            model.attach(layers, edits, gradient_edits, hooks)
            self._on_hooks(module)

    def _closed(self, name: str, outer: nn.Module) -> set[nn.Module]:
        """The modules that can have no hooks, which is noted."""
        scripted = {one for one in outer.modules() if is_scripted(one)}
        compiled = compiled_parts(outer)
        for modules, reason in ((scripted, SCRIPTED), (compiled, COMPILED)):
            if modules:
                self.called.note(f"layers in {name}", reason)
        return scripted | compiled

    @property
    def has_all(self) -> bool:
        """Whether each pattern has matched, and a call of each model with chosen layers ended."""
        with self._starting:
            chosen = [model for model in self.models.values() if model.layers or model.whole]
        done = bool(chosen) and all(model.has_ended for model in chosen)
        return done and self._matched.issuperset(self._asked_patterns())

    def may_match(self, others: Iterable[nn.Module]) -> bool:
        """Whether each pattern matches layers of a model, or of others that may be called later."""
        matched = set(self._matched)
        for outer in others:
            with suppress(Exception):  # of the model's own code
                inner = unwrapped(outer)
                name = name_in_program([outer, inner]) or class_name(inner)
                _ModelTree(name, inner, matched).choose(self.patterns)
        return matched.issuperset(self._asked_patterns())

    def unmatched(self) -> Iterator[str]:
        """Yield a sentence about each pattern that matches no layer of the models."""
        for pattern in self._asked_patterns():
            if pattern not in self._matched:
                near = did_you_mean(pattern, near_patterns(pattern, self._names) or self._names)
                names = ", ".join(sorted(self.models))
                yield f"{pattern!r} matches no layer of {names}. {near}".strip()

    def _asked_patterns(self) -> Iterable[str]:
        included, excluded = split_exclusions(self.patterns)
        asked = [
            *(edit.pattern for edit in self.interventions.value_edits),
            *(edit.pattern for edit in self.interventions.gradient_edits),
            *(hook.glob for hook in self._hooks if hook.glob is not None),
        ]
        return dict.fromkeys((*included, *excluded, *asked))

    def edited(self) -> Iterator[str]:
        """Yield a sentence about each edit of layers that there are."""
        editors = [editor for model in self.models.values() for editor in model.editors]
        for edit in (*self.interventions.value_edits, *self.interventions.gradient_edits):
            if edit.pattern in self._matched:
                changed = [name for editor in editors for name in sorted(editor.changed_by(edit))]
                why = "nothing: its layers were not called, or have no hooks"
                yield f"the edit {edit.text!r} changed {join_first(changed) if changed else why}."

    def unmet(self) -> Iterator[str]:
        """Yield a sentence about each thing that was asked for and did not come."""
        if not self.called.models:
            yield "the program called no model, so nothing was recorded."
            return
        yield from self.unmatched()
        if self._is_over:
            yield "the program scripted or exported a model; no layer was followed after that."
        if self.options.calls is not None:
            for model in self.called.models:
                for part in self.choice.later_than(model.calls) if model.info.parameters else ():
                    times = plural(model.calls, "time")
                    yield f"{model.name} was called {times}, so call {part} did not come."

    def detach(self) -> None:
        """Remove all hooks for good."""
        with self._starting:
            self._is_detached = True
            for model in self.models.values():
                model.detach()

    def detach_for_compiler(self) -> None:
        """Remove all hooks: TorchScript would compile them, and an export trace them."""
        self._is_over = True
        self.detach()


class EditedModels(HookedModels[HookedModel]):
    """Edits the models of a program, which is watched in another way or not at all."""

    def make(self, name: str, module: nn.Module) -> HookedModel:
        """Return a model that will be edited."""
        return HookedModel(name, module, CallGate(self.choice))


class _ModelTree:
    """The layers of a model, as ``model.layer`` and as ``layer``, and what patterns choose."""

    def __init__(self, name: str, module: nn.Module, matched: set[str]) -> None:
        self._module = module
        self._holder = nn.Module()
        self._holder._modules[name] = module
        self._matched = matched  # patterns
        self.layers = weakly(layer for layer in select(self._holder) if layer.name != ROOT)

    def choose(self, patterns: Sequence[str]) -> list[Layer]:
        """Return the layers that patterns choose; without patterns all of a model with weights."""
        included, excluded = split_exclusions(patterns)
        within: set[nn.Module] = set()
        if not included and next(self._module.parameters(), None) is not None:
            within.update(self._module.modules())
        for pattern in included:
            within |= self._matching(pattern)
        for pattern in excluded:
            within -= self._matching(pattern)
        return [layer for layer in self.layers if layer.module in within]

    def bind(self, edits: Sequence[Edit], closed: set[nn.Module]) -> tuple[BoundEdit, ...]:
        """Bind edits to the layers that they name."""
        bound: list[BoundEdit] = []
        for position, edit in enumerate(edits):
            for owner in (self._holder, self._module):
                with suppress(LayerError):
                    found = bind_edits(owner, (edit,))
                    self._matched.add(edit.pattern)
                    bound += (replace(one, position=position) for one in found)
                    break
        names = {layer.module: layer for layer in self.layers}
        return tuple(
            replace(one, layer=names[one.layer.module])
            for one in bound
            if one.layer.module in names and one.layer.module not in closed
        )

    def _matching(self, pattern: str) -> set[nn.Module]:
        for owner in (self._holder, self._module):
            with suppress(LayerError):
                found = {layer.module for layer in select(owner, [pattern])} - {self._holder}
                if found:
                    self._matched.add(pattern)
                    return found
        return set()
