"""The modules that a node of an ONNX file belongs to, as its exporter wrote them.

Exporters write them to the metadata of a node (``torch.export``), or to its name (TorchScript).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

_CALL = re.compile(r"@\d+$")  # torch.export marks later calls of a module with it
_COUNT = re.compile(r"(.+)_(\d+)")
_FRAME = re.compile(r'^File "(.*)", line (\d+), in (.*)$')
_OWN = "training"  # an attribute that torch sets on every module
_SEPARATORS = re.compile(r"[/.:]+")
_LONGEST_NAME = 1000  # characters of a name
DEEPEST = 64  # modules in each other: those of Python call each other
_LONGEST = 1 << 16  # characters of metadata that are parsed
_PREFIX = "pkg.torch.onnx."


@dataclass(frozen=True)
class ModuleLevel:
    """One of the modules that a node belongs to."""

    name: str
    type: str = ""
    site: str = ""

    def may_be_same_call(self, other: ModuleLevel) -> bool:
        """Whether two nodes with these levels may belong to one call of the module."""
        own, its = self.site, other.site
        return self.name == other.name and (own == its or not (own and its))


@dataclass(frozen=True)
class NodeScope:
    """The modules that a node belongs to, outermost first, without the model itself."""

    levels: tuple[ModuleLevel, ...]
    model_type: str = ""
    operation: str = ""
    target: str = ""


def scope_from_metadata(metadata: Mapping[str, str]) -> NodeScope | None:
    """Return the scope that the exporter wrote to a node's metadata; None if there is none.

    >>> scope = scope_from_metadata({
    ...     "pkg.torch.onnx.name_scopes": "['', 'body', 'body.0', 'conv2d']",
    ...     "pkg.torch.onnx.class_hierarchy": "['Net', 'torch.nn.Sequential', 'C', 'aten.c']",
    ... })
    >>> [(level.name, level.type) for level in scope.levels], scope.operation
    ([('body', 'torch.nn.Sequential'), ('body.0', 'C')], 'conv2d')
    """
    names = _texts(metadata.get(f"{_PREFIX}name_scopes", ""))
    types = _texts(metadata.get(f"{_PREFIX}class_hierarchy", ""))
    if not names or len(names) != len(types) or len(names) > DEEPEST + 2:
        return None
    *modules, operation = names
    model_type = types[0] if modules and modules[0] == "" else ""
    levels = [
        (_CALL.sub("", name), type) for name, type in zip(modules, types[:-1], strict=True) if name
    ]
    if not all(_is_name(name) for name, _ in levels):
        return None
    sites = _call_sites(metadata.get(f"{_PREFIX}stack_trace", ""), len(levels))
    marks = [(_CALL.search(name) or [""])[0] for name in modules if name]
    return NodeScope(
        tuple(
            ModuleLevel(name, type, site + mark)
            for (name, type), site, mark in zip(levels, sites, marks, strict=True)
        ),
        model_type,
        operation,
        types[-1],
    )


@lru_cache(maxsize=4096)
def _texts(text: str) -> tuple[str, ...]:
    """The texts of a list that Python printed; empty if it is none."""
    if not 0 < len(text) < _LONGEST or text[0] != "[":
        return ()
    try:
        values = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return ()
    return tuple(values) if all(isinstance(value, str) for value in values) else ()


def _is_name(name: str) -> bool:
    """Whether a text can be the name of a module in a model."""
    parts = name.split(".")
    return all(parts) and len(parts) <= DEEPEST and not set(name) & set("/:") and not _is_own(name)


def _is_own(name: str) -> bool:
    """Whether a part of a name is one of the attributes that hookscope gives to modules."""
    return f".{name}".find("._onnx_") >= 0 or f".{name}".find("._hookscope_") >= 0


def usable_name(text: str) -> str:
    """Return a module's name for that of a node: dots for slashes and colons, cut if too long.

    >>> usable_name("a/b:0"), usable_name("/_onnx_program"), usable_name("training")
    ('a.b.0', '_onnx_program_', 'training_')
    """
    parts = [part for part in _SEPARATORS.split(text[:_LONGEST_NAME]) if part][:DEEPEST]
    return ".".join(f"{part}_" if part == _OWN or _is_own(part) else part for part in parts)


@lru_cache(maxsize=4096)
def _call_sites(trace: str, depth: int) -> tuple[str, ...]:
    """The lines of code from which each of the nested modules was called, outermost first."""
    # Every module has a frame of its ``forward``, unless it was called otherwise.
    frames: list[tuple[str, bool]] = []
    for line in trace[:_LONGEST].splitlines():
        if match := _FRAME.match(line.strip()):
            frames.append((f"{match[1]}:{match[2]}", match[3] == "forward"))
    starts = [n for n, (_, is_forward) in enumerate(frames) if is_forward]
    if len(starts) != depth + 1:
        return ("",) * depth
    lines = [line for line, _ in frames]
    return tuple("\n".join(lines[starts[n] : starts[n + 1]]) for n in range(depth))


def scopes_from_names(names: Sequence[str], owners: Collection[str] = ()) -> list[NodeScope | None]:
    """Return the scope of each node by its name. A later call of a module has a number after it.

    >>> scopes = scopes_from_names(["/a/a.0/Conv", "/relu/Relu", "/relu_1/Relu", "Cast_3"])
    >>> [scope and [level.name for level in scope.levels] for scope in scopes]
    [['a', 'a.0'], ['relu'], ['relu'], None]
    """
    paths = [_module_path(name) for name in names]
    known = {tuple(path[: n + 1]) for path in paths if path for n in range(len(path))}
    return [None if path is None else _scope_of_path(path, known, owners) for path in paths]


def _module_path(name: str) -> list[str] | None:
    """The names of the nested modules in the name of a node, each relative to the one before."""
    if not name.startswith("/") or len(name) >= _LONGEST:
        return None
    path, before = [], ""
    for part in name.split("/")[1:-1]:
        relative = part.removeprefix(f"{before}.") if before else part
        if not _is_name(relative):
            return None
        path.append(relative)
        before = part
    return path if len(path) <= DEEPEST else None


def _scope_of_path(
    path: list[str], known: Collection[tuple[str, ...]], owners: Collection[str]
) -> NodeScope:
    levels: list[ModuleLevel] = []
    for n, part in enumerate(path):
        above = f"{levels[-1].name}." if levels else ""
        number, count = "0", _COUNT.fullmatch(part)
        is_call = count is not None and (*path[:n], count[1]) in known
        if count is not None and is_call and f"{above}{part}" not in owners:
            part, number = count[1], count[2]
        # Within a later call of a module its name has no number; only its own nodes have it.
        site = number if n == len(path) - 1 else ""
        levels.append(ModuleLevel(f"{above}{part}", "", site))
    return NodeScope(tuple(levels))


_TENSOR_NAME = re.compile(r"[^\W\d]\w*(\.\w+)+")


def is_tensor_name(name: str) -> bool:
    """Whether a name is that of a parameter, ``conv1.weight``, not ``onnx::Conv_193``."""
    return _TENSOR_NAME.fullmatch(name) is not None


def is_exported_by_torch(scopes: Iterable[NodeScope | None]) -> bool:
    """Whether some node says which module it belongs to."""
    return any(scope is not None and scope.levels for scope in scopes)
