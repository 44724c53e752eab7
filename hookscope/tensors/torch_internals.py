"""Every private name of PyTorch that hookscope uses; a release may change any of them.

No other file names one of a module of torch; private attributes that others read are listed here.
What ``_found`` does not find is replaced by its fallback, or else by an error that names the
release where the name is used: the rest of hookscope runs without it.
``tests/tensors/test_torch_internals.py`` compares this file with the installed release.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from importlib import import_module
from types import CodeType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from hookscope.errors import EnvironmentFault

_REQUIRED = object()

# Private attributes of PyTorch's objects, used where the object is at hand.
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "torch.Tensor": ("_backward_hooks", "_base", "_is_view", "_nested_tensor_size", "_version"),
    "torch.UntypedStorage": ("_cdata",),
    "torch.nn.Module": (
        *("_buffers", "_modules", "_parameters", "_non_persistent_buffers_set"),
        *("_forward_hooks", "_forward_hooks_always_called", "_forward_hooks_with_kwargs"),
        *("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_apply", "_compiled_call_impl"),
    ),
    "torch.autograd.graph.Node": ("_saved_other", "_sequence_nr"),
    "the node of a power": ("_saved_exponent",),
    "the class of the node of a torch.autograd.Function": ("_forward_cls",),
    "torch.amp.GradScaler": ("_per_optimizer_states",),
    "torch.export.ExportedProgram": ("_graph_module", "_graph_signature"),
    "torch._ops.OpOverload": ("_overloadpacket", "_schema"),
    "an iterator of torch.utils.data.DataLoader": ("_shutdown_workers",),
}

# What ``sources/torchscript/private.py`` uses of ``torch._C``, and of scripted modules.
SCRIPTED = (
    *("AnyType", "BoolType", "BufferDict", "CompilationUnit", "ComplexType", "DeviceObjType"),
    *("FloatType", "Graph", "IntType", "ModuleDict", "NoneType", "ParameterDict"),
    *("PyTorchFileReader", "ScriptObject", "StringType", "TensorBase", "TensorType", "TupleType"),
    *("_GeneratorType", "_VariableFunctions", "_create_function_from_graph"),
    *("_get_operation_overload", "_jit_pass_inline", "_jit_try_infer_type", "_nn"),
    *("import_ir_module", "parse_ir", "parse_schema"),
)
SCRIPTED_ATTRIBUTES = (
    *("_c", "_type", "_get_forward_hooks", "_get_forward_pre_hooks", "_get_method"),
    "_method_names",
)


def missing(name: str) -> EnvironmentFault:
    """Return the error for a private name that the installed PyTorch does not have."""
    return EnvironmentFault(
        f"torch {torch.__version__} has no {name}, which this part of hookscope uses.",
        "Install a newer hookscope, or an older torch.",
    )


def _found(name: str, fallback: Any = _REQUIRED) -> Any:
    """Return what has this dotted name, ``fallback``, or a function that raises ``missing``."""
    value: Any = torch
    path = "torch"
    for part in name.split(".")[1:]:
        path += f".{part}"
        if not hasattr(value, part) and isinstance(value, ModuleType):
            with suppress(ImportError):
                import_module(path)
        value = getattr(value, part, _REQUIRED)
        if value is _REQUIRED:
            break
    if value is not _REQUIRED:
        return value
    if fallback is not _REQUIRED:
        return fallback

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        raise missing(name)

    return stand_in


class _TorchC:
    """The names of ``torch._C`` that are listed in ``SCRIPTED``."""

    def __getattr__(self, name: str) -> Any:
        if name not in SCRIPTED:  # others are asked for too, such as __wrapped__ by inspect
            raise AttributeError(name)
        value = _found(f"torch._C.{name}", None)
        if value is None:
            raise missing(f"torch._C.{name}")
        setattr(self, name, value)
        return value


# Function modes, dispatch modes and subclasses ---------------------------------------------------

DisableTorchFunction: Callable[[], AbstractContextManager[None]] = _found(
    "torch._C.DisableTorchFunction"
)
DisableTorchFunctionSubclass: Callable[[], AbstractContextManager[None]] = _found(
    "torch._C.DisableTorchFunctionSubclass"
)
disable_current_modes: Callable[[], AbstractContextManager[object]] = _found(
    "torch.utils._python_dispatch._disable_current_modes"
)
len_function_stack: Callable[[], int] = _found("torch._C._len_torch_function_stack")
current_function_mode: Callable[[], Any] = _found("torch.overrides._get_current_function_mode")
push_function_mode: Callable[[Any], None] = _found("torch.overrides._push_mode")
pop_function_mode: Callable[[], Any] = _found("torch.overrides._pop_mode")
pop_function_mode_temporarily: Callable[..., Any] = _found("torch.overrides._pop_mode_temporarily")
len_dispatch_stack: Callable[[], int] = _found("torch._C._len_torch_dispatch_stack")
TorchDispatchMode: Any = _found("torch.utils._python_dispatch.TorchDispatchMode", object)
push_dispatch_mode: Callable[[Any], None] = _found("torch.utils._python_dispatch._push_mode")
pop_dispatch_mode: Callable[[], Any] = _found("torch.utils._python_dispatch._pop_mode")
is_wrapped_by_functorch: Callable[[Tensor], bool] = _found(
    "torch._C._functorch.is_functorch_wrapped_tensor", lambda tensor: False
)

# Operators ---------------------------------------------------------------------------------------

OpOverload: Any = _found("torch._ops.OpOverload", type(torch.ops.aten.relu.default))
OpOverloadPacket: Any = _found("torch._ops.OpOverloadPacket", type(torch.ops.aten.relu))
HigherOrderOperator: Any = _found("torch._ops.HigherOrderOperator", ())
# The operator that asks a tensor without values for its device.
device_of: Any = _found("torch.ops.prim.device.default", None)
# The operator of Tensor.item().
value_of: Any = _found("torch.ops.aten._local_scalar_dense.default", None)
# Attention on the CPU, which the counter of FLOPs does not know; None without such an operator.
cpu_attention: Any = _found("torch.ops.aten._scaled_dot_product_flash_attention_for_cpu", None)
cpu_attention_backward: Any = _found(
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward", None
)
# The whole of nn.MultiheadAttention, in inference.
native_attention: Any = _found("torch.ops.aten._native_multi_head_attention", None)
# The code that computes a convolution; without it, no workspace of one is known.
select_conv_backend: Callable[..., Any] = _found(
    "torch._C._select_conv_backend", lambda *arguments: None
)
# The same on a GPU, whose arguments are in the same order.
flash_attention: Any = _found("torch.ops.aten._scaled_dot_product_flash_attention", None)
flash_attention_backward: Any = _found(
    "torch.ops.aten._scaled_dot_product_flash_attention_backward", None
)
foreach_norm: Callable[..., Sequence[Tensor]] = _found(
    "torch._foreach_norm",
    lambda tensors, order, dtype: [
        torch.linalg.vector_norm(one, order, dtype=dtype) for one in tensors
    ],
)
foreach_div: Callable[[Sequence[Tensor], Sequence[Any]], Sequence[Tensor]] = _found(
    "torch._foreach_div",
    lambda tensors, others: [a / b for a, b in zip(tensors, others, strict=True)],
)
foreach_sub: Callable[[Sequence[Tensor], Sequence[Tensor]], Sequence[Tensor]] = _found(
    "torch._foreach_sub",
    lambda tensors, others: [a - b for a, b in zip(tensors, others, strict=True)],
)
foreach_sub_: Callable[[Sequence[Tensor], Sequence[Tensor]], object] = _found(
    "torch._foreach_sub_",
    lambda tensors, others: [a.sub_(b) for a, b in zip(tensors, others, strict=True)],
)
foreach_copy_: Callable[[Sequence[Tensor], Sequence[Tensor]], object] = _found(
    "torch._foreach_copy_",
    lambda tensors, others: [a.copy_(b) for a, b in zip(tensors, others, strict=True)],
)
foreach_sqrt_: Callable[[Sequence[Tensor]], object] = _found(
    "torch._foreach_sqrt_", lambda tensors: [one.sqrt_() for one in tensors]
)
foreach_clamp_min_: Callable[[Sequence[Tensor], float], object] = _found(
    "torch._foreach_clamp_min_", lambda tensors, least: [one.clamp_min_(least) for one in tensors]
)

# Autograd ----------------------------------------------------------------------------------------

# The public function is a context manager whose end an interrupt can prevent.
set_grad_enabled: Callable[[bool], None] = _found("torch._C._set_grad_enabled")
current_graph_task_id: Callable[[], int] = _found("torch._C._current_graph_task_id")
next_sequence_nr: Callable[[], int] = _found("torch._C._autograd._get_sequence_nr")
# The node of the graph that a backward pass runs now; without it, no layer is known by its node.
current_node: Callable[[], Any] = _found("torch._C._current_autograd_node", lambda: None)
top_saved_tensors_hooks: Callable[[bool], object] = _found(
    # Without it, hooks on saved tensors are taken to be set.
    "torch._C._autograd._top_saved_tensors_default_hooks",
    lambda ignores_tracing: True,
)

# Modules -----------------------------------------------------------------------------------------

GLOBAL_FORWARD_HOOKS: dict[int, Any] = _found("torch.nn.modules.module._global_forward_hooks", {})
GLOBAL_FORWARD_PRE_HOOKS: dict[int, Any] = _found(
    "torch.nn.modules.module._global_forward_pre_hooks", {}
)
# What runs while a module is called; the inner one calls its hooks.
CALL_CODE: CodeType = _found("torch.nn.Module._call_impl", nn.Module.__call__).__code__
OUTER_CALL_CODE: CodeType = _found(
    "torch.nn.Module._wrapped_call_impl", nn.Module.__call__
).__code__
ConvNd: Any = _found("torch.nn.modules.conv._ConvNd", (nn.Conv1d, nn.Conv2d, nn.Conv3d))
parse_to: Callable[..., tuple[Any, Any, bool, Any]] = _found("torch._C._nn._parse_to")

# Exported and scripted programs ------------------------------------------------------------------

pytree: Any = _found("torch.utils._pytree")
is_tracing: Callable[[], bool] = _found("torch._C._is_tracing")
torch_c: Any = _TorchC()


def remove_effect_tokens(program: Any) -> Any:
    """Return an exported program without the tokens that order its side effects."""
    # Found here because torch.export takes a second to import.
    return _found("torch.export._remove_effect_tokens_pass._remove_effect_tokens")(program)


def export_reader() -> Any:
    """Return the reader of exported archives; None before torch 2.8, whose archives are others."""
    return _found("torch.export.pt2_archive.PT2ArchiveReader", None)


def script_compiler() -> tuple[ModuleType, str]:
    """Return the module and name of what compiles a module, and its hooks too, to TorchScript."""
    module = _found("torch.jit._recursive", None)
    if module is None:
        raise missing("torch.jit._recursive")
    return module, "create_script_module"


# Thread-local state ------------------------------------------------------------------------------

_has_object: Callable[[str], bool] = _found("torch._C._is_key_in_tls")
_get_object: Callable[[str], Any] = _found("torch._C._get_obj_in_tls")
_set_object: Callable[[str, Any], None] = _found("torch._C._stash_obj_in_tls")
_remove_object: Callable[[str], None] | None = _found("torch._C._remove_obj_from_tls", None)


class ThreadObject:
    """An object for each thread, which PyTorch passes to the threads of its backward pass.

    Remove it before the thread ends. PyTorch frees its thread-local state after Python has deleted
    the thread, and needs Python to free an object in it: a process that ends at that moment aborts.
    """

    def __init__(self, key: str) -> None:
        self._key = key

    def get(self) -> Any:
        """Return the object of this thread; None if there is none."""
        return _get_object(self._key) if _has_object(self._key) else None

    def set(self, value: Any) -> None:
        """Replace the object of this thread."""
        _set_object(self._key, value)

    def remove(self) -> None:
        """Remove the object of this thread."""
        assert _remove_object is not None
        _remove_object(self._key)


class UncountedThreadObject(ThreadObject):
    """The same for releases that cannot remove an object, and free it without having counted it.

    Python keeps the objects. PyTorch passes on that of the main thread, which is counted here and
    replaced by None at the end; its state is freed after Python has ended. An object of another
    thread is found by the threads of autograd if it is the only one.
    """

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self._of_thread = threading.local()
        self._others: dict[int, Any] = {}  # by thread, without the main thread

    def get(self) -> Any:
        """Return the object of this thread; None if there is none."""
        value = getattr(self._of_thread, "value", None)
        if value is None and (value := super().get()) is None and _is_thread_of_autograd():
            values = list(self._others.values())
            value = values[0] if len(values) == 1 else None
        return value

    def set(self, value: Any) -> None:
        """Replace the object of this thread."""
        self._of_thread.value = value
        if threading.current_thread() is threading.main_thread():
            self._pass_on(value)
        else:
            self._others[threading.get_ident()] = value

    def remove(self) -> None:
        """Remove the object of this thread."""
        self._of_thread.value = None
        if threading.current_thread() is threading.main_thread():
            self._pass_on(None)
        else:
            self._others.pop(threading.get_ident(), None)

    def _pass_on(self, value: Any) -> None:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
        super().set(value)


def _is_thread_of_autograd() -> bool:
    """Whether a backward pass runs in this thread, and Python did not start the thread."""
    if current_graph_task_id() == -1:
        return False
    started = {one.ident for one in threading.enumerate() if type(one).__name__ != "_DummyThread"}
    return threading.get_ident() not in started


def fake_tensors() -> ModuleType:
    """Return the module of tensors without values that say they are on a device."""
    module: ModuleType | None = _found("torch._subclasses.fake_tensor", None)
    if module is None:  # found here because it takes long to import
        raise missing("torch._subclasses.fake_tensor")
    return module


def has_unpack_hook(node: Any, name: str) -> bool | None:
    """Return whether reading a tensor that a node has saved calls a hook; None if it is not known.

    ``name`` is that of the attribute with what is stored: ``_raw_saved_self``.
    """
    stored = getattr(node, name)
    parts = stored if isinstance(stored, list | tuple) else [stored]
    hooks = [getattr(one, "unpack_hook", ...) for one in parts]  # not in older releases
    return None if ... in hooks else any(hook is not None for hook in hooks)


def thread_object(key: str) -> ThreadObject:
    """Return an object for each thread, in the way that suits the installed release."""
    return (UncountedThreadObject if _remove_object is None else ThreadObject)(key)
