"""Which layer of one model is which layer of another one, from their trees alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cached_property

from hookscope.results.structure_diff import OwnTensor

_LEAST_ALIKE = 0.5  # share of the layers of a block that a renamed one still has


@dataclass(eq=False)
class TreeNode:
    """A layer and its place in the tree.

    ``mapped`` is the name that the other model is expected to have for it. ``type`` is empty if a
    file does not have it, and so are ``arguments``.
    """

    name: str
    mapped: str
    type: str
    arguments: str
    tensors: tuple[OwnTensor, ...]
    own_parameters: int = 0
    aliases: tuple[str, ...] = ()
    parent: TreeNode | None = None
    children: list[TreeNode] = field(default_factory=list)

    @property
    def last(self) -> str:
        """The last part of the name in the other model."""
        return self.mapped.rpartition(".")[2]

    @cached_property
    def subtree(self) -> list[TreeNode]:
        """The layer and those in it."""
        return [self, *(node for child in self.children for node in child.subtree)]

    @cached_property
    def has_tensors(self) -> bool:
        """Whether the layer or one in it has a parameter or buffer."""
        return any(node.tensors for node in self.subtree)

    @cached_property
    def contents(self) -> Counter[tuple[str, str]]:
        """The layers in it, by their names there and their classes."""
        cut = len(self.name) + 1
        return Counter((node.name[cut:], node.type) for node in self.subtree[1:])


Matches = dict[TreeNode, TreeNode]  # from A to B and from B to A


def match_trees(a: Sequence[TreeNode], b: Sequence[TreeNode]) -> Matches:
    """Return the partner of each layer of A and of B that has one.

    Layers are matched by name and class; in a container with numbered children by their order.
    What is left is matched by class and shapes, the largest subtree first, then by what a block
    contains, and last by name alone.
    """
    matcher = _TreeMatcher(a, b)
    matcher.match_mapped()
    matcher.match_roots()
    matcher.match_equal()
    matcher.match_alike()
    matcher.match_replaced()
    return matcher.partners


class _TreeMatcher:
    """The pairs that are found so far, and the ways to find more."""

    def __init__(self, a: Sequence[TreeNode], b: Sequence[TreeNode]) -> None:
        self.partners: Matches = {}
        self._a, self._b = a, b
        known: dict[object, int] = {}
        self._shapes: dict[TreeNode, int] = {}  # equal numbers: equal classes and shapes
        self._exact: dict[TreeNode, int] = {}  # equal arguments too
        for node in (*reversed(a), *reversed(b)):  # children first
            shapes = tuple((tensor.name, tensor.shape) for tensor in node.tensors)
            for numbers, own in (self._shapes, ""), (self._exact, node.arguments):
                inside = tuple((child.last, numbers[child]) for child in node.children)
                key = numbers is self._exact, node.type, own, shapes, inside
                numbers[node] = known.setdefault(key, len(known))

    def match_mapped(self) -> None:
        """Match the layers of A that the user gave a name in B."""
        by_name = {node.name: node for node in self._b}
        for node in self._a:
            if node.mapped != node.name and node.mapped in by_name:
                self._pair(node, by_name[node.mapped])

    def match_roots(self) -> None:
        """Match the two models, unless one of them is a part of the other."""
        a, b = self._a[0], self._b[0]
        inside = any(
            self._shapes[root] == self._shapes[node]
            for root, nodes in ((a, self._b[1:]), (b, self._a[1:]))
            for node in nodes
        )
        if not inside or self._shapes[a] == self._shapes[b]:
            self._pair(a, b)

    def match_equal(self) -> None:
        """Match subtrees of equal classes and shapes, the largest first."""
        groups: dict[int, list[TreeNode]] = defaultdict(list)
        for node in self._free(self._b):
            groups[self._shapes[node]].append(node)
        alone = Counter(self._shapes[node] for node in self._free(self._a))
        for a in sorted(self._free(self._a), key=lambda node: -len(node.subtree)):
            found = [b for b in groups[self._shapes[a]] if b not in self.partners]
            if a in self.partners or not found:
                continue
            is_only = alone[self._shapes[a]] == len(groups[self._shapes[a]]) == 1
            if not (a.has_tensors or is_only):  # a ReLU is like any other one
                found = [b for b in found if self._share_parent(a, b)]
            if found:
                self._pair(a, max(found, key=lambda b: self._nearness(a, b)))

    def match_alike(self) -> None:
        """Match blocks of one class that have most of their layers in common."""
        for a in sorted(self._free(self._a), key=lambda node: -len(node.subtree)):
            found = [b for b in self._free(self._b) if b.children and a.type and a.type == b.type]
            if a in self.partners or not a.children or not found:
                continue
            best = max(found, key=lambda b: (_likeness(a, b), *self._nearness(a, b)))
            if _likeness(a, best) >= _LEAST_ALIKE:
                self._pair(a, best)

    def match_replaced(self) -> None:
        """Match layers, or blocks, of the same name or the same place among numbered ones."""
        for a in self._a:
            above = self.partners.get(a.parent) if a.parent is not None else None
            if a in self.partners or above is None:
                continue
            assert a.parent is not None
            if _is_numbered(a.parent) and _is_numbered(above):
                siblings = a.parent.children
                n = siblings.index(a)
                before = self.partners.get(siblings[n - 1]) if n else None
                index = above.children.index(before) + 1 if before in above.children else n
                found = above.children[index : index + 1]
            else:
                found = [b for b in above.children if b.last == a.last]
            alike = [b for b in found if bool(b.children) == bool(a.children)]
            if alike and alike[0] not in self.partners:
                self._pair(a, alike[0])

    def _pair(self, a: TreeNode, b: TreeNode) -> None:
        if a in self.partners or b in self.partners:
            return
        self.partners[a], self.partners[b] = b, a
        if a.children and b.children and _is_numbered(a) and _is_numbered(b) and self._knows(a, b):
            pairs = self._aligned(a.children, b.children)
        else:
            by_name = {child.last: child for child in b.children}
            pairs = ((x, by_name[x.last]) for x in a.children if x.last in by_name)
        for x, y in list(pairs):
            if may_be_same(x, y):
                self._pair(x, y)

    def _aligned(self, a: list[TreeNode], b: list[TreeNode]) -> Iterator[tuple[TreeNode, TreeNode]]:
        """Pairs of numbered layers in their order; what lies between equal ones by class."""
        exact_a, exact_b = [self._exact[x] for x in a], [self._exact[y] for y in b]
        types_a, types_b = [x.type for x in a], [y.type for y in b]
        in_place = len(a) == len(b) and all(map(may_be_same, a, b))
        if in_place and Counter(exact_a) != Counter(exact_b):  # no two only changed places
            yield from zip(a, b, strict=True)
            return
        for kind, i, i_end, j, j_end in _opcodes(exact_a, exact_b):
            if kind == "equal":
                yield from zip(a[i:i_end], b[j:j_end], strict=True)
                continue
            for x, x_end, y, y_end in (
                code[1:]
                for code in _opcodes(types_a[i:i_end], types_b[j:j_end])
                if code[0] == "equal"
            ):
                yield from zip(a[i + x : i + x_end], b[j + y : j + y_end], strict=True)

    def _knows(self, *parents: TreeNode) -> bool:
        """Whether the classes of all layers in these are known, by which they can be aligned."""
        return all(child.type for parent in parents for child in parent.children)

    def _free(self, nodes: Sequence[TreeNode]) -> list[TreeNode]:
        return [node for node in nodes if node not in self.partners]

    def _share_parent(self, a: TreeNode, b: TreeNode) -> bool:
        return a.parent is not None and self.partners.get(a.parent) is b.parent

    def _nearness(self, a: TreeNode, b: TreeNode) -> tuple[bool, bool, int, bool]:
        """How near the names of two layers are, to choose among equal ones."""
        parts = zip(reversed(a.mapped.split(".")), reversed(b.name.split(".")), strict=False)
        common = 0
        for one, other in parts:
            if one != other:
                break
            common += 1
        same_arguments = self._exact[a] == self._exact[b]
        return a.mapped == b.name, self._share_parent(a, b), common, same_arguments


def _opcodes(a: Sequence[object], b: Sequence[object]) -> list[tuple[str, int, int, int, int]]:
    return list(SequenceMatcher(None, a, b, autojunk=False).get_opcodes())


def _is_numbered(node: TreeNode) -> bool:
    return all(child.last.isdigit() for child in node.children)


def may_be_same(a: TreeNode, b: TreeNode) -> bool:
    """Return whether two layers are of one class, as far as it is known."""
    return a.type == b.type or not a.type or not b.type


def _likeness(a: TreeNode, b: TreeNode) -> float:
    """The share of the layers in two blocks that have the same name and class in both."""
    return (a.contents & b.contents).total() / max(a.contents.total(), b.contents.total())


def out_of_order(a: TreeNode, b: TreeNode, partners: Mapping[TreeNode, TreeNode]) -> set[TreeNode]:
    """Return the children of A that stand in another place among those that B has too."""
    ours = [x for x in a.children if x in partners and partners[x].parent is b]
    theirs = [partners[y] for y in b.children if y in partners and partners[y].parent is a]
    kept = set[TreeNode]()
    for block in SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks():
        kept.update(ours[block.a : block.a + block.size])
    return set(ours) - kept
