"""Run a model so that nothing of the run stays behind, and tell which module failed if one does."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.errors import CheckFailed, ForwardError, HookscopeError, LossError
from hookscope.execution.failures.failed_call import describe_failure
from hookscope.execution.prepare import Prepared
from hookscope.hooks.capture import Capture
from hookscope.hooks.interventions import forward_interventions
from hookscope.hooks.layers import Layer, layers_of, module_running, submodule, tensors_in_traceback
from hookscope.hooks.recorder import Recorder
from hookscope.hooks.registry import without_compilation
from hookscope.hooks.tensor_sink import ShapeSink
from hookscope.inputs.input_checks import explain_layer_error
from hookscope.results.module_tree import ROOT
from hookscope.sources.meta import meta_copy
from hookscope.sources.wrappers import dispatch_device, release_offloaded_weights
from hookscope.specs.model_spec import LIVE
from hookscope.tensors.interrupts import SignalSafeContext, signal_safe, signal_safe_contextmanager
from hookscope.tensors.nested import as_call, bits_of, map_tensors, walk
from hookscope.tensors.seeding import seeded_throughout
from hookscope.tensors.threads import exclusive_run

log = logging.getLogger("hookscope")

LARGE = 10**9  # bytes from which a recording is announced before it is made


@signal_safe_contextmanager
def preserve_model_state(module: nn.Module, *, train: bool, seed: int) -> Iterator[bool]:
    """Run the block in train or eval mode from a seed, uncompiled; then put everything back.

    Put back are every module's mode, the buffers (batch normalisation changes its own in train
    mode), the ``.grad`` of every parameter and buffer, and the states of the random generators of
    torch, numpy and Python. Another thread that does the same waits until this block has ended.

    Yields:
        Whether some module is in another mode within the block than before.
    """
    # Seeding takes the turn: what is put back is what the model was when no other thread ran it.
    with without_compilation(module), seeded(module, seed):
        modes = {m: m.training for m in module.modules()}
        buffers = [BufferSnapshot(m, dict(m._buffers)) for m in modes if m._buffers]
        owned = chain.from_iterable((m._parameters.values(), m._buffers.values()) for m in modes)
        tensors = chain.from_iterable(owned)
        grads = {t: t.grad for t in tensors if t is not None and t.requires_grad}
        try:
            if any(mode != train for mode in modes.values()):  # setting it anew takes long
                module.train(train)
            for leaf in grads:
                leaf.grad = None
            yield any(mode != train for mode in modes.values())
        finally:
            for owner, mode in modes.items():
                if owner.training != mode:
                    owner.training = mode
            for leaf, grad in grads.items():
                leaf.grad = grad
            for held in buffers:
                held.put_back()
            release_offloaded_weights(modes)


class BufferSnapshot:
    """The buffers of one module as they are now, to be put back later."""

    def __init__(self, owner: nn.Module, buffers: dict[str, Tensor | None]) -> None:
        self.owner = owner
        self.buffers = buffers
        self.values = {
            name: buffer.detach().clone()
            for name, buffer in buffers.items()
            if buffer is not None and not buffer.is_meta
        }

    @torch.no_grad()
    def put_back(self) -> None:
        """Bind the same tensors to the same names, with the values they had."""
        self.owner._buffers.clear()
        self.owner._buffers.update(self.buffers)
        for name, value in self.values.items():
            buffer = self.buffers[name]
            assert buffer is not None
            if buffer.shape != value.shape:
                buffer.data = value
            elif buffer.layout is not torch.strided or not torch.equal(buffer, value):
                buffer.copy_(value)  # its version tells nothing: batch normalisation leaves it


@signal_safe_contextmanager
def frozen(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Let none of these parameters and buffers require grad within the block."""
    leaves = [tensor for tensor in tensors if tensor.requires_grad]
    try:
        for leaf in leaves:
            leaf.requires_grad_(False)
        yield
    finally:
        for leaf in leaves:
            leaf.requires_grad_(True)


def grad_mode(enabled: bool) -> SignalSafeContext[None]:
    """Let autograd follow what the block does, or not."""
    return signal_safe(torch.enable_grad() if enabled else torch.no_grad())


@signal_safe_contextmanager
def seeded(module: nn.Module, seed: int) -> Iterator[None]:
    """Seed the generators that a run of ``module`` may draw from, and put their states back."""
    with seeded_throughout(seed, gpus_of(module)):
        yield


def gpus_of(module: nn.Module) -> list[int]:
    """The indices of the CUDA devices that a run of ``module`` may draw on."""
    modules = list(module.modules())  # gone through once: it takes a while
    devices = {p.device for m in modules for p in m._parameters.values() if p is not None}
    devices |= {device for device in [dispatch_device(modules)] if device is not None}
    return sorted(d.index for d in devices if d.type == "cuda" and d.index is not None)


def forward(
    prepared: Prepared,
    capture: Capture | None = None,
    call: tuple[tuple[Any, ...], dict[str, Any]] | None = None,
) -> Any:
    """Call the model once, with the arguments in ``call`` or, by default, with fresh ones.

    Raises:
        ForwardError: the model raised; names the module that was running and how far the recording
            in ``capture`` had come.
    """
    args, kwargs = call or prepared.fresh_call()
    try:
        return prepared.run(args, kwargs)
    except HookscopeError:
        raise
    except (Exception, SystemExit) as error:  # a model that ends the program is a failure too
        raise forward_error(prepared.module, prepared.value, error, capture) from error


def backward(prepared: Prepared, loss: Tensor, capture: Capture) -> None:
    """Run a loss backward.

    Raises:
        LossError: nothing that the loss depends on requires grad.
        ForwardError: autograd raised.
    """
    if not loss.requires_grad:
        raise LossError(
            "Nothing that the loss depends on requires grad: every parameter is frozen, and the"
            " model's input is not of a floating-point type or does not reach its output.",
            "Unfreeze a parameter, or choose another --loss.",
        )
    try:
        loss.backward()
    except HookscopeError:
        raise
    except (Exception, SystemExit) as error:
        module, value = prepared.module, prepared.value
        raise forward_error(module, value, error, capture, during="backward") from error


def forward_error(
    module: nn.Module,
    value: Any,
    error: BaseException,
    capture: Capture | None = None,
    during: str = "forward",
) -> ForwardError:
    """The error that says where in the model ``error`` arose and what had been recorded."""
    layer = module_running(module, error.__traceback__)
    running = submodule(module, layer) or module
    kind = type(running).__name__
    done = "Nothing had been recorded before it."
    if capture:
        last = next(reversed(capture.records)).key
        done = f"Recorded before it, {len(capture)} in all, the last: {last}."
    cause = f"{type(error).__name__}: {error}".strip().rstrip(".!:")
    given = [tensor for _, tensor in walk(as_call(value))]
    shapes = ", ".join("x".join(map(str, t.shape)) for t in given)
    looks = {(t.shape, t.dtype) for t in given}
    reached = [
        t for t in tensors_in_traceback(running, error.__traceback__) if (t.shape, t.dtype) in looks
    ]
    where = "the model itself" if layer == ROOT else f"layer {layer}"
    failed = ForwardError(
        f"The {during} pass failed in {where} ({kind}): {cause}.",
        layer,
        len(capture or ()),
        f"{done} The input was {shapes or 'no tensor'}; --shape or --input sets it.",
    )
    failed.exception, failed.with_grad = error, torch.is_grad_enabled()
    if during == "forward":
        failed.failure = describe_failure(
            Layer(layer, running), error, capture, explain_layer_error(running, reached)
        )
    return failed


@contextmanager
def second_run(recorded: int) -> Iterator[None]:
    """Let a failure of the model in the block say that the run before it succeeded.

    Args:
        recorded: how many tensors that run recorded.
    """
    try:
        yield
    except ForwardError as error:
        kept = f" and recorded {recorded} tensor{'s' * (recorded != 1)}" if recorded else ""
        raise ForwardError(
            f"The first run succeeded{kept}. The second run, with which it is compared, failed:"
            f" {error.message}",
            error.layer,
            recorded,
            "Nothing was kept. The model does not do the same in every call: it may count its"
            " calls, or keep a value from one to the next. hookscope.record() in Python records a"
            " single run of your own.",
        ) from error


def verify_output_unchanged(
    prepared: Prepared, output: Any, *, excuse_noise: bool = False, recorded: int = 0
) -> None:
    """Run the model again with nothing but its plan in force, and demand the very same bits.

    With ``excuse_noise`` a model that is not deterministic by itself, which a further run without
    hooks tells, gets a warning. PyTorch's attention leaves its fast path where it finds hooks or a
    function mode; then the run that it is held against leaves it too, and a note says so.
    ``recorded`` is how many tensors the first run recorded, for the error if the second one fails.

    Raises:
        CheckFailed: some tensor of the output differs.
        ForwardError: the model raised, which it did not in the first run.
    """
    with second_run(recorded):
        _compare_outputs(prepared, output, excuse_noise)


def _compare_outputs(prepared: Prepared, output: Any, excuse_noise: bool) -> None:
    bare = run_without_hooks(prepared)
    different = first_difference(output, bare)
    if not different:
        return
    with disable_mha_fast_path():
        slow = run_without_hooks(prepared)
    if not first_difference(output, slow):
        log.info(
            "attention: run without PyTorch's fast path, which hooks and --ops turn off. A run"
            " without hooks and without it gives the same bits, one with it differs%s",
            _by_how_much(output, bare),
        )
        return
    if excuse_noise and first_difference(bare, run_without_hooks(prepared)):
        log.warning(
            "two runs of the model without hooks differ, so it cannot be told whether hooks change"
            " its output"
        )
        return
    raise CheckFailed(
        f"A second run without hooks gave another result: {different} differs.",
        "Either the model is not deterministic, or it counts on a tensor being the very one it"
        " has elsewhere. Nothing was kept. Try fewer layers, or another --device.",
    )


@signal_safe_contextmanager
def disable_mha_fast_path() -> Iterator[None]:
    """Keep attention modules from their fused kernels for eval mode without autograd.

    The switch is one of the whole process: another thread that runs a model so waits.
    """
    with exclusive_run():
        before = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(before)


def run_without_hooks(prepared: Prepared) -> Any:
    """Run the model from the same seed with nothing but its plan in force; leave it as it was."""
    guard = preserve_model_state(prepared.module, train=prepared.train, seed=prepared.seed)
    with guard, forward_interventions(prepared.plan, prepared.module, prepared.seed):
        return detach_clone(forward(prepared))


def detach_clone(output: Any) -> Any:
    """The output as it is now: it may be a buffer of the model, which is about to be put back."""
    return map_tensors(output, lambda path, tensor: tensor.detach().clone())


def first_difference(output: Any, again: Any) -> str:
    """The first tensor in which two outputs differ; empty where they are the same."""
    first, second = list(walk(output)), list(walk(again))
    if [path for path, _ in first] != [path for path, _ in second]:
        return "the structure of the output"
    for (path, a), (_, b) in zip(first, second, strict=True):
        if not bit_identical(a, b):
            return ".".join(("output", *path))
    return ""


def _by_how_much(output: Any, again: Any) -> str:
    """The end of a sentence that says that two outputs differ."""
    pairs = [(a, b) for (_, a), (_, b) in zip(walk(output), walk(again), strict=False) if a.numel()]
    if any(a.shape != b.shape for a, b in pairs):
        return " in shape"
    wide = [(a.to(torch.complex128), b.to(torch.complex128)) for a, b in pairs]
    return f" by {max((float((a - b).abs().max()) for a, b in wide), default=0.0):.2g}"


def bit_identical(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors agree in shape, dtype and every bit; NaN equals the same NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(bits_of(a), bits_of(b))


def estimate_bytes(prepared: Prepared, kinds: Iterable[str]) -> int | None:
    """Bytes that recording ``kinds`` would take; None where that cannot be told without running.

    A copy of the model runs on the meta device, so that whatever the pass leaves behind in it (a
    cache, a counter) is not in the model itself. A gradient weighs what its tensor weighs.
    """
    if prepared.generate is not None:  # which token comes next takes values
        return None
    wanted = {kind.removesuffix(".grad") for kind in kinds}
    names = {layer.name for layer in prepared.layers}
    try:
        ghost = meta_copy(prepared.module)
        layers = [layer for layer in layers_of(ghost) if layer.name in names]
        args, kwargs = as_call(map_tensors(prepared.value, lambda path, tensor: tensor.to("meta")))
        recorder = Recorder(ghost, layers, wanted - {"param"}, sink=ShapeSink)
        with seeded(ghost, prepared.seed), signal_safe(torch.no_grad()), recorder as capture:
            ghost(*args, **kwargs)
    except (Exception, SystemExit):  # the true run will show the model's own errors
        return None
    owned = {p for x in prepared.layers for p in x.module.parameters(recurse=False)}
    weights = sum(p.numel() * p.element_size() for p in owned) if "param" in wanted else 0
    return capture.nbytes + weights


def check_recording_size(prepared: Prepared, kinds: Iterable[str], max_bytes: int | None) -> None:
    """Tell a large recording before it is made, and refuse one over ``max_bytes``.

    A live module's code is run the extra time only if a limit was given.
    """
    if max_bytes is None and prepared.loaded.source == LIVE:
        return
    expected = estimate_bytes(prepared, kinds)
    if expected is None:
        return
    if max_bytes is not None and expected > max_bytes:
        raise CheckFailed(
            f"Recording this takes {expected:,} bytes, and the limit is {max_bytes:,}.",
            "Choose fewer layers with --layer, or raise --max-bytes.",
        )
    if expected >= LARGE:
        log.info("size: about %.1f GB will be recorded and written", expected / 1e9)


def check_single_thread(recorder: Recorder, why: str) -> None:
    """Check that no other thread called the model during a run that changed it for a while.

    Args:
        recorder: recorded the run; it does not see calls of layers that were not chosen.
        why: what was changed; empty if nothing was.

    Raises:
        HookscopeError: another thread did; what its call returned may be wrong.
    """
    if why and recorder.called_elsewhere:
        raise HookscopeError(
            f"Another thread called the model during the run, which {why}: what that call returned"
            " is not what the model as it was returns.",
            "Let no other thread call it meanwhile, or copy the model first (copy.deepcopy)."
            " hookscope.record() changes nothing in the model.",
        )


def check_all_ran(capture: Capture) -> None:
    """Demand that every matched layer ran.

    Raises:
        CheckFailed: names the first that did not, and the likely cause.
    """
    not_executed, matched = capture.coverage.not_executed, capture.coverage.matched
    if not_executed:
        first = not_executed[0]
        raise CheckFailed(
            f"{len(not_executed)} of {matched} matched layers never ran, first {first.module}"
            f" ({first.type}): {first.reason}.",
            "Nothing was written. Leave them out with --layer '!NAME', or drop --strict.",
        )
