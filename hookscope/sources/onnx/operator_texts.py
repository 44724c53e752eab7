"""The operators of a module in an ONNX file as text: their names and attributes."""

from __future__ import annotations

from typing import Any

from hookscope.sources.onnx.graph_modules import GraphModel

_MOST = 4  # operators of one module that are shown
_LONGEST = 6  # numbers of one attribute
_FLOAT, _INT, _TEXT, _FLOATS, _INTS = 1, 2, 3, 6, 7  # types of attributes


def describe_operators(model: GraphModel, name: str) -> str:
    """Return the operators of a module's own nodes, in execution order, with their attributes.

    Nodes of its children, constants and computations of sizes are left out. Example:
    ``BatchNormalization(epsilon=0.001)``.
    """
    program = model._onnx_program
    protos = {
        output: node for node in program.session.file.proto.graph.node for output in node.output
    }
    texts = []
    for node in program.graph.nodes:
        levels = node.scope.levels if node.scope is not None else None
        own = levels is not None and (levels[-1].name if levels else "") == name
        if own and not node.is_plain and node.outputs:
            texts.append(_text(protos[node.outputs[0]]))
    shown = list(dict.fromkeys(texts))
    rest = [f"{len(shown) - _MOST} more"] if len(shown) > _MOST else []
    return ", ".join(shown[:_MOST] + rest)


def _text(proto: Any) -> str:
    values = {attribute.name: _value(attribute) for attribute in proto.attribute}
    return f"{proto.op_type}({', '.join(f'{k}={v}' for k, v in sorted(values.items()) if v)})"


def _value(attribute: Any) -> str:
    if attribute.type == _FLOAT:
        return f"{attribute.f:g}"
    if attribute.type == _INT:
        return str(attribute.i)
    if attribute.type == _TEXT:
        return bytes(attribute.s).decode(errors="replace") if len(attribute.s) < 40 else ""
    numbers = {_FLOATS: attribute.floats, _INTS: attribute.ints}.get(attribute.type, ())
    if not 0 < len(numbers) <= _LONGEST:
        return ""
    return f"[{', '.join(f'{number:g}' for number in numbers)}]"
