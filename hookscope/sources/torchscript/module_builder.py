"""From the modules of a scripted or traced model to ordinary modules that run the same graphs.

Each has the same name, children and tensors. A child is called by its ``__call__``, so hooks fire.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor, nn

from hookscope.files.words import shape_text
from hookscope.sources.torchscript import argument_conversion, private, runtime
from hookscope.sources.torchscript.emitter import RUN, Emitter
from hookscope.sources.torchscript.graph import (
    Argument,
    EnumMember,
    Method,
    Node,
    Type,
    types_passed_on,
)
from hookscope.sources.torchscript.node_writer import NodeWriter, OperatorModules
from hookscope.sources.torchscript.script_archive import ArchiveRecord, ArchiveTensor, ScriptArchive

CPU = torch.device("cpu")
_NONES = (private.NONE,) * 3
_CONTEXT_METHODS = (("__enter__", ()), ("__exit__", _NONES))  # which no node calls by name
# Types that a value alone does not determine.
_AMBIGUOUS = {"List", "Dict", "Tuple", "Class", "Enum"}
# Made by the compiler for pickling; Python's pickle would call them.
_NOT_METHODS = {"__getstate__", "__setstate__"}


class ScriptedModule(nn.Module):
    """A module whose methods were compiled from a TorchScript graph."""

    _hookscope_class: str = ""
    _hookscope_format = "TorchScript"
    _hookscope_source: str = ""
    _hookscope_signatures: Mapping[str, tuple[Argument, ...]] = MappingProxyType({})
    _hookscope_methods: Mapping[str, Callable[..., Any]] = MappingProxyType({})
    _hookscope_method = "forward"
    _hookscope_frozen = False
    _hookscope_placement: runtime.DevicePlacement | None = None

    def _hookscope_methods_by_name(self) -> dict[str, Callable[..., Any]]:
        """Return its methods, without the variants of ``forward``."""
        names = (name for name in self._hookscope_methods if not runtime.FORWARD.fullmatch(name))
        return {name: getattr(self, runtime.own_name(name)) for name in names}

    def extra_repr(self) -> str:
        """Return the shapes of its parameters, as its arguments are not in the file."""
        own = ((name, tensor) for name, tensor in self._parameters.items() if tensor is not None)
        return ", ".join(f"{name}={shape_text(t.shape, '1')}" for name, t in own)


def build_module(
    root: private.ScriptObject,
    *,
    home: torch.device = CPU,
    archive: ScriptArchive | None = None,
) -> ScriptedModule:
    """Return an ordinary module that is equivalent to ``root`` and shares its tensors."""
    return ModuleBuilder(archive).build(root, home)


class ModuleBuilder:
    """Builds the modules of one model. Each class is made once, and each method compiled once."""

    def __init__(self, archive: ScriptArchive | None) -> None:
        self._archive = archive
        self._enums = archive.enums() if archive else {}
        self.types: dict[str, Type] = {}  # of values of type Any, besides plain ones, by text
        self._operator_modules: OperatorModules | None = None
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
        self._hooks: dict[str, set[str]] = defaultdict(set)  # names by the module's class
        self._without_forward: set[str] = set()
        self._script_types = argument_conversion.ScriptClasses(
            self._enums, self._script_classes, self._attributes
        )
        self._code: dict[str, Any] = {}
        self._has_devices = False  # whether any graph has a device or a constant tensor

    def build(self, root: private.ScriptObject, home: torch.device) -> ScriptedModule:
        """Build the module of ``root`` and its submodules."""
        model = self._module(root, ())
        if len(self._built) == 1:
            self._operator_modules = OperatorModules(model)
        for script, module in self._built.items():
            self._compile(script)
            self._hook(script, module)
        model._hookscope_frozen = bool(self._operator_modules and model._modules)
        for script, module in self._built.items():
            self._fill(script, module)
        for script, module in self._built.items():  # after all tensors, which lists may contain
            self._fill_attributes(script, module)
        if self._archive and self._has_devices:
            home = self._archive.home
        placement = runtime.DevicePlacement(home, model)
        for module in self._built.values():
            module._hookscope_placement = placement
        self._finish_classes(type(model))
        return model

    def built(self) -> Iterator[tuple[private.ScriptObject, ScriptedModule, list[str]]]:
        """Yield each module with its script object, and the attributes that graphs read."""
        for script, module in self._built.items():
            yield script, module, list(self._attributes[private.type_name(script)])

    def _finish_classes(self, outermost: type[ScriptedModule]) -> None:
        """Set a dispatching ``forward`` in classes whose modules are called by several methods."""
        for name, cls in self._classes.items():
            others = [other for other in cls._hookscope_methods if other != "forward"]
            if (
                name in self._dispatched
                or any(map(runtime.FORWARD.fullmatch, others))
                or (cls is outermost and others)
            ):
                cls.forward = runtime.forward_by_name

    def _module(self, script: private.ScriptObject, path: tuple[str, ...]) -> ScriptedModule:
        """The module for a script object, with its children, made once."""
        if script not in self._built:
            name = private.type_name(script)
            if name not in self._classes:
                members = {"_hookscope_class": name.removeprefix("__torch__.")}
                self._classes[name] = type(private.class_name(script), (ScriptedModule,), members)
            module = self._built[script] = self._classes[name]()
            self._paths[script] = path
            hooks = (*private.pre_hooks(script), *private.hooks(script))
            if "forward" not in private.method_names(script):
                self._without_forward.add(name)
            self._hooks[name].update(hook.name for hook in hooks)
            for child_name, child in private.children(script).items():
                module._modules[child_name] = self._module(child, (*path, child_name))
        return self._built[script]

    def _compile(self, script: private.ScriptObject) -> None:
        cls = self._classes[private.type_name(script)]
        for name in private.method_names(script):
            if name not in cls._hookscope_methods and name not in _NOT_METHODS:
                method = private.method(script, name)
                compiled = self.compiled(method, cls.__name__)
                compiled.__name__, compiled.__qualname__ = name, f"{cls.__name__}.{name}"
                function = argument_conversion.with_converted_arguments(
                    compiled, method.arguments, self._script_types
                )
                setattr(cls, name if name == "forward" else runtime.own_name(name), function)
                cls._hookscope_methods = {**cls._hookscope_methods, name: function}
                cls._hookscope_signatures = {**cls._hookscope_signatures, name: method.arguments}
                if name.startswith("forward") and not cls._hookscope_source:
                    cls._hookscope_source = method.source

    def _hook(self, script: private.ScriptObject, module: ScriptedModule) -> None:
        """Register the scripted hooks before all others."""
        # Operators of a hook are not part of the module.
        operator_modules, self._operator_modules = self._operator_modules, None
        for registered, hooks in (
            (module._forward_pre_hooks, private.pre_hooks(script)),
            (module._forward_hooks, private.hooks(script)),
        ):
            for index, hook in enumerate(hooks):
                function = self.compiled(hook, type(module).__name__)
                function.__name__ = function.__qualname__ = hook.name.rpartition(".")[2]
                converting = argument_conversion.with_converted_arguments(
                    function, hook.arguments, self._script_types
                )
                # The key of a hook that PyTorch registers is a number.
                registered[cast(int, f"scripted {index}")] = converting
        self._operator_modules = operator_modules

    def _fill(self, script: private.ScriptObject, module: nn.Module) -> None:
        """Set the parameters, the buffers and the mode."""
        shared = self._parameters
        for name, tensor in private.parameters(script).items():
            if self._archive and tensor not in shared:
                shared[tensor] = nn.Parameter(tensor, requires_grad=tensor.requires_grad)
            # A live model keeps its own tensors, so that gradients reach them.
            module._parameters[name] = shared.get(tensor, cast(nn.Parameter, tensor))
        module._buffers.update(private.buffers(script))
        if private.has_attribute(script, "training"):
            module.training = private.attribute(script, "training")

    def _fill_attributes(self, script: private.ScriptObject, module: nn.Module) -> None:
        """Set the other attributes that any graph reads."""
        for name, static in self._attributes[private.type_name(script)].items():
            members = (module._parameters, module._buffers, module._modules)
            if not any(name in member for member in members):
                module.__dict__[runtime.own_name(name)] = self._attribute(script, name, static)

    def _attribute(self, script: private.ScriptObject, name: str, static: Type) -> Any:
        try:
            value = private.attribute(script, name)
        except RuntimeError:  # the class of an enum or an instance is not available
            if self._archive is None:
                raise
            value = self._archive.attribute(self._paths[script], name)
        return self._converted(value, static)

    def _converted(self, value: Any, static: Type) -> Any:
        """The value with records and instances of script classes converted to Python objects."""
        kind, inner, is_record = static.kind, static.inner, isinstance(value, ArchiveRecord)
        if isinstance(value, ArchiveTensor):
            assert self._archive is not None
            return self._archive.tensor(value)
        if isinstance(value, Tensor):  # a parameter, as in the weights of an LSTM
            return self._parameters.get(value, value)
        if value is None or kind == "Any":
            return value
        if kind == "Optional":
            return self._converted(value, inner[0])
        if kind == "List":
            return [self._converted(item, inner[0]) for item in value]
        if kind == "Dict":
            return {key: self._converted(item, inner[1]) for key, item in value.items()}
        if kind == "Tuple":
            items = value.args if is_record else value
            parts = [self._converted(*pair) for pair in zip(items, inner, strict=True)]
            fields = static.fields
            return runtime.tuple_type(static.text, fields)(*parts) if fields else tuple(parts)
        if kind == "Enum" and is_record:
            return self._enums[static.text](*value.args)
        if kind == "Class" and not static.text.startswith(private.CUSTOM):
            instance = runtime.new(self.script_class(static))
            for name, attribute_type in self._attributes[static.text].items():
                attribute = value.state[name] if is_record else getattr(value, name)
                converted = self._converted(attribute, attribute_type)
                setattr(instance, runtime.own_name(name), converted)
            return instance
        return value

    # The symbol table of nodes

    def is_module(self, static: Type) -> bool:
        """Whether values of this type are modules."""
        return static.text in self._classes or static.kind == "Interface"

    def compiled(self, method: Method, owner: str = "") -> Callable[..., Any]:
        """Return a method or function as a Python function; equal sources share their code."""
        location = f"{owner}.{method.name}" if owner else method.name
        for static in types_passed_on(method.block):
            self._note(static)
        writer = NodeWriter(self, location, self._operator_modules)
        source = Emitter(method, writer).source()
        self._has_devices |= writer.has_devices
        if source not in self._code:
            self._code[source] = compile(source, f"<TorchScript {location}>", "exec")
        exec(self._code[source], writer.names)
        function: Callable[..., Any] = writer.names[RUN]
        return function

    def _note(self, static: Type) -> None:
        if static.text not in self.types:
            if static.kind in _AMBIGUOUS:
                self.types[static.text] = static
            for inner in static.inner:
                self._note(inner)

    def has_forward(self, static: Type) -> bool:
        """Whether modules of the type may have a ``forward``."""
        return static.text not in self._without_forward

    def has_hook(self, static: Type, name: str) -> bool:
        """Whether modules of the type have a scripted hook of this qualified name."""
        return name in self._hooks[static.text]

    def function(self, node: Node) -> Callable[..., Any]:
        """Return the function that a ``CallFunction`` node calls."""
        types = (value.type.text for value in node.inputs)  # a parameter may be any number type
        key = " ".join((node.attributes["name"], *types, str(self._operator_modules is None)))
        if key not in self._functions:
            self._functions[key] = self.compiled(private.called_function(node))
        return self._functions[key]

    def script_class(self, static: Type) -> type[runtime.Instance]:
        """Return the Python class for a script class."""
        if static.text not in self._script_classes:
            cls = type(static.name, (runtime.Instance,), {"script_name": static.text})
            self._script_classes[static.text] = cls
            self._class_types[static.text] = static
            for name, argument_types in (*_CONTEXT_METHODS, *self._called_on_interfaces.items()):
                if name in private.methods_of(static):
                    self.class_method(static, name, argument_types)
        return self._script_classes[static.text]

    def class_method(self, static: Type, name: str, argument_types: tuple[Type, ...]) -> None:
        """Compile a method of a script class, for arguments of these types."""
        cls = self.script_class(static)
        if name not in vars(cls):
            setattr(cls, name, None)  # ends the recursion of a method that calls itself
            # Its ``self`` is not a module, and cannot have operators as submodules.
            operator_modules, self._operator_modules = self._operator_modules, None
            method = private.class_method(static, name, argument_types)
            setattr(cls, name, self.compiled(method, cls.__name__))
            self._operator_modules = operator_modules

    def interface_method(self, name: str, argument_types: tuple[Type, ...]) -> None:
        """Compile a method of an interface for every script class that has it."""
        self._called_on_interfaces[name] = argument_types
        for static in list(self._class_types.values()):
            if name in private.methods_of(static):
                self.class_method(static, name, argument_types)

    def enum_member(self, member: EnumMember) -> Any:
        """Return a member of an enum that the archive defines."""
        return self._enums[member.type][member.name]

    def dispatches(self, static: Type) -> None:
        """Note that modules of this type are called by another method than ``forward``."""
        self._dispatched.add(static.text)

    def reads(self, owner: Type, name: str, static: Type) -> None:
        """Note that a graph reads this attribute, of this type, of values of type ``owner``."""
        self._attributes[owner.text][name] = static
