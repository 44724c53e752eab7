"""Which tensor of a dump, written by another program, is the output of which module."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookscope.errors import RequestError
from hookscope.file_analysis.capture_comparator import Comparator, origin_of
from hookscope.file_analysis.error_sums import Blocks
from hookscope.file_analysis.record_matches import (
    LayerFilter,
    RecordMatches,
    RecordTest,
    build_diff,
    check_prefixes,
    replace_prefix,
)
from hookscope.files.suggestions import did_you_mean
from hookscope.files.words import join_first, shape_label
from hookscope.results.diff_result import BY_MAP, BY_NAME, Diff, TensorComparison
from hookscope.results.records import Record
from hookscope.specs.diff_request import DumpRequest
from hookscope.specs.dump_rules import DumpRule, Term
from hookscope.specs.patterns import ROOT
from hookscope.specs.request import chosen_options
from hookscope.specs.tensor_key import INPUT, OUTPUT
from hookscope.stores.capture_file import open_capture
from hookscope.stores.dump import names_parameters, read_rules
from hookscope.stores.weights.weight_set import WeightSet

INPUTS = ("input", "input_ids", "pixel_values")  # what programs call the first argument
_DEBUGGER_WORDS = {INPUT: ("inputs_args", "inputs_kwargs")}  # of transformers
_SEPARATORS = "/._"
_HINT = (
    'Write rules in a file, such as "blk_{n}_attn" = "blocks.{n}.attn", and give it: --map map.toml'
)


@dataclass(frozen=True)
class DumpValue:
    """A tensor of a dump, or the sum of several, each with the steps of its rule."""

    dump: WeightSet
    terms: tuple[Term, ...]

    def shape(self) -> tuple[int, ...]:
        """Return the shape; RequestError if a step or the sum does not fit. No value is read."""
        shapes = [self._shape_of(term) for term in self.terms]
        for term, shape in zip(self.terms, shapes, strict=True):
            if shape != shapes[0]:
                first = f"{self.terms[0].name!r} is {shape_label(shapes[0])}"
                raise RequestError(
                    f"A sum needs tensors of one shape: after their steps, {first} and"
                    f" {term.name!r} is {shape_label(shape)}.",
                    "Add a slice or .permute(...) to a name of the rule.",
                )
        return shapes[0]

    def _shape_of(self, term: Term) -> tuple[int, ...]:
        whole = self.dump.tensors[term.name].shape
        try:
            shape: tuple[int, ...] = term(np.broadcast_to(np.empty((), np.uint8), whole)).shape
        except (IndexError, ValueError) as error:
            raise RequestError(
                f"{term.name!r} is {shape_label(whole)}, and its rule does not fit: {error}.",
                "Change the slice or the order of dimensions in the rule.",
            ) from error
        return shape

    def blocks(self) -> Blocks:
        """Return the values in row-major order; those of a whole tensor are read in blocks."""
        first, *others = self.terms
        if not others and not first.steps:
            return self.dump.blocks(first.name)
        total: NDArray[Any] = first(self.dump.tensor(first.name))
        for term in others:
            total = total + term(self.dump.tensor(term.name))
        return iter([total.reshape(-1)])


@dataclass(frozen=True)
class DumpMatches:
    """The pairs of a model's and a dump's tensors, and the values of the latter by A's key."""

    matches: RecordMatches
    values: Mapping[str, DumpValue]

    def selected(self, selects: RecordTest, narrowed: bool) -> DumpMatches:
        """Keep the pairs whose tensor of A is selected, and if ``narrowed`` nothing else."""
        pairs = tuple(pair for pair in self.matches.pairs if selects(pair[0]))
        if not pairs:
            raise RequestError(
                "The dump has no tensor of a selected layer.", "Select other layers, or all."
            )
        only_b = () if narrowed else self.matches.only_b
        return DumpMatches(RecordMatches(pairs, (), only_b), self.values)


def match_dump(
    records: Sequence[Record],
    dump: WeightSet,
    prefixes: Mapping[str, str],
    rules: Sequence[DumpRule] = (),
    inputs: Collection[str] = (),
) -> DumpMatches:
    """Match tensors of a dump with the records of a model or a capture, A.

    The rules come first. A tensor that no rule uses matches the record that has its name,
    then the one that has it after a prefix of A's name is replaced. What the dump does not have is
    left out; ``inputs`` of the model have no partner.
    """
    check_prefixes(prefixes, [record.module for record in records])
    for new in prefixes.values():
        if not any(new in name for name in dump):
            hint = did_you_mean(new, dump) or f"It has {join_first(dump)}."
            raise RequestError(f"No name in {dump.path} has {new!r} in it.", hint)
    known = _spellings(records, prefixes)
    used, found = set(inputs), dict[str, tuple[Record, str, str, DumpValue]]()
    for rule in rules:
        for one, record in _apply(rule, dump, known):
            used |= {term.name for term in one.terms}
            if record.key in found:
                raise RequestError(
                    f"Two rules name {record.key!r}: {found[record.key][1]!r} and {one.text!r}.",
                    "Keep one of them.",
                )
            found[record.key] = record, one.text, BY_MAP, DumpValue(dump, one.terms)
    for name in dump:
        if name not in used and name in known:
            record, by = known[name]
            if record.key not in found:
                used.add(name)
                found[record.key] = record, name, by, DumpValue(dump, (Term(name),))
    if not found:
        raise _no_match(dump, records)
    pairs = tuple(_pair(*found[record.key]) for record in records if record.key in found)
    only_b = tuple(_alone(dump, name) for name in dump if name not in used)
    values = {key: value for key, (_, _, _, value) in found.items()}
    return DumpMatches(RecordMatches(pairs, (), only_b), values)


def input_names(
    dump: WeightSet, modules: Collection[str], model: str = "", parameters: Collection[str] = ()
) -> dict[str, str]:
    """Return the tensors of a dump that are arguments of the model, by the argument's name.

    ``input`` is the first one; ``parameters`` are the names of all. In files of the debugger of
    transformers, names begin with the class of the ``model``.
    """
    found: dict[str, str] = {}
    for name in dump:
        plain = name.removeprefix(f"{model}_inputs_kwargs_")
        plain = {f"{model}_inputs_args_0": "input", "token_ids": "input_ids"}.get(plain, plain)
        argument = plain.removeprefix(f"{model}_inputs_args_")
        if name not in modules and argument in (*INPUTS, *parameters):
            found.setdefault(argument, name)
    return found


def _apply(
    rule: DumpRule, dump: WeightSet, known: Mapping[str, tuple[Record, str]]
) -> Iterator[tuple[DumpRule, Record]]:
    """The rule for each module that it names; RequestError if it is used for nothing."""
    applied = list(rule.applied(dump))
    if not applied:
        raise RequestError(
            f"The rule {rule.text!r} matches no tensor of {dump.path}.",
            did_you_mean(rule.terms[0].name, dump) or f"It has {join_first(dump)}.",
        )
    for one in applied:
        if lacking := [term.name for term in one.terms if term.name not in dump]:
            raise RequestError(
                f"The rule {rule.text!r} needs {lacking[0]!r}, which is not in {dump.path}.",
                did_you_mean(lacking[0], dump) or f"It has {join_first(dump)}.",
            )
    of_modules = [(one, known[one.module][0]) for one in applied if one.module in known]
    if not of_modules:
        raise RequestError(
            f"The rule {rule.text!r} names {applied[0].module!r}, which A has not recorded.",
            did_you_mean(applied[0].module, known) or "'hookscope tree MODEL' lists the modules.",
        )
    yield from of_modules


def _spellings(
    records: Sequence[Record], prefixes: Mapping[str, str]
) -> dict[str, tuple[Record, str]]:
    """The record that each name stands for, and how it is matched; the plainest names first."""
    model = next((record.type for record in records if record.module == ROOT), "")
    known: dict[str, tuple[Record, str]] = {}
    renamings: list[tuple[str, Callable[[str], str]]] = [(BY_NAME, str)]
    if prefixes:
        renamings.append((BY_MAP, partial(replace_prefix, prefixes=prefixes)))
    for spell in (_full_names, _short_names):
        for by, rename in renamings:
            for record in records:
                call = "" if record.call == 1 else f":{record.call}"
                for module in (record.module, *record.aliases):
                    base = rename(module)
                    base = "" if base == ROOT else base
                    # The debugger of transformers begins each name with the class of the model.
                    for start in dict.fromkeys((base, f"{model}.{base}".strip("."))):
                        for name in spell(start + call, record):
                            known.setdefault(name, (record, by))
    return known


def _full_names(base: str, record: Record) -> Iterator[str]:
    """A module with the name of the value, and without it if that is its first output."""
    yield f"{base or ROOT}/{record.what}"
    if base and record.what == OUTPUT:
        yield base
    kind, _, part = record.what.partition(".")
    for separator in _SEPARATORS:
        for word in (kind, f"{kind}s", *_DEBUGGER_WORDS.get(kind, ())):
            parts = [base, word, *(part.split(".") if part else ())]
            yield separator.join(filter(None, parts))


def _short_names(base: str, record: Record) -> Iterator[str]:
    """A module with the index or the key of one of its outputs, and for the first without it."""
    kind, _, part = record.what.partition(".")
    if kind == OUTPUT and part:
        for separator in _SEPARATORS:
            yield separator.join(filter(None, [base, *part.split(".")]))
        if base:
            yield base


def _pair(record: Record, text: str, by: str, value: DumpValue) -> tuple[Record, Record, str]:
    shape, tensor = value.shape(), value.dump.tensors[value.terms[0].name]
    if _without_batch(shape) == _without_batch(record.shape):
        shape = record.shape
    place = (record.module, record.type, record.call, record.what, record.kind)
    return record, Record(text, *place, shape, tensor.dtype, ""), by


def _without_batch(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape without dimensions of size 1 at its beginning, which a dump may lack."""
    first = next((n for n, size in enumerate(shape) if size != 1), len(shape))
    return shape[first:]


def _alone(dump: WeightSet, name: str) -> Record:
    tensor = dump.tensors[name]
    return Record(name, name, "", 1, "", "", tensor.shape, tensor.dtype, "")


def _no_match(dump: WeightSet, records: Sequence[Record]) -> RequestError:
    modules = list(dict.fromkeys(record.module for record in records if record.module != ROOT))
    what = "contains weights" if names_parameters(dump) else f"has {join_first(dump) or 'none'}"
    return RequestError(
        f"No tensor of {dump.path} has the name of a module of A: it {what}, A has"
        f" {join_first(modules)}.",
        _HINT,
    )


def rules_of(request: DumpRequest) -> tuple[DumpRule, ...]:
    """Return the rules of the file that the request names."""
    return read_rules(request.map) if isinstance(request.map, str) else ()


def dump_comparator(request: DumpRequest) -> Comparator:
    """Return what compares with a dump: another program adds numbers in another order."""
    return Comparator(request.atol, request.rtol, request.equal_nan, engines=True, reshapes=False)


def diff_with_dump(
    found: DumpMatches,
    rows: Iterable[TensorComparison],
    request: DumpRequest,
    a: dict[str, Any],
) -> Diff:
    """Return the result of comparing the pairs of ``found``."""
    diff = build_diff(
        found.matches,
        rows,
        strict=request.strict,
        equal_nan=request.equal_nan,
        a=a,
        b={"file": os.fspath(request.b)},
    )
    return replace(diff, engines=request.atol is None or request.rtol is None)


def compare_capture_with_dump(dump: WeightSet, request: DumpRequest) -> Diff:
    """Compare a capture, A, with a dump. Of each tensor one block is in memory at a time."""
    rules, file = rules_of(request), open_capture(request.a)
    selection, kinds = request.selection, request.kinds
    layers = LayerFilter(tuple(selection.layers), tuple(selection.types), selection.depth)
    layers.check_layers(file.records)
    comparator = dump_comparator(request)

    def selected(record: Record) -> bool:
        return layers(record) and (not kinds or record.kind.partition(".")[0] in kinds)

    modules = {record.module for record in file.records}
    inputs = input_names(dump, modules).values()
    found = match_dump(file.records, dump, request.prefixes, rules, inputs)
    found = found.selected(selected, bool(chosen_options(selection) or kinds))
    rows = [
        comparator.compare(a, b, by, partial(file.blocks, a.key), found.values[a.key].blocks)
        for a, b, by in found.matches.pairs
    ]
    return diff_with_dump(found, rows, request, origin_of(file))
