"""All that a call must leave as it was: in a model, in the process, and in random generators."""

from __future__ import annotations

import gc
import hashlib
import logging
import os
import pickle
import random
import signal
import sys
import threading
import warnings
from typing import Any

import numpy as np
import torch
from torch import nn

_HOOKS = (
    *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
    *("_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs", "_state_dict_hooks"),
    *("_load_state_dict_pre_hooks", "_state_dict_pre_hooks", "_non_full_backward_hooks"),
)


def _bits(tensor: torch.Tensor | None) -> str:
    if tensor is None:
        return ""
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{id(tensor)} {tensor.dtype} {tuple(tensor.shape)} {hashlib.sha256(data).hexdigest()}"


def state_of_model(model: nn.Module) -> dict[str, Any]:
    """Hooks, modes, parameters, gradients, buffers and attributes of every module."""
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        found[f"{name} training"] = module.training
        for hooks in _HOOKS:
            found[f"{name} {hooks}"] = list(getattr(module, hooks, ()))
        for key, value in vars(module).items():
            if key not in ("_parameters", "_buffers", "_modules", *_HOOKS):
                found[f"{name} attribute {key}"] = id(value), type(value)
        found[f"{name} children"] = {key: id(value) for key, value in module._modules.items()}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        hooks = len(tensor._backward_hooks or ())
        found[f"{name} tensor"] = _bits(tensor), tensor.requires_grad, hooks
        found[f"{name} grad"] = _bits(tensor.grad)
    return found


def state_of_process() -> dict[str, Any]:
    """What other code in this process could notice."""
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    return {
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "path": list(sys.path),
        "arguments": list(sys.argv),
        "warnings": (list(warnings.filters), warnings.showwarning),
        "threads": {thread for thread in threading.enumerate() if thread.is_alive()},
        "open files": _open_files(),
        "signals": handlers,
        "streams": (sys.stdout, sys.stderr, sys.stdin, sys.excepthook, sys.displayhook),
        "tracing": (sys.gettrace(), sys.getprofile(), gc.isenabled(), gc.get_threshold()),
        "logging": (list(logging.getLogger().handlers), logging.getLogger().level),
        "mask": _mask(),
        **_state_of_torch(),
    }


def _open_files() -> list[str]:
    """The open files by name; which pipes and sockets there are says only their number."""
    names = []
    for number in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        try:
            name = os.readlink(f"/proc/self/fd/{number}")
        except OSError:  # the listing itself
            continue
        names.append(name)
    return sorted(names)


def _mask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _state_of_torch() -> dict[str, Any]:
    backends = torch.backends
    return {
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "threads of torch": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "anomalies": (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        "deterministic": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "precision": (torch.get_float32_matmul_precision(), backends.mkldnn.enabled),
        "printing": vars(torch._tensor_str.PRINT_OPTS).copy(),
        "modes": (
            torch.overrides._len_torch_function_stack(),
            torch.utils._python_dispatch._len_torch_dispatch_stack(),
        ),
        "hooks of all modules": tuple(
            len(getattr(nn.modules.module, name))
            for name in vars(nn.modules.module)
            if name.startswith("_global_") and name.endswith("_hooks")
        ),
        "attention": (
            backends.cuda.flash_sdp_enabled(),
            backends.cuda.mem_efficient_sdp_enabled(),
            backends.cuda.math_sdp_enabled(),
        ),
        "patched": (nn.Module.__call__, torch.Tensor.backward, torch.optim.Optimizer.step),
    }


def state_of_generators() -> dict[str, bytes]:
    """The states of the random generators of Python, numpy and torch."""
    return {
        "random": pickle.dumps(random.getstate()),
        "numpy": pickle.dumps(np.random.get_state()),
        "torch": torch.get_rng_state().numpy().tobytes(),
    }


def changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """What differs, by name."""
    return {
        name: (before.get(name), after.get(name))
        for name in before | after
        if before.get(name) != after.get(name)
    }
