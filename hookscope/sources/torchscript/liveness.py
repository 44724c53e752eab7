"""When a value is used last, so that generated code lets go of it as the original would."""

from __future__ import annotations

from collections.abc import Iterable, Set

from hookscope.sources.torchscript.graph import Block, Node, Value

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
