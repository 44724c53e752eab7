"""From the graph of a method to the source of an equivalent Python function.

Names are generated, and constants are literals or names, so no name in an archive becomes code.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterable, Sequence, Set

from hookscope.sources.torchscript.graph import Block, Method, Node, Value, nodes_within
from hookscope.sources.torchscript.node_writer import NodeWriter
from hookscope.sources.torchscript.operators import MAX_INT
from hookscope.sources.torchscript.runtime import HELPERS

MAX_DEPTH = 8  # of nested blocks; deeper ones become functions, as Python allows 20 nested loops

SELF, RUN, BODY = "self", "run", "body"

_NUMBERED = re.compile(r"(v|k|n|block)\d+|_")

_RESERVED = {SELF, RUN, BODY, *dir(builtins), *HELPERS}


def ids(values: Iterable[Value]) -> set[int]:
    """Return the numbers of values."""
    return {value.id for value in values}


class Liveness:
    """The values that nodes of a graph use from outside their blocks, cached by node."""

    def __init__(self) -> None:
        self._used: dict[Node, frozenset[int]] = {}

    def used(self, node: Node) -> frozenset[int]:
        """Return the values from outside that the node, or a block inside it, uses."""
        if node not in self._used:
            inside = [self.free(block) for block in node.blocks]
            self._used[node] = frozenset(ids(node.inputs)).union(*inside)
        return self._used[node]

    def free(self, block: Block) -> set[int]:
        """Return the values from outside that a block uses or returns."""
        defined = ids(block.inputs)
        used = ids(block.outputs)
        for node in block.nodes:
            used |= self.used(node)
            defined |= ids(node.outputs)
        return used - defined

    def deaths(self, block: Block, owned: Set[int]) -> list[frozenset[int]]:
        """Return for each node the values, also ``owned``, that the block does not use later."""
        own = set(owned) | ids(block.inputs)
        for node in block.nodes:
            own |= ids(node.outputs)
        alive = ids(block.outputs)
        deaths = []
        for node in reversed(block.nodes):
            touched = self.used(node) | ids(node.outputs)
            deaths.append((touched - alive) & own)
            alive |= self.used(node)
        return deaths[::-1]


class FunctionLines:
    """The lines of one Python function."""

    def __init__(self, name: str, parameters: Iterable[str]) -> None:
        self.lines = [f"def {name}({', '.join(parameters)}):"]
        self.depth = 1

    def write(self, line: str) -> None:
        """Add a line at the current depth."""
        self.lines.append("    " * self.depth + line)


class Emitter:
    """Writes one method as Python source, with a function for each of its deepest blocks."""

    def __init__(self, method: Method, nodes: NodeWriter) -> None:
        self.method = method
        self.nodes = nodes
        self._liveness = Liveness()
        self._texts: dict[int, str] = {}
        self._permanent: set[int] = set()  # constants and counters, which are not deleted
        self._variables: set[str] = set()
        self._functions: list[FunctionLines] = []
        self._count = 0
        for node in nodes_within(method.block):
            if node.kind == "prim::Constant":
                (output,) = node.outputs
                self._texts[output.id] = nodes.constant(node.attributes["value"], output.id)
                self._permanent.add(output.id)

    def source(self) -> str:
        """Return the source of ``run``, which takes the module and the method's parameters."""
        inputs = list(self.method.block.inputs)
        if self.method.bound:
            self._texts[inputs.pop(0).id] = SELF
        public: list[str] = []
        for argument in self.method.arguments:
            public.append(_legal_name(argument.name, public))
        # Whether no parameter would shadow a name of generated code.
        clear = not any(name in _RESERVED or _NUMBERED.fullmatch(name) for name in public)
        inner = public if clear else [self._new(value) for value in inputs]
        self._texts.update(zip((value.id for value in inputs), inner, strict=True))
        self._variables.update(inner)
        outer, replaced = self._parameters(public)
        function = FunctionLines(RUN if clear else BODY, [SELF, *(outer if clear else inner)])
        for line in replaced if clear else ():
            function.write(line)
        self._block(function, self.method.block, owned=ids(inputs))
        results = ", ".join(self._text(value) for value in self.method.block.outputs)
        function.write(f"return {results}")
        self._functions.append(function)
        if not clear:
            wrapper = FunctionLines(RUN, [SELF, *outer])
            for line in replaced:
                wrapper.write(line)
            wrapper.write(f"return {BODY}({', '.join([SELF, *public])})")
            self._functions.append(wrapper)
        return "\n".join(line for part in self._functions for line in part.lines)

    def _parameters(self, names: Sequence[str]) -> tuple[list[str], list[str]]:
        """The parameters with their defaults, and lines that replace some defaults at a call."""
        # A default such as a tensor is on the device of the module, which a definition cannot name.
        parameters, lines = [], []
        for name, argument in zip(names, self.method.arguments, strict=True):
            if not argument.optional:
                parameters.append(name)
                continue
            text = self.nodes.constant(argument.default)
            if f"({SELF}, " in text and not isinstance(argument.default, str):
                stored = self.nodes.name(argument.default)
                lines.append(f"{name} = {text} if {name} is {stored} else {name}")
                text = stored
            parameters.append(f"{name}={text}")
        return parameters, lines

    # Blocks

    def _block(self, function: FunctionLines, block: Block, owned: Iterable[int] = ()) -> None:
        deaths = self._liveness.deaths(block, set(owned))
        exited = {node.inputs[0].id for node in block.nodes if node.kind == "prim::Exit"}
        for node, dying in zip(block.nodes, deaths, strict=True):
            if node.kind == "prim::Exit":
                self._exit_context(function, node)
            nested = node.kind in ("prim::If", "prim::Loop")
            if nested and function.depth > MAX_DEPTH:
                self._outline(function, node, dying)
            elif node.kind == "prim::If":
                self._if(function, node, dying)
            elif node.kind == "prim::Loop":
                self._loop(function, node, dying)
            elif node.kind != "prim::Constant":
                self._statement(function, node, dying)
            if node.kind == "prim::Enter" and node.inputs[0].id in exited:
                function.write("try:")
                function.depth += 1
                function.write("pass")

    def _statement(self, function: FunctionLines, node: Node, dying: Set[int]) -> None:
        text = self.nodes.expression(node, [self._text(value) for value in node.inputs])
        outputs = ids(node.outputs)
        if outputs <= dying:
            function.write(text)
            self._delete(function, dying - outputs)
        else:
            targets = ", ".join(self._new(value) for value in node.outputs)
            several = "," if len(node.outputs) == 1 and node.kind.endswith("Unpack") else ""
            function.write(f"{targets}{several} = {text}")
            self._delete(function, dying)

    def _exit_context(self, function: FunctionLines, node: Node) -> None:
        """Exit the context also after an error."""
        function.depth -= 1
        function.write("except BaseException:")
        function.write(f"    {self.nodes.expression(node, [self._text(node.inputs[0])])}")
        function.write("    raise")

    def _if(self, function: FunctionLines, node: Node, dying: Set[int]) -> None:
        """Each branch deletes the values that end here, at its start those that it does not use."""
        targets = [self._new(value) for value in node.outputs]
        free = [self._liveness.free(block) for block in node.blocks]
        ending = dying & (free[0] | free[1])
        heads = (f"if {self._text(node.inputs[0])}:", "else:")
        for head, block, used in zip(heads, node.blocks, free, strict=True):
            function.write(head)
            function.depth += 1
            before = len(function.lines)
            self._delete(function, ending - used)
            self._block(function, block, owned=ending & used)
            self._move(function, targets, [self._text(value) for value in block.outputs])
            self._delete(function, ids(block.outputs) & (ending | _outputs(block)))
            if len(function.lines) == before:
                function.write("pass")
            function.depth -= 1
        self._delete(function, dying - ending)

    def _loop(self, function: FunctionLines, node: Node, dying: Set[int]) -> None:
        """A carried value has the same variable before, in and after the loop."""
        (block,) = node.blocks
        counter, *carried = block.inputs
        targets = [self._new(value) for value in node.outputs]
        self._texts.update(zip((value.id for value in carried), targets, strict=True))
        limit, start, *initial = (self._text(value) for value in node.inputs)
        self._move(function, targets, initial)
        early = (dying & ids(node.inputs[2:])) - self._liveness.free(block) - ids(node.inputs[:2])
        self._delete(function, early)
        count = self._new(counter)
        endless = start == self._texts.get(block.outputs[0].id) == "True"
        if endless and limit != str(MAX_INT):
            condition = ""
            function.write(f"for {count} in range({limit}):")
            function.depth += 1
        else:
            condition = f"n{count[1:]}"
            self._permanent.add(counter.id)
            bound = "" if limit == str(MAX_INT) else f" and {count} + 1 < {limit}"
            function.write(f"{condition}, {count} = {start}, -1")
            function.write(f"while {condition}{bound}:")
            function.depth += 1
            function.write(f"{count} += 1")
        before = len(function.lines)
        self._block(function, block)
        next_condition, *after = (self._text(value) for value in block.outputs)
        if condition:
            targets, after = [condition, *targets], [next_condition, *after]
        self._move(function, targets, after)
        self._delete(function, ids(block.outputs) & _outputs(block))
        if len(function.lines) == before:
            function.write("pass")
        function.depth -= 1
        self._delete(function, dying - early)

    def _outline(self, function: FunctionLines, node: Node, dying: Set[int]) -> None:
        """Write a node with its blocks as a separate function, and its call."""
        used = (self._texts[number] for number in sorted(self._liveness.used(node)))
        variables = [text for text in used if text in self._variables]
        arguments = list(dict.fromkeys([SELF, *variables]))
        self._count += 1
        name = f"block{self._count}"
        part = FunctionLines(name, arguments)
        (self._if if node.kind == "prim::If" else self._loop)(part, node, set())
        results = ", ".join(self._texts[value.id] for value in node.outputs)
        part.write(f"return {results}")
        self._functions.append(part)
        call = f"{name}({', '.join(arguments)})"
        function.write(f"{results} = {call}" if results else call)
        self._delete(function, dying)

    # Variables

    def _new(self, value: Value) -> str:
        name = self._texts[value.id] = f"v{len(self._variables)}"
        self._variables.add(name)
        return name

    def _text(self, value: Value) -> str:
        return self._texts[value.id]

    def _move(self, function: FunctionLines, targets: Sequence[str], texts: Sequence[str]) -> None:
        moves = [(to, text) for to, text in zip(targets, texts, strict=True) if to != text]
        if moves:
            left, right = (", ".join(side) for side in zip(*moves, strict=True))
            function.write(f"{left} = {right}")

    def _delete(self, function: FunctionLines, dying: Iterable[int]) -> None:
        names = {self._texts[number] for number in dying if number not in self._permanent} - {SELF}
        if names:
            function.write(f"del {', '.join(sorted(names))}")


def _outputs(block: Block) -> set[int]:
    return {value.id for node in block.nodes for value in node.outputs}


def _legal_name(name: str, taken: Sequence[str]) -> str:
    """A valid name for a parameter: its own, or one made from it."""
    plain = "".join(c if c.isalnum() and c.isascii() else "_" for c in name) or "_"
    plain = f"_{plain}" if plain[0].isdigit() else plain
    plain = f"{plain}_" if keyword.iskeyword(plain) else plain
    while plain in taken or plain == SELF:
        plain += "_"
    return plain
