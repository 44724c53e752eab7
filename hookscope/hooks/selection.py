"""Select the layers of a model that patterns name.

A pattern that matches nothing is an error, which suggests similar names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from torch import nn

from hookscope.errors import LayerError
from hookscope.files.shell_words import cite_command
from hookscope.files.suggestions import did_you_mean
from hookscope.hooks.layers import Layer, layers_of
from hookscope.specs import patterns


def select(
    model: nn.Module,
    layers: Iterable[str] = (),
    *,
    types: Iterable[str] = (),
    depth: int | None = None,
    leaves: bool = False,
    spec: str = "MODEL",
) -> tuple[Layer, ...]:
    """Return the chosen layers of ``model`` in definition order.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> [layer.name for layer in select(net, ["*"], types=["Linear"])]
        ['0', '2']
    """
    every = layers_of(model)
    included, excluded = patterns.split_exclusions(layers)
    chosen = [_matched(every, pattern, spec) for pattern in included] or [set(every)]
    candidates = set.union(*chosen).difference(*(_matched(every, p, spec) for p in excluded))
    wanted = list(types)
    for name in wanted:
        _check_type(every, name)
    selected = tuple(
        layer
        for layer in every
        if layer in candidates
        and (not wanted or any(fnmatchcase(kind, name) for kind in layer.types for name in wanted))
        and (depth is None or layer.depth <= depth)
        and (not leaves or layer.leaf)
    )
    if not selected:
        raise LayerError(
            "No layer matches all of the filters.",
            f"{cite_command('hookscope', 'tree', spec)} lists them all.",
        )
    return selected


def _matched(every: Sequence[Layer], pattern: str, spec: str) -> set[Layer]:
    """The layers that one positive pattern names, by their first name or an alias."""
    name = patterns.root_named(pattern)
    if exact := {layer for layer in every if name in (layer.name, *layer.aliases)}:
        return exact
    test: Callable[[str], bool] = patterns.compile_pattern(pattern)
    matches = {layer for layer in every if any(map(test, (layer.name, *layer.aliases)))}
    if not matches:
        absent: Mapping[str, str] = getattr(every[0].module, "_hookscope_absent", {})
        for name in filter(test, absent):
            raise LayerError(
                f"{name} is not in {spec}: {absent[name]}.",
                f"{cite_command('hookscope', 'tree', spec)} lists what is.",
            )
        names = [name for layer in every for name in (layer.name, *layer.aliases)]
        globs = patterns.near_patterns(pattern, names)
        near = did_you_mean(pattern, globs or names)
        if "," in pattern and "{" not in pattern:
            near = "Give each pattern with a --layer of its own."
        raise LayerError(
            f"No layer of {spec} matches {pattern!r}.",
            f"{near} {cite_command('hookscope', 'tree', spec)} lists them all.".strip(),
        )
    return matches


def _check_type(every: Sequence[Layer], name: str) -> None:
    present = {kind for layer in every for kind in layer.types}
    if not any(fnmatchcase(kind, name) for kind in present):
        raise LayerError(
            f"No layer of the model is of type {name!r}.",
            did_you_mean(name, sorted(present)) or f"There are {', '.join(sorted(present))}.",
        )
