"""Two models on one input: made ready, run, and compared in step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from hookscope.diffing.choosing import concluded, narrowed
from hookscope.diffing.in_step import compare_in_step, naming, records_of
from hookscope.diffing.judging import Judge
from hookscope.diffing.matching import match
from hookscope.diffing.result import Diff
from hookscope.diffing.words import both
from hookscope.errors import LayerError
from hookscope.inputs.batch import Batch
from hookscope.keywords import LOADING, kinds_of, several
from hookscope.kinds import VALUES
from hookscope.prepare import Prepared, prepare
from hookscope.provenance import describe_run
from hookscope.select import select
from hookscope.wrappers import copied

RECIPE = ("shape", "preprocess", "size", "mean", "std")


def compare_models(
    given: Mapping[str, Any], prefixes: Mapping[str, str], judge: Judge, options: dict[str, Any]
) -> Diff:
    """Compare two models as the keywords of ``diff`` in ``given`` say.

    ``options`` are those that are not the defaults, for the metadata.
    """
    a, b = prepared = _prepare_both(given)
    kinds = kinds_of(given["what"] or "output", VALUES)
    chosen_a, chosen_b = _chosen(prepared, given)
    records_a, records_b = (records_of(one, kinds, side) for side, one in enumerate(prepared))
    found = narrowed(
        match(records_a, records_b, prefixes),
        lambda record: record.module in chosen_a,
        lambda record: record.module in chosen_b,
    )
    pairs = compare_in_step(prepared, kinds, found, judge)
    origins = {"a": describe_run("diff", a, options), "b": describe_run("diff", b, options)}
    return concluded(found, pairs, strict=given["strict"], equal_nan=judge.equal_nan, **origins)


def _prepare_both(given: Mapping[str, Any]) -> tuple[Prepared, Prepared]:
    """Load both models; the input is built once, as A takes it, and B gets the same values."""
    words = (given["a"], given["b"])
    sides = both(given, words)
    made: list[Prepared] = []
    for side, (word, own) in enumerate(zip(words, sides, strict=True)):
        values = {**given, **own}
        first = not made
        with naming(side):
            made.append(
                prepare(
                    word,
                    given["input"] if first else Batch(made[0].value, made[0].sources, ""),
                    selection={},
                    recipe={name: given[name] for name in RECIPE},
                    loading={name: values[name] for name in LOADING},
                    **{name: values[name] for name in ("seed", "dtype", "device", "train")},
                )
            )
    a, b = made
    if _tensors_and_modules(a.module) & _tensors_and_modules(b.module):
        # The hooks of both would be on one module.
        repair = "Build B anew rather than give the same model twice."
        b = replace(b, module=copied(b.module, "to run beside itself", repair))
    return a, b


def _tensors_and_modules(model: nn.Module) -> set[int]:
    return {id(x) for x in (*model.modules(), *model.parameters(), *model.buffers())}


def _chosen(
    prepared: tuple[Prepared, Prepared], given: Mapping[str, Any]
) -> tuple[set[str], set[str]]:
    """The names of the chosen layers; a pattern may mean something in one model alone."""
    selection = {name: several(given[name]) for name in ("layers", "types")}
    failed: list[LayerError] = []
    found: list[set[str]] = []
    for one in prepared:
        try:
            layers = select(
                one.module,
                **selection,
                depth=given["depth"],
                leaves=given["leaves"],
                word=one.loaded.word,
            )
        except LayerError as error:
            failed.append(error)
            layers = ()
        found.append({layer.name for layer in layers})
    if len(failed) == len(prepared):
        raise failed[0]
    return found[0], found[1]
