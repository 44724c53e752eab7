"""The series of a training run: one number for each measured step, under a name of some kind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hookscope.errors import LayerError
from hookscope.files.shell_words import cite_command
from hookscope.files.suggestions import did_you_mean
from hookscope.specs.module_names import parent_of
from hookscope.specs.patterns import compile_pattern, near_patterns, root_named, split_exclusions

# The two tables of a run. Rows of STEPS are made for every step, those of LAYERS for sampled ones.
STEPS, LAYERS = "steps", "layers"
TABLES = (STEPS, LAYERS)

# Each measure, its meaning, and the unit where there is one.
MEASURES = {
    # of tensors
    "rms": "root of the mean of squares",
    "max": "largest magnitude",
    "zeros": "share of entries that are zero",
    "dead": "share of units that are zero for the whole batch",
    "nonfinite": "number of entries that are NaN or infinite",
    "norm": "Euclidean norm",
    "ratio": "norm of the update over the norm of the weight before it",
    "adam_rms": "root of the mean of g^2 / max(v, eps^2) (StableAdamW, arXiv 2304.13013)",
    # of a step
    "value": "the value itself",
    "lr": "learning rate",
    "skipped": "1 if the gradient scaler skipped the optimizer's step, else 0",
    "clipped": "share of the gradient norm that clipping removed",
    "seconds": "duration in seconds",
    "samples": "size of the first dimension of the first tensor that a model got, over its calls",
    "tokens": "entries of these tensors, if they have integers and two dimensions",
    "tensors": "number of tensors in the state of the optimizer",
    "hash": "24 bits of a hash of the values, as a number",
}
OUTPUT, OUTPUT_GRAD, PARAMETER, PARAMETER_GRAD, UPDATE, WHOLE = (
    *("output", "output.grad", "parameter", "parameter.grad", "update"),
    "whole",
)


class Series(NamedTuple):
    """One measured quantity of one thing."""

    model: str
    key: str
    measure: str

    @property
    def module(self) -> str:
        """Dotted name of the module of a tensor; ``.`` for the model itself; else empty."""
        module, slash, _ = self.key.rpartition("/")
        return module if slash else ""

    @property
    def what(self) -> str:
        """The part of the key after the module: ``output``, ``weight.grad``, ``loss``."""
        return self.key.rpartition("/")[2]


LOSS = Series("", "loss", "value")  # the mean of those that were differentiated in a step
LOSS_SCALE = Series("", "loss_scale", "value")
SKIPPED = LOSS_SCALE._replace(measure="skipped")
BATCH_HASH = Series("", "batch", "hash")
# The first parts of keys: of an optimizer's state (``state.exp_avg``), and of random generators.
STATE, GENERATORS = "state", "generators"


def kind_of(series: Series) -> str:
    """Return the kind of a series: an output, a parameter, a gradient, an update or the whole."""
    if not series.module:
        return WHOLE
    what = series.what
    if what == "output" or what.startswith("output."):
        return OUTPUT_GRAD if what.endswith(".grad") else OUTPUT
    if what.endswith(".grad"):
        return PARAMETER_GRAD
    return UPDATE if what.endswith(".update") else PARAMETER


class ExecutionOrder:
    """The place of each layer in a step: that of its first output.

    A layer without an output, such as one that is called without hooks, has the place of the
    nearest module around it that has one.
    """

    def __init__(self, series: Iterable[Series]) -> None:
        self._places: dict[tuple[str, str], int] = {}
        for one in series:
            if kind_of(one) == OUTPUT:
                self._places.setdefault((one.model, one.module), len(self._places))

    def place(self, series: Series) -> int:
        """Return the place of the layer of a series, from 0."""
        module = series.module
        while (series.model, module) not in self._places:
            if module in ("", "."):
                return len(self._places)
            module = parent_of(module)
        return self._places[series.model, module]


def choose_series(patterns: Sequence[str], names: Sequence[Series], path: object) -> list[Series]:
    """Return the series whose layer or key one of ``patterns`` matches, in their order."""
    included, excluded = split_exclusions(patterns)
    chosen = set() if included else set(names)
    for pattern in included:
        matched = _matching(pattern, names)
        if not matched:
            raise _matches_nothing(pattern, names, path)
        chosen |= matched
    for pattern in excluded:
        chosen -= _matching(pattern, names)
    if names and not chosen:
        raise LayerError(
            f"The patterns {', '.join(patterns)} leave no layer of {path}.", "Leave out one with !."
        )
    return [series for series in names if series in chosen]


def _matching(pattern: str, names: Sequence[Series]) -> set[Series]:
    test = compile_pattern(pattern)
    key = root_named(pattern)
    return {s for s in names if s.key == key or test(s.key) or (s.module and test(s.module))}


def _matches_nothing(pattern: str, names: Sequence[Series], path: object) -> LayerError:
    modules = list(dict.fromkeys(series.module for series in names if series.module))
    if near := near_patterns(pattern, modules):
        hint = f"Did you mean {near[0]}?"
    else:
        hint = did_you_mean(pattern, [*modules, *(series.key for series in names)])
    return LayerError(
        f"{pattern!r} matches nothing in {path}.",
        hint or f"{cite_command('hookscope', 'show', str(path))} lists its layers.",
    )
