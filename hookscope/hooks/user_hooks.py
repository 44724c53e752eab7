"""User hooks: loaded from files, bound to layers, called, and what their results replace."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.errors import CheckFailed, HookError, HookscopeError, RequestError
from hookscope.files.signal_safety import signal_safe_contextmanager
from hookscope.files.signatures import signature_of
from hookscope.hooks.hook_set import HookSet
from hookscope.hooks.layers import Layer, select
from hookscope.hooks.module_call import CallSubscriber, ModuleCall, RecordKey
from hookscope.hooks.recorder import Recorder
from hookscope.hooks.registry import CallRegistry
from hookscope.sources.user_code import bind_arguments, function_file, function_name, load_functions
from hookscope.specs import choices
from hookscope.specs.intervention_spec import Hooks, parse_hook, resolve_hook_kinds
from hookscope.specs.model_spec import FunctionSpec
from hookscope.specs.patterns import ROOT
from hookscope.specs.tensor_key import EMITTED
from hookscope.tensors.grad_mode import BackwardHookPair, Grads, insert_gradient_gate
from hookscope.tensors.nested import map_tensors, outline

Function = Callable[..., Any]

_CALLED_WITH = {
    choices.FORWARD: ("module", "input", "output"),
    choices.FORWARD_PRE: ("module", "input"),
    choices.BACKWARD: ("module", "grad_input", "grad_output"),
    choices.BACKWARD_PRE: ("module", "grad_output"),
    choices.ON_TENSOR: ("grad",),
    choices.STEP_PRE: ("optimizer", "args", "kwargs"),
    choices.STEP_POST: ("optimizer", "args", "kwargs"),
}


EmitCallback = Callable[[Layer, int, str, Tensor], None]
log = logging.getLogger("hookscope")


@dataclass(frozen=True, eq=False)
class UserHook:
    """A user's function, when it is called, and its layers once it is bound to a model."""

    label: str
    kind: str
    function: Function
    file: str
    glob: str | None
    layers: tuple[Layer, ...] = ()


def load_user_hooks(
    hooks: Hooks, kinds: Sequence[str], arguments: Mapping[str, Any], *, verb: str
) -> tuple[UserHook, ...]:
    """Load the functions that ``hooks`` names, without a model. Their files are run."""
    parsed = [_parsed(glob, hook) for glob, hook in _pairs(hooks)]
    has_kinds = bool(kinds)
    kinds = resolve_hook_kinds(kinds, len(parsed), verb=verb)
    for (glob, _), kind in zip(parsed, kinds, strict=True):
        if kind in choices.STEP_HOOKS and glob is not None:
            raise RequestError(
                f"A hook of kind {kind!r} does not run at layers, but {glob!r} selects some.",
                "Remove the glob. The hook runs once, with the optimizer.",
            )
    loaded = iter(load_functions([spec for _, spec in parsed if isinstance(spec, FunctionSpec)]))
    functions = [next(loaded) if isinstance(x, FunctionSpec) else x for _, x in parsed]
    if not has_kinds:
        for function in functions:
            _check_is_forward_hook(function, arguments, verb)
    bound = bind_arguments(functions, arguments, [_CALLED_WITH[kind] for kind in kinds])
    user_hooks = []
    for (glob, spec), kind, function in zip(parsed, kinds, bound, strict=True):
        label, file = function_name(function), function_file(function)
        if isinstance(spec, FunctionSpec):
            label = spec.text
            file = spec.home if spec.in_file else file
        user_hooks.append(UserHook(label, kind, function, file, glob))
    return tuple(user_hooks)


def _check_is_forward_hook(function: Function, arguments: Mapping[str, Any], verb: str) -> None:
    """Raise RequestError if a hook without a kind has the parameters of a gradient hook."""
    try:
        parameters = signature_of(function).parameters.values()
    except ValueError:  # written in C, without a signature
        return
    names = [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.name not in arguments
    ]
    kind = {3: choices.BACKWARD, 2: choices.BACKWARD_PRE, 1: choices.ON_TENSOR}.get(len(names))
    if kind is None or not any(name.startswith("grad") for name in names):
        return
    add = f"Add --hook-kind {kind}."
    if kind not in choices.HOOK_KINDS_OF[verb]:
        add = f"{verb} runs no backward pass: use hookscope grads with --hook-kind {kind}."
    raise RequestError(
        f"The hook {function_name(function)}({', '.join(names)}) takes gradients, and no"
        " --hook-kind is given.",
        f"{add} The default kind, {choices.FORWARD}, is called with"
        f" {', '.join(_CALLED_WITH[choices.FORWARD])}.",
    )


def bind_user_hooks(
    hooks: Iterable[UserHook], model: nn.Module, layers: tuple[Layer, ...], model_spec: str
) -> tuple[UserHook, ...]:
    """Bind each hook to its layers in ``model``: those of its glob, else ``layers``."""

    def layers_of_hook(hook: UserHook) -> tuple[Layer, ...]:
        if hook.kind in choices.STEP_HOOKS:
            return (Layer(ROOT, model),)
        return layers if hook.glob is None else select(model, [hook.glob], spec=model_spec)

    return tuple(replace(hook, layers=layers_of_hook(hook)) for hook in hooks)


def _pairs(hooks: Hooks) -> list[tuple[str | None, Any]]:
    if isinstance(hooks, Mapping):
        return list(hooks.items())
    if isinstance(hooks, str) or callable(hooks):
        return [(None, hooks)]
    return [(None, hook) for hook in hooks]


def _parsed(glob: str | None, hook: Any) -> tuple[str | None, FunctionSpec | Function]:
    if isinstance(hook, str):
        spec = parse_hook(hook if glob is None else f"{glob}={hook}")
        return spec.glob, spec.function
    if not callable(hook):
        raise RequestError(
            f"A hook is a function or its spec, not {type(hook).__name__}.",
            "Give a function, or FILE.py:FUNCTION.",
        )
    return glob, hook


def describe_hooks(hooks: Iterable[UserHook]) -> list[dict[str, Any]]:
    """Return the entries of a file's metadata about the hooks."""
    return [
        {"hook": hook.label, "kind": hook.kind, "layers": [layer.name for layer in hook.layers]}
        for hook in hooks
    ]


@dataclass(frozen=True)
class HookContext:
    """The layer and the call at which a hook is running, for its emitted values."""

    layer: Layer
    call: int
    keep: EmitCallback | None


CURRENT_HOOK: ContextVar[HookContext | None] = ContextVar("hookscope_running_hook", default=None)


def emit(name: str, value: Tensor | float) -> None:
    """Record a value from a user hook.

    It is stored in the capture as ``<module>[:call]/<name>``, with the kind ``emitted``. A run that
    only verifies the recording stores nothing.

    Example:
        >>> import torch, hookscope
        >>> def largest(module, input, output):
        ...     hookscope.emit("largest", output.max())
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        >>> shot = hookscope.capture(net, input=torch.ones(1, 2), layers="1", hooks=largest)
        >>> list(shot)
        ['1/largest', '1/output']
    """
    place = CURRENT_HOOK.get()
    if place is None:
        raise RequestError(
            f"hookscope.emit({name!r}, ...) was called outside a hook of a running recording.",
            "Call it in a function that is passed to --hook, or to hooks= in Python.",
        )
    if not name or "/" in name:
        raise RequestError(
            f"{name!r} is not a valid name for a value.", "Use text without a slash."
        )
    if name.partition(".")[0] in ("output", "input") or name.endswith((".grad", ".update")):
        raise RequestError(
            f"The name {name!r} is reserved for values that hookscope records.",
            "Choose another name.",
        )
    if not isinstance(value, Tensor):
        try:
            value = torch.as_tensor(value, dtype=torch.float64 if type(value) is float else None)
        except (TypeError, ValueError, RuntimeError):
            raise RequestError(
                f"A {type(value).__name__} cannot be recorded as {name!r}.",
                "Give a tensor or a number.",
            ) from None
    if place.keep is not None and place.call:
        place.keep(place.layer, place.call, name, value)


class HookBinding(CallSubscriber):
    """One hook at one layer: calls it, checks its result, and replaces the value by it."""

    def __init__(
        self, hook: UserHook, layer: Layer, calls: CallRegistry, keep: EmitCallback | None
    ) -> None:
        self.hook = hook
        self.layer = layer
        self.calls = calls
        self.keep = keep
        self.runs = 0
        self.open = True

    def attach_to_step(self, hook_set: HookSet, optimizer: torch.optim.Optimizer) -> None:
        """Attach to the step of an optimizer, before or after it."""

        def call(step: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
            if not self.open:
                return None
            result = self._run(1, step, args, kwargs)
            if result is not None and pre:
                self._check_same((args, kwargs), result)
            return result

        pre = self.hook.kind == choices.STEP_PRE
        hook_set.around_step(optimizer, *((call, None) if pre else (None, call)))

    def before_call(self, call: ModuleCall) -> BackwardHookPair | None:
        """Run a hook of the kind forward_pre, or insert a gate for the gradients at the inputs."""
        module, number = call.module, call.number
        if self.hook.kind == choices.FORWARD_PRE:
            result = self._run(number, module, call.args)
            if result is not None:
                result = result if isinstance(result, tuple) else (result,)
                self._check_same(call.args, result)
                call.args = result
        elif self.hook.kind == choices.BACKWARD:
            pair = BackwardHookPair(lambda into, out: self._back(number, into, module, into, out))
            call.args = pair.enter(call.args)
            return pair
        return None

    def after_call(self, call: ModuleCall, pair: BackwardHookPair | None) -> None:
        """Run a hook of the kind forward, or insert a gate for the gradients at the outputs."""
        module, number = call.module, call.number
        if pair is not None:
            call.output = pair.leave(call.output)
        elif call.failed:
            return
        elif self.hook.kind == choices.FORWARD:
            result = self._run(number, module, call.args, call.output)
            if result is not None:
                self._check_same(call.output, result)
                call.output = result
        elif self.hook.kind == choices.BACKWARD_PRE:
            call.output = insert_gradient_gate(
                call.output, lambda grads: self._back(number, grads, module, grads)
            )
        elif self.hook.kind == choices.ON_TENSOR:
            call.output = map_tensors(
                call.output,
                lambda path, tensor: insert_gradient_gate(
                    tensor, lambda grads: self._back(number, grads)
                ),
            )

    def _back(self, number: int, grads: Grads, *arguments: Any) -> Grads:
        """Call the hook with gradients; return those that the backward pass continues with."""
        if not self.open or not self.calls.hooks.threads.includes_current_thread():
            return grads
        if not arguments:
            arguments = grads
        result = self._run(number, *arguments)
        if result is None:
            return grads
        result = result if isinstance(result, tuple) else (result,)
        self._check_same(grads, result)
        return result

    def _run(self, number: int, *arguments: Any) -> Any:
        self.runs += 1
        before = CURRENT_HOOK.get()
        try:
            CURRENT_HOOK.set(HookContext(self.layer, number, self.keep))
            return self.hook.function(*arguments)
        except (HookError, CheckFailed):
            raise
        except (Exception, SystemExit) as error:
            raise self._failure(number, error) from error
        finally:
            CURRENT_HOOK.set(before)

    def _failure(self, number: int, error: BaseException) -> HookError:
        code = function_file(self.hook.function)
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == code]
        where = f"line {lines[-1]} of {self.hook.file}, " if lines else ""
        said = error.message if isinstance(error, HookscopeError) else str(error)
        cause = f"{type(error).__name__}: {said}".strip().rstrip(".!:")
        return HookError(
            f"The hook {self.hook.label} failed in {where}{self._location(number)}: {cause}.",
            self.layer.name,
            "All hooks were removed. HOOKSCOPE_DEBUG=1 shows the whole traceback.",
        )

    def _location(self, number: int) -> str:
        if self.hook.kind in choices.STEP_HOOKS:
            when = "before" if self.hook.kind == choices.STEP_PRE else "after"
            return f"{when} the optimizer's step"
        call = f", call {number}" if number > 1 else ""
        return f"at layer {self.layer.title} ({self.layer.type}{call})"

    def _check_same(self, old: Any, new: Any) -> None:
        if outline(old) == outline(new):
            return
        raise HookError(
            f"The hook {self.hook.label} returned {outline(new)} in place of {outline(old)}"
            f" {self._location(1)}.",
            self.layer.name,
            "Return a value of the same structure and shapes, or None to leave it as it is.",
        )


@signal_safe_contextmanager
def attach_user_hooks(
    calls: CallRegistry,
    hooks: Iterable[UserHook],
    recorder: Recorder | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> Iterator[None]:
    """Run ``hooks`` at their layers, or around the steps of ``optimizer``, within the block."""
    sink = None if recorder is None else recorder.sink

    def record(layer: Layer, call: int, name: str, tensor: Tensor) -> None:
        assert sink is not None
        sink.store(RecordKey(layer, call, name, EMITTED), tensor)

    keep = None if sink is None else record
    by_hook = {
        hook: [HookBinding(hook, layer, calls, keep) for layer in hook.layers] for hook in hooks
    }
    bindings = [binding for bound in by_hook.values() for binding in bound]
    backward = [binding for binding in bindings if binding.hook.kind in choices.GRADIENT_HOOKS]
    others = [binding for binding in bindings if binding not in backward]
    try:
        with HookSet(calls.model) if optimizer is not None else nullcontext() as hook_set:
            for binding in (*others, *reversed(backward)):  # a gradient reaches the last one first
                if binding.hook.kind not in choices.STEP_HOOKS:
                    calls.subscribe(binding, [binding.layer])
                elif optimizer is not None and hook_set is not None:
                    binding.attach_to_step(hook_set, optimizer)
            yield
    finally:
        for binding in bindings:
            binding.open = False
            calls.unsubscribe(binding)
    if keep is not None:
        for hook, bound in by_hook.items():
            _log_runs(hook, [binding.runs for binding in bound])


def _log_runs(hook: UserHook, runs: list[int]) -> None:
    if not any(runs):
        log.warning("hook %s (%s) never ran at any of %d layers", hook.label, hook.kind, len(runs))
        return
    times = f"{sum(runs)} time{'' if sum(runs) == 1 else 's'}"
    where = f" at {sum(map(bool, runs))} of {len(runs)} layer{'' if len(runs) == 1 else 's'}"
    place = "" if hook.kind in choices.STEP_HOOKS else where
    log.info("hook: %s (%s) ran %s%s", hook.label, hook.kind, times, place)
