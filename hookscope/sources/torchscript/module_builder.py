"""From the modules of a scripted or traced model to ordinary ones that run the same graphs.

Every module becomes an ``nn.Module`` of the same name, with the same children and the very same
tensors; each of its methods is compiled once from its graph. A call of a child goes through the
child's ``__call__``, so hooks fire.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor, nn

from hookscope.sources.torchscript import argument_conversion, private, runtime
from hookscope.sources.torchscript.emitter import RUN, Emitter
from hookscope.sources.torchscript.graph import (
    Argument,
    EnumMember,
    Method,
    Node,
    Type,
    types_handed_on,
)
from hookscope.sources.torchscript.node_writer import NodeWriter
from hookscope.sources.torchscript.operator_modules import OperatorModules
from hookscope.sources.torchscript.runtime import (
    FORWARD,
    DevicePlacement,
    forward_by_name,
    own_name,
)
from hookscope.sources.torchscript.script_archive import Record, ScriptArchive, TensorRecord

CPU = torch.device("cpu")

_NONES = (private.NONE,) * 3
_CONTEXT = (("__enter__", ()), ("__exit__", _NONES))  # which no node calls by name

# Types that a value alone does not tell.
_KEPT = {"List", "Dict", "Tuple", "Class", "Enum"}

# Made for pickling by the compiler; Python would take them for its own.
_NOT_METHODS = {"__getstate__", "__setstate__"}


class ScriptedModule(nn.Module):
    """A module whose methods were compiled from a TorchScript graph.

    Attributes:
        _hookscope_class: the class that it was made from, with its package.
        _hookscope_source: where its ``forward`` stands in the code it was made from; empty where
            the file does not tell.
        _hookscope_signatures: the arguments of each method.
        _hookscope_methods: the methods as functions.
        _hookscope_method: the method that a call runs.
        _hookscope_frozen: it had no modules inside, and operators stand in for them.
        _hookscope_place: where its model is.
    """

    _hookscope_class: str = ""
    _hookscope_source: str = ""
    _hookscope_signatures: Mapping[str, tuple[Argument, ...]] = MappingProxyType({})
    _hookscope_methods: Mapping[str, Callable[..., Any]] = MappingProxyType({})
    _hookscope_method = "forward"
    _hookscope_frozen = False
    _hookscope_place: DevicePlacement | None = None

    def _hookscope_methods_by_name(self) -> dict[str, Callable[..., Any]]:
        """Its methods, less those by which it is called."""
        names = (name for name in self._hookscope_methods if not FORWARD.fullmatch(name))
        return {name: getattr(self, own_name(name)) for name in names}

    def extra_repr(self) -> str:
        """The shapes of its own parameters, as what it was built with is not in the file."""
        own = self._parameters.items()
        return ", ".join(f"{name}={_shape(tensor)}" for name, tensor in own if tensor is not None)


def build_module(
    root: private.ScriptObject,
    *,
    home: torch.device = CPU,
    archive: ScriptArchive | None = None,
) -> ScriptedModule:
    """Return an ordinary module that does what ``root`` does and shares its tensors.

    Args:
        root: the object behind a scripted or traced module.
        home: the device that a live module is on.
        archive: the file that it was loaded from, asked for what PyTorch cannot make a Python
            object of; None for a live module, whose classes Python knows, and whose parameters
            stay the very tensors they are.
    """
    return ModuleBuilder(archive).build(root, home)


class ModuleBuilder:
    """Builds the modules of one model; each class is made once, each method compiled once."""

    def __init__(self, archive: ScriptArchive | None) -> None:
        self._archive = archive
        self._enums = archive.enums() if archive else {}
        self.types: dict[str, Type] = {}
        self._steps: OperatorModules | None = None
        self._built: dict[private.ScriptObject, ScriptedModule] = {}
        self._paths: dict[private.ScriptObject, tuple[str, ...]] = {}
        self._classes: dict[str, type[ScriptedModule]] = {}
        self._script_classes: dict[str, type[runtime.Instance]] = {}
        self._parameters: dict[Tensor, nn.Parameter] = {}
        self._class_types: dict[str, Type] = {}
        self._called_on_interfaces: dict[str, tuple[Type, ...]] = {}
        self._functions: dict[str, Callable[..., Any]] = {}
        self._attributes: dict[str, dict[str, Type]] = defaultdict(dict)
        self._dispatched: set[str] = set()
        self._hooks: dict[str, set[str]] = defaultdict(set)  # their names, by the module's class
        self._without_forward: set[str] = set()
        self._known = argument_conversion.ScriptClasses(
            self._enums, self._script_classes, self._attributes
        )
        self._code: dict[str, Any] = {}
        self._placed = False  # whether any graph names a device or holds a tensor

    def build(self, root: private.ScriptObject, home: torch.device) -> ScriptedModule:
        """Build the module of ``root`` and all below it."""
        module = self._module(root, ())
        if len(self._built) == 1:
            self._steps = OperatorModules(module)
        for given, made in self._built.items():
            self._compile(given)
            self._hook(given, made)
        module._hookscope_frozen = bool(self._steps and module._modules)
        for given, made in self._built.items():
            self._fill(given, made)
        for given, made in self._built.items():  # after all tensors, which lists may hold too
            self._fill_attributes(given, made)
        if self._archive and self._placed:
            home = self._archive.home
        place = DevicePlacement(home, module)
        for made in self._built.values():
            made._hookscope_place = place
        self._finish_classes(type(module))
        return module

    def built(self) -> Iterator[tuple[private.ScriptObject, ScriptedModule, list[str]]]:
        """Each module that was built: its origin, itself, and the attributes that graphs read."""
        for given, made in self._built.items():
            yield given, made, list(self._attributes[private.type_name(given)])

    def _finish_classes(self, outermost: type[ScriptedModule]) -> None:
        """Give a ``forward`` that chooses to the classes whose modules run by several methods."""
        for name, kind in self._classes.items():
            others = [other for other in kind._hookscope_methods if other != "forward"]
            if (
                name in self._dispatched
                or any(map(FORWARD.fullmatch, others))
                or (kind is outermost and others)
            ):
                kind.forward = forward_by_name

    def _module(self, given: private.ScriptObject, path: tuple[str, ...]) -> ScriptedModule:
        """The module for a scripted one, with its children; the same for the same."""
        if given not in self._built:
            name = private.type_name(given)
            if name not in self._classes:
                members = {"_hookscope_class": name.removeprefix("__torch__.")}
                self._classes[name] = type(private.class_name(given), (ScriptedModule,), members)
            made = self._built[given] = self._classes[name]()
            self._paths[given] = path
            hooks = (*private.pre_hooks(given), *private.hooks(given))
            if "forward" not in private.method_names(given):
                self._without_forward.add(name)
            self._hooks[name].update(hook.name for hook in hooks)
            for child, below in private.children(given).items():
                made._modules[child] = self._module(below, (*path, child))
        return self._built[given]

    def _compile(self, given: private.ScriptObject) -> None:
        kind = self._classes[private.type_name(given)]
        for name in private.method_names(given):
            if name not in kind._hookscope_methods and name not in _NOT_METHODS:
                method = private.method(given, name)
                compiled = self.compiled(method, kind.__name__)
                compiled.__name__, compiled.__qualname__ = name, f"{kind.__name__}.{name}"
                function = argument_conversion.with_converted_arguments(
                    compiled, method.arguments, self._known
                )
                setattr(kind, name if name == "forward" else own_name(name), function)
                kind._hookscope_methods = {**kind._hookscope_methods, name: function}
                kind._hookscope_signatures = {**kind._hookscope_signatures, name: method.arguments}
                if name.startswith("forward") and not kind._hookscope_source:
                    kind._hookscope_source = method.source

    def _hook(self, given: private.ScriptObject, made: ScriptedModule) -> None:
        """Put in the scripted hooks, as hooks that the module had before all others."""
        steps, self._steps = self._steps, None  # what they compute is no part of the module
        for held, hooks in (
            (made._forward_pre_hooks, private.pre_hooks(given)),
            (made._forward_hooks, private.hooks(given)),
        ):
            for place, hook in enumerate(hooks):
                function = self.compiled(hook, type(made).__name__)
                function.__name__ = function.__qualname__ = hook.name.rpartition(".")[2]
                admitting = argument_conversion.with_converted_arguments(
                    function, hook.arguments, self._known
                )
                # The key of a hook that PyTorch registers is a number.
                held[cast(int, f"scripted {place}")] = admitting
        self._steps = steps

    def _fill(self, given: private.ScriptObject, made: nn.Module) -> None:
        """Put in the tensors."""
        shared = self._parameters
        for name, tensor in private.parameters(given).items():
            if self._archive and tensor not in shared:
                shared[tensor] = nn.Parameter(tensor, requires_grad=tensor.requires_grad)
            # A live model keeps its own tensors, parameters or not, so that gradients reach them.
            made._parameters[name] = shared.get(tensor, cast(nn.Parameter, tensor))
        made._buffers.update(private.buffers(given))
        if private.has_attribute(given, "training"):
            made.training = private.attribute(given, "training")

    def _fill_attributes(self, given: private.ScriptObject, made: nn.Module) -> None:
        """Put in the other attributes that any graph reads."""
        for name, static in self._attributes[private.type_name(given)].items():
            known = (made._parameters, made._buffers, made._modules)
            if not any(name in held for held in known):
                made.__dict__[own_name(name)] = self._attribute(given, name, static)

    def _attribute(self, given: private.ScriptObject, name: str, static: Type) -> Any:
        try:
            found = private.attribute(given, name)
        except RuntimeError:  # a member of an enum, or an instance, of a class not at hand
            if self._archive is None:
                raise
            found = self._archive.attribute(self._paths[given], name)
        return self._adopted(found, static)

    def _adopted(self, value: Any, static: Type) -> Any:
        """The value with instances of script classes, and what a record stands for, made ours."""
        kind, inner = static.kind, static.inner
        if isinstance(value, TensorRecord):
            assert self._archive is not None
            return self._archive.tensor(value)
        if isinstance(value, Tensor):  # a parameter, as in the list of weights of an LSTM
            return self._parameters.get(value, value)
        if value is None or kind == "Any":
            return value
        if kind == "Optional":
            return self._adopted(value, inner[0])
        if kind == "List":
            return [self._adopted(item, inner[0]) for item in value]
        if kind == "Dict":
            return {key: self._adopted(item, inner[1]) for key, item in value.items()}
        if kind == "Tuple":
            items = value.args if isinstance(value, Record) else value
            parts = [self._adopted(item, one) for item, one in zip(items, inner, strict=True)]
            fields = static.fields
            return runtime.tuple_type(static.text, fields)(*parts) if fields else tuple(parts)
        if kind == "Enum" and isinstance(value, Record):
            return self._enums[static.text](*value.args)
        if kind == "Class" and not static.text.startswith(private.CUSTOM):
            made = runtime.new(self.script_class(static))
            for name, one in self._attributes[static.text].items():
                held = value.state[name] if isinstance(value, Record) else getattr(value, name)
                setattr(made, own_name(name), self._adopted(held, one))
            return made
        return value

    # What nodes name

    def is_module(self, static: Type) -> bool:
        """Whether values of this type are modules."""
        return static.text in self._classes or static.kind == "Interface"

    def compiled(self, method: Method, owner: str = "") -> Callable[..., Any]:
        """A method or function as a Python function; equal sources share their code."""
        where = f"{owner}.{method.name}" if owner else method.name
        for static in types_handed_on(method.block):
            self._note(static)
        writer = NodeWriter(self, where, self._steps)
        source = Emitter(method, writer).source()
        self._placed |= writer.placed
        if source not in self._code:
            self._code[source] = compile(source, f"<TorchScript {where}>", "exec")
        exec(self._code[source], writer.names)
        function: Callable[..., Any] = writer.names[RUN]
        return function

    def _note(self, static: Type) -> None:
        if static.text not in self.types:
            if static.kind in _KEPT:
                self.types[static.text] = static
            for one in static.inner:
                self._note(one)

    def has_forward(self, static: Type) -> bool:
        """Whether modules of the type have a ``forward``, as far as is known."""
        return static.text not in self._without_forward

    def has_hook(self, static: Type, name: str) -> bool:
        """Whether modules of the type have a scripted hook of this qualified name."""
        return name in self._hooks[static.text]

    def function(self, node: Node) -> Callable[..., Any]:
        """The function that a ``CallFunction`` node calls."""
        types = (value.type.text for value in node.inputs)  # a parameter may be any number
        key = " ".join((node.attributes["name"], *types, str(self._steps is None)))
        if key not in self._functions:
            self._functions[key] = self.compiled(private.called_function(node))
        return self._functions[key]

    def script_class(self, static: Type) -> type[runtime.Instance]:
        """The Python class for a script class."""
        if static.text not in self._script_classes:
            made = type(static.name, (runtime.Instance,), {"script_name": static.text})
            self._script_classes[static.text] = made
            self._class_types[static.text] = static
            for name, given in (*_CONTEXT, *self._called_on_interfaces.items()):
                if name in private.methods_of(static):
                    self.class_method(static, name, given)
        return self._script_classes[static.text]

    def class_method(self, static: Type, name: str, given: tuple[Type, ...]) -> None:
        """See to it that a script class has a method, for arguments of these types."""
        kind = self.script_class(static)
        if name not in vars(kind):
            setattr(kind, name, None)  # so that one that calls itself is not compiled for ever
            steps, self._steps = self._steps, None  # its ``self`` is no module that could hold any
            method = private.class_method(static, name, given)
            setattr(kind, name, self.compiled(method, kind.__name__))
            self._steps = steps

    def interface_method(self, name: str, given: tuple[Type, ...]) -> None:
        """See to it that every script class that has the method has it."""
        self._called_on_interfaces[name] = given
        for static in list(self._class_types.values()):
            if name in private.methods_of(static):
                self.class_method(static, name, given)

    def enum_member(self, member: EnumMember) -> Any:
        """A member of an enum that the archive defines."""
        return self._enums[member.type][member.name]

    def dispatches(self, static: Type) -> None:
        """Note that modules of this type are called by another method than ``forward``."""
        self._dispatched.add(static.text)

    def reads(self, owner: Type, name: str, static: Type) -> None:
        """Note that what is of type ``owner`` has an attribute of this name and type."""
        self._attributes[owner.text][name] = static


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "1"
