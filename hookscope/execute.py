"""Run a model so that nothing of the run stays behind, and tell which module failed if one does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.errors import CheckFailed, ForwardError, HookscopeError
from hookscope.hooks import Recorder
from hookscope.modules import module_running
from hookscope.prepare import Prepared
from hookscope.records import Capture
from hookscope.tensors import as_call, map_tensors, walk


@contextmanager
def untouched(module: nn.Module, *, train: bool, seed: int) -> Iterator[None]:
    """Run the block in train or eval mode from a seed; then put everything back.

    Put back are every module's mode, the buffers (batch normalisation changes its own in train
    mode), the ``.grad`` of every parameter, and the states of the random generators.
    """
    modes = {m: m.training for m in module.modules()}
    buffers = [
        (m, name, buffer, buffer.detach().clone())
        for m in module.modules()
        for name, buffer in m.named_buffers(recurse=False)
    ]
    grads = {p: p.grad for p in module.parameters()}
    gpus = sorted({p.device.index for p in grads if p.device.type == "cuda"})
    with torch.random.fork_rng(devices=gpus):
        torch.manual_seed(seed)
        module.train(train)
        try:
            for parameter in grads:
                parameter.grad = None
            yield
        finally:
            for owner, mode in modes.items():
                owner.training = mode
            for parameter, grad in grads.items():
                parameter.grad = grad
            with torch.no_grad():
                for owner, name, buffer, value in buffers:
                    owner._buffers[name] = buffer
                    if not torch.equal(buffer, value):
                        buffer.copy_(value)


def forward(prepared: Prepared, capture: Capture | None = None) -> Any:
    """Call the model once.

    Raises:
        ForwardError: the model raised; names the module that was running and how far the recording
            in ``capture`` had come.
    """
    args, kwargs = prepared.fresh_call()
    try:
        return prepared.module(*args, **kwargs)
    except HookscopeError:
        raise
    except Exception as error:
        raise model_failed(prepared, error, capture) from error


def model_failed(
    prepared: Prepared, error: Exception, capture: Capture | None, during: str = "forward"
) -> ForwardError:
    """The error that says where in the model ``error`` arose and what had been recorded."""
    layer = module_running(prepared.module, error.__traceback__)
    kind = type(prepared.module.get_submodule("" if layer == "." else layer)).__name__
    done = "nothing had been recorded before it"
    if capture:
        last = next(reversed(capture.records)).key
        done = f"{len(capture)} tensors had been recorded before it, the last {last}"
    cause = f"{type(error).__name__}: {error}".strip().rstrip(".")
    shapes = ", ".join("x".join(map(str, t.shape)) for _, t in walk(prepared.value))
    where = "the model itself" if layer == "." else f"layer {layer}"
    return ForwardError(
        f"The {during} pass failed in {where} ({kind}): {cause}.",
        layer,
        len(capture or ()),
        f"{done.capitalize()}. The input was {shapes}; --shape or --input sets it.",
    )


def demand_unchanged(prepared: Prepared, output: Any) -> None:
    """Run the model again without hooks and demand the very same bits.

    Raises:
        CheckFailed: some tensor of the output differs.
    """
    with untouched(prepared.module, train=prepared.train, seed=prepared.seed):
        again = forward(prepared)
    first, second = list(walk(output)), list(walk(again))
    for (path, a), (_, b) in zip(first, second, strict=False):
        if not same_bits(a, b):
            raise _changed(".".join(("output", *path)))
    if len(first) != len(second):
        raise _changed("the number of output tensors")


def _changed(what: str) -> CheckFailed:
    return CheckFailed(
        f"A second run without hooks gave another result: {what} differs.",
        "Either the model is not deterministic, or it relies on changing a module's result in"
        " place; nothing was kept. Try fewer layers, or another --device.",
    )


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors agree in shape, dtype and every bit; NaN equals the same NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.is_quantized or a.layout is not torch.strided:
        a, b = (t.dequantize() if t.is_quantized else t.to_dense() for t in (a, b))
    a, b = (t.detach().resolve_conj().resolve_neg().contiguous() for t in (a, b))
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def estimated_bytes(prepared: Prepared, kinds: Iterable[str]) -> int | None:
    """Bytes that recording ``kinds`` would take; None where that cannot be told without running.

    The model runs once on the meta device, where tensors have shapes and no values; its own weights
    are neither touched nor copied. A gradient weighs what its tensor weighs.
    """
    module, wanted = prepared.module, {kind.removesuffix(".grad") for kind in kinds}
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    ghosts = {name: torch.empty_like(tensor, device="meta") for name, tensor in state.items()}
    ghost_value = map_tensors(prepared.value, lambda path, tensor: tensor.to("meta"))
    recorder = Recorder(module, prepared.layers, wanted - {"param"})
    try:
        with torch.no_grad(), recorder as capture:
            torch.func.functional_call(module, ghosts, *as_call(ghost_value))
    except Exception:  # whatever the model does on meta tensors, the true run will show its errors
        return None
    owned = {p for x in prepared.layers for p in x.module.parameters(recurse=False)}
    weights = sum(p.numel() * p.element_size() for p in owned) if "param" in wanted else 0
    return capture.nbytes + weights
