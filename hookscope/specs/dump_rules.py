"""Rules for the names of another program: which of its tensors are the output of which module.

A rule is ``expression = module``. An expression is the name of a tensor, or a sum of several;
each may be followed by a slice, ``.T`` or ``.permute(...)``. ``{n}`` stands for any text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from hookscope.errors import RequestError
from hookscope.specs.tensor_key import Index, split_slice

_STEP = re.compile(r"(\[[^\]]*\])|\.T|\.permute\(([^)]*)\)")
_TERM = re.compile(rf"(.+?)((?:{_STEP.pattern})*)", re.DOTALL)
_PLACE = re.compile(r"\{(\w+)\}")
_HINT = 'Write "a", "a + b", "a[..., :64]", "a.T" or "a.permute(0, 2, 1)", with {n} for any text.'


@dataclass(frozen=True)
class Slice:
    """A part of a tensor, as in numpy."""

    index: Index

    def __call__(self, array: Any) -> Any:
        """Return the part of an array."""
        return array[self.index]


@dataclass(frozen=True)
class Permute:
    """The dimensions of a tensor in another order; none: the last two are swapped."""

    axes: tuple[int, ...] = ()

    def __call__(self, array: Any) -> Any:
        """Return a view of an array; ValueError if it has other dimensions."""
        return array.transpose(self.axes) if self.axes else array.swapaxes(-1, -2)


@dataclass(frozen=True)
class Term:
    """A tensor by its name, and what is done to it, one step after another."""

    name: str
    steps: tuple[Slice | Permute, ...] = ()

    def __call__(self, array: Any) -> Any:
        """Apply the steps to an array."""
        for step in self.steps:
            array = step(array)
        return array


@dataclass(frozen=True)
class DumpRule:
    """A rule: the sum of ``terms`` is the output of ``module``."""

    text: str
    terms: tuple[Term, ...]
    module: str

    def applied(self, names: Iterable[str]) -> Iterator[DumpRule]:
        """Yield the rule for each name that its first term matches, with its places filled.

        >>> rule = parse_rule("a_{n} + b_{n}", "blocks.{n}")
        >>> [(one.text, one.module) for one in rule.applied(["a_0", "b_0", "a_10"])]
        [('a_0 + b_0', 'blocks.0'), ('a_10 + b_10', 'blocks.10')]
        """
        pattern = _compile(self.terms[0].name)
        for name in names:
            if match := pattern.fullmatch(name):
                fill = partial(_fill, values=match.groupdict())
                terms = tuple(Term(fill(term.name), term.steps) for term in self.terms)
                yield DumpRule(fill(self.text), terms, fill(self.module))


def parse_rule(text: str, module: str) -> DumpRule:
    """Read a rule; RequestError if it cannot be read.

    >>> parse_rule("qkv_{n}[..., :64].T", "blocks.{n}.q").terms[0].name
    'qkv_{n}'
    """
    terms = tuple(_parse_term(part.strip(), text) for part in text.split(" + "))
    known = set(_PLACE.findall(terms[0].name))
    for other in (*(term.name for term in terms[1:]), module):
        if unknown := [place for place in _PLACE.findall(other) if place not in known]:
            raise RequestError(
                f"Cannot read the rule {text!r}: {{{unknown[0]}}} is in {other!r} and not in"
                f" {terms[0].name!r}.",
                "A place such as {n} begins in the first name of a rule.",
            )
    return DumpRule(text, terms, module)


def _parse_term(text: str, rule: str) -> Term:
    match = _TERM.fullmatch(text)
    if match is None:
        raise RequestError(f"Cannot read the rule {rule!r}: a name is empty.", _HINT)
    return Term(match[1], tuple(_step(found, rule) for found in _STEP.finditer(match[2])))


def _step(found: re.Match[str], rule: str) -> Slice | Permute:
    if found[1]:
        return Slice(split_slice(found[0])[1])
    if found[2] is None:
        return Permute()
    axes = [axis.strip() for axis in found[2].split(",")]
    if not all(axis.isdecimal() for axis in axes):
        raise RequestError(f"Cannot read the rule {rule!r}: {found[0]!r} has no order.", _HINT)
    return Permute(tuple(map(int, axes)))


def _compile(name: str) -> re.Pattern[str]:
    """A pattern for a name with places; one that comes again stands for the same text."""
    parts = _PLACE.split(name)
    pattern, seen = "", set[str]()
    for n, part in enumerate(parts):
        if n % 2 == 0:
            pattern += re.escape(part)
        else:
            pattern += f"(?P=place_{part})" if part in seen else f"(?P<place_{part}>.+?)"
            seen.add(part)
    return re.compile(pattern, re.DOTALL)


def _fill(text: str, values: Mapping[str, str]) -> str:
    return _PLACE.sub(lambda found: values[f"place_{found[1]}"], text)
