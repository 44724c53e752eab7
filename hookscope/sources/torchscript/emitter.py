"""From a graph to the source of a Python function that does the same.

The text is made from the graph alone: names are our own, constants go in as literals or by name,
and nothing of what an archive calls its things can become code.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterable, Sequence, Set
from typing import Any, Protocol

from hookscope.sources.torchscript.graph import Block, Method, Node, Value, nodes_within
from hookscope.sources.torchscript.operators import MOST
from hookscope.sources.torchscript.runtime import HELPERS

DEEPEST = 8  # blocks inside blocks; what lies deeper becomes a function: Python allows 20 loops

SELF, RUN, BODY = "self", "run", "body"

_NUMBERED = re.compile(r"(v|k|n|block)\d+|_")

_RESERVED = {SELF, RUN, BODY, *dir(builtins), *HELPERS}


class NodeFormatter(Protocol):
    """What writes single nodes: their expression, given the texts of their inputs."""

    def expression(self, node: Node, inputs: Sequence[str]) -> str:
        """Return the expression that a node becomes."""

    def constant(self, value: Any, id: int = -1) -> str:
        """Return a literal, or the name under which the value is known; ``id`` is its number."""


class FunctionLines:
    """The lines of one Python function under way."""

    def __init__(self, name: str, parameters: Iterable[str]) -> None:
        self.lines = [f"def {name}({', '.join(parameters)}):"]
        self.depth = 1

    def write(self, line: str) -> None:
        """Add a line at the present depth."""
        self.lines.append("    " * self.depth + line)


class Emitter:
    """Writes one method, and the functions its deepest blocks become, as Python source.

    Args:
        method: what to write.
        nodes: writes single nodes and constants.
    """

    def __init__(self, method: Method, nodes: NodeFormatter) -> None:
        self.method = method
        self.nodes = nodes
        self._liveness = Liveness()
        self._texts: dict[int, str] = {}
        self._kept: set[int] = set()  # constants and counters, which no ``del`` may name
        self._variables: set[str] = set()
        self._functions: list[FunctionLines] = []
        self._count = 0
        for node in nodes_within(method.block):
            if node.kind == "prim::Constant":
                (output,) = node.outputs
                self._texts[output.id] = nodes.constant(node.attributes["value"], output.id)
                self._kept.add(output.id)

    def source(self) -> str:
        """Return the source; the function to call in it is named ``run``.

        Its first parameter is the module (of a function, the module that calls it), the others
        have the names of the method's own where Python allows them.
        """
        given = list(self.method.block.inputs)
        if self.method.bound:
            self._texts[given.pop(0).id] = SELF
        public: list[str] = []
        for argument in self.method.arguments:
            public.append(_legal(argument.name, public))
        clear = not any(map(_is_reserved, public))
        inner = public if clear else [self._new(value) for value in given]
        self._texts.update(zip((value.id for value in given), inner, strict=True))
        self._variables.update(inner)
        outer = [
            f"{name}={self.nodes.constant(one.default)}" if one.optional else name
            for name, one in zip(public, self.method.arguments, strict=True)
        ]
        function = FunctionLines(RUN if clear else BODY, [SELF, *(outer if clear else inner)])
        self._block(function, self.method.block, owned=ids(given))
        results = ", ".join(self._text(value) for value in self.method.block.outputs)
        function.write(f"return {results}")
        self._functions.append(function)
        if not clear:
            front = FunctionLines(RUN, [SELF, *outer])
            front.write(f"return {BODY}({', '.join([SELF, *public])})")
            self._functions.append(front)
        return "\n".join(line for part in self._functions for line in part.lines)

    # Blocks

    def _block(self, function: FunctionLines, block: Block, owned: Iterable[int] = ()) -> None:
        deaths = self._liveness.deaths(block, set(owned))
        left = {node.inputs[0].id for node in block.nodes if node.kind == "prim::Exit"}
        for node, dying in zip(block.nodes, deaths, strict=True):
            if node.kind == "prim::Exit":
                self._end_with(function, node)
            nested = node.kind in ("prim::If", "prim::Loop")
            if nested and function.depth > DEEPEST:
                self._outline(function, node, dying)
            elif node.kind == "prim::If":
                self._if(function, node, dying)
            elif node.kind == "prim::Loop":
                self._loop(function, node, dying)
            elif node.kind != "prim::Constant":
                self._statement(function, node, dying)
            if node.kind == "prim::Enter" and node.inputs[0].id in left:
                function.write("try:")
                function.depth += 1
                function.write("pass")

    def _statement(self, function: FunctionLines, node: Node, dying: Set[int]) -> None:
        text = self.nodes.expression(node, [self._text(value) for value in node.inputs])
        made = ids(node.outputs)
        if made <= dying:
            function.write(text)
            self._let_go(function, dying - made)
        else:
            targets = ", ".join(self._new(value) for value in node.outputs)
            several = "," if len(node.outputs) == 1 and node.kind.endswith("Unpack") else ""
            function.write(f"{targets}{several} = {text}")
            self._let_go(function, dying)

    def _end_with(self, function: FunctionLines, node: Node) -> None:
        """An error leaves a context as the way behind it does."""
        function.depth -= 1
        function.write("except BaseException:")
        function.write(f"    {self.nodes.expression(node, [self._text(node.inputs[0])])}")
        function.write("    raise")

    def _if(self, function: FunctionLines, node: Node, dying: Set[int]) -> None:
        """Each branch lets go of the values that end here, those that it does not use at once."""
        targets = [self._new(value) for value in node.outputs]
        free = [self._liveness.free(block) for block in node.blocks]
        ending = dying & (free[0] | free[1])
        heads = (f"if {self._text(node.inputs[0])}:", "else:")
        for head, block, used in zip(heads, node.blocks, free, strict=True):
            function.write(head)
            function.depth += 1
            before = len(function.lines)
            self._let_go(function, ending - used)
            self._block(function, block, owned=ending & used)
            self._move(function, targets, [self._text(value) for value in block.outputs])
            self._let_go(function, ids(block.outputs) & (ending | _made(block)))
            if len(function.lines) == before:
                function.write("pass")
            function.depth -= 1
        self._let_go(function, dying - ending)

    def _loop(self, function: FunctionLines, node: Node, dying: Set[int]) -> None:
        """A carried value keeps one variable from before the loop to behind it."""
        (block,) = node.blocks
        counter, *carried = block.inputs
        targets = [self._new(value) for value in node.outputs]
        self._texts.update(zip((value.id for value in carried), targets, strict=True))
        limit, start, *initial = (self._text(value) for value in node.inputs)
        self._move(function, targets, initial)
        early = (dying & ids(node.inputs[2:])) - self._liveness.free(block) - ids(node.inputs[:2])
        self._let_go(function, early)
        count = self._new(counter)
        endless = start == self._texts.get(block.outputs[0].id) == "True"
        if endless and limit != str(MOST):
            going = ""
            function.write(f"for {count} in range({limit}):")
            function.depth += 1
        else:
            going = f"n{count[1:]}"
            self._kept.add(counter.id)
            bound = "" if limit == str(MOST) else f" and {count} + 1 < {limit}"
            function.write(f"{going}, {count} = {start}, -1")
            function.write(f"while {going}{bound}:")
            function.depth += 1
            function.write(f"{count} += 1")
        before = len(function.lines)
        self._block(function, block)
        goes_on, *after = (self._text(value) for value in block.outputs)
        if going:
            targets, after = [going, *targets], [goes_on, *after]
        self._move(function, targets, after)
        self._let_go(function, ids(block.outputs) & _made(block))
        if len(function.lines) == before:
            function.write("pass")
        function.depth -= 1
        self._let_go(function, dying - early)

    def _outline(self, function: FunctionLines, node: Node, dying: Set[int]) -> None:
        """Write a node with its blocks as a function of its own, and a call of that."""
        used = (self._texts[one] for one in sorted(self._liveness.used(node)))
        given = list(dict.fromkeys([SELF, *(text for text in used if text in self._variables)]))
        self._count += 1
        name = f"block{self._count}"
        part = FunctionLines(name, given)
        (self._if if node.kind == "prim::If" else self._loop)(part, node, set())
        results = ", ".join(self._texts[value.id] for value in node.outputs)
        part.write(f"return {results}")
        self._functions.append(part)
        call = f"{name}({', '.join(given)})"
        function.write(f"{results} = {call}" if results else call)
        self._let_go(function, dying)

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

    def _let_go(self, function: FunctionLines, dying: Iterable[int]) -> None:
        names = {self._texts[one] for one in dying if one not in self._kept} - {SELF}
        if names:
            function.write(f"del {', '.join(sorted(names))}")


def _made(block: Block) -> set[int]:
    return {value.id for node in block.nodes for value in node.outputs}


def _legal(name: str, taken: Sequence[str]) -> str:
    """A name that a parameter can have: its own, or the nearest."""
    plain = "".join(c if c.isalnum() and c.isascii() else "_" for c in name) or "_"
    plain = f"_{plain}" if plain[0].isdigit() else plain
    plain = f"{plain}_" if keyword.iskeyword(plain) else plain
    while plain in taken or plain == SELF:
        plain += "_"
    return plain


def _is_reserved(name: str) -> bool:
    """Whether a parameter of this name would hide something that generated code uses."""
    return name in _RESERVED or bool(_NUMBERED.fullmatch(name))


Ids = Set[int]


def ids(values: Iterable[Value]) -> set[int]:
    """The numbers of some values."""
    return {value.id for value in values}


class Liveness:
    """What each node of a graph uses of the values outside it. Answers are kept."""

    def __init__(self) -> None:
        self._used: dict[Node, frozenset[int]] = {}

    def used(self, node: Node) -> frozenset[int]:
        """Values from outside that the node, or a block inside it, takes."""
        if node not in self._used:
            inside = [self.free(block) for block in node.blocks]
            self._used[node] = frozenset(ids(node.inputs)).union(*inside)
        return self._used[node]

    def free(self, block: Block) -> set[int]:
        """Values from outside that a block takes, among them those it passes on."""
        made = ids(block.inputs)
        wanted = ids(block.outputs)
        for node in block.nodes:
            wanted |= self.used(node)
            made |= ids(node.outputs)
        return wanted - made

    def deaths(self, block: Block, owned: Ids) -> list[frozenset[int]]:
        """For each node, the values that nothing in the block needs after it.

        ``owned`` are values from outside that end here too; what the block gives lives on.
        """
        own = set(owned) | ids(block.inputs)
        for node in block.nodes:
            own |= ids(node.outputs)
        alive = ids(block.outputs)
        found = []
        for node in reversed(block.nodes):
            touched = self.used(node) | ids(node.outputs)
            found.append((touched - alive) & own)
            alive |= self.used(node)
        return found[::-1]
