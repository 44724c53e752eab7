"""Contexts for a run that restore the state of the model and of the process after it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor, nn

from hookscope.files.signal_safety import signal_safe_contextmanager
from hookscope.hooks.torch_state import without_compilation
from hookscope.sources.structure import modules_in
from hookscope.sources.wrappers import dispatch_device, release_offloaded_weights
from hookscope.tensors.grad_mode import without_grad
from hookscope.tensors.seeding import seeded_throughout
from hookscope.tensors.threads import exclusive_run


@signal_safe_contextmanager
def preserve_model_state(module: nn.Module, *, train: bool | None, seed: int) -> Iterator[bool]:
    """Run the block in train or eval mode from a seed, uncompiled; then restore the state.

    With ``train`` None each module keeps its mode.

    Restored are modes, buffers, the ``.grad`` of parameters and buffers, and the states of the
    random generators. Another thread that enters such a block waits until this one ends.
    """
    # Seeding excludes other threads: the state is stored while none of them runs the model.
    with without_compilation(module), seeded(module, seed):
        modes = {m: m.training for m in modules_in(module)}
        buffers = [BufferSnapshot(m, dict(m._buffers)) for m in modes if m._buffers]
        owned = chain.from_iterable((m._parameters.values(), m._buffers.values()) for m in modes)
        tensors = chain.from_iterable(owned)
        grads = {t: t.grad for t in tensors if t is not None and t.requires_grad}
        try:
            switches = train is not None and any(mode != train for mode in modes.values())
            if train is not None and switches:  # setting it takes long
                module.train(train)
            for leaf in grads:
                leaf.grad = None
            yield switches
        finally:
            for owner, mode in modes.items():
                if owner.training != mode:
                    owner.training = mode
            for leaf, grad in grads.items():
                leaf.grad = grad
            for snapshot in buffers:
                snapshot.restore()
            release_offloaded_weights(modes)


class BufferSnapshot:
    """The buffers of one module, with a copy of their values."""

    def __init__(self, owner: nn.Module, buffers: dict[str, Tensor | None]) -> None:
        self.owner = owner
        self.buffers = buffers
        self.values = {
            name: buffer.detach().clone()
            for name, buffer in buffers.items()
            if buffer is not None and not buffer.is_meta
        }

    @without_grad
    def restore(self) -> None:
        """Bind the same tensors to the same names, with their former values."""
        self.owner._buffers.clear()
        self.owner._buffers.update(self.buffers)
        for name, value in self.values.items():
            buffer = self.buffers[name]
            assert buffer is not None
            if buffer.shape != value.shape:
                buffer.data = value
            elif buffer.layout is not torch.strided or not torch.equal(buffer, value):
                buffer.copy_(value)  # always: batch normalisation does not change the version


@signal_safe_contextmanager
def frozen(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Set ``requires_grad`` of parameters and buffers to False within the block."""
    leaves = [tensor for tensor in tensors if tensor.requires_grad]
    try:
        for leaf in leaves:
            leaf.requires_grad_(False)
        yield
    finally:
        for leaf in leaves:
            leaf.requires_grad_(True)


@signal_safe_contextmanager
def disable_mha_fast_path() -> Iterator[None]:
    """Keep attention modules from their fused kernels; a block of another thread waits."""
    with exclusive_run():
        before = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(before)


@signal_safe_contextmanager
def seeded(module: nn.Module, seed: int) -> Iterator[None]:
    """Seed the random generators that a run of ``module`` may use; restore their states."""
    with seeded_throughout(seed, gpus_of(module)):
        yield


def random_state(gpus: Sequence[int] = ()) -> tuple[object, ...]:
    """Return the states of torch's, Python's and numpy's generators, which can be compared."""
    generators = [torch.default_generator, *(torch.cuda.default_generators[gpu] for gpu in gpus)]
    states = [bytes(generator.get_state().numpy()) for generator in generators]
    kind, keys, *rest = np.random.get_state()
    return states, random.getstate(), kind, bytes(np.asarray(keys)), rest


def gpus_of(module: nn.Module) -> list[int]:
    """Return the indices of the CUDA devices that a run of ``module`` may use."""
    modules = modules_in(module)
    devices = {p.device for m in modules for p in m._parameters.values() if p is not None}
    devices |= {device for device in [dispatch_device(modules)] if device is not None}
    return sorted(d.index for d in devices if d.type == "cuda" and d.index is not None)
