"""Many runs of a model with one change each, whose results are written while they are made."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Protocol, TypeVar

from hookscope.errors import CheckFailed
from hookscope.files.progress import Progress

log = logging.getLogger("hookscope")

SAVED_EVERY = 3.0  # seconds between two writes of the file


class RunEffect(Protocol):
    """The effect of one change, or the reason why the model failed with it."""

    @property
    def layer(self) -> str:
        """Name of the changed layer."""

    @property
    def failed(self) -> str:
        """The model's error; empty if it ran."""


Place = TypeVar("Place", bound=Hashable)
Effect = TypeVar("Effect", bound=RunEffect)


def make_runs(
    places: Sequence[Place],
    earlier: Mapping[Place, Effect],
    run: Callable[[Place], Effect],
    save: Callable[[Mapping[Place, Effect]], object] | None,
    progress: Progress | None,
) -> dict[Place, Effect]:
    """Make the runs that were not made earlier; return the effects in the order of the places.

    After an error or Ctrl-C too, all that were made are saved.
    """
    if earlier:
        log.info("resuming: %d of %d already done", len(earlier), len(places))
    made = dict(earlier)
    saved = time.monotonic()
    try:
        if progress:
            progress(len(made), len(places))
        for place in places:
            if place in made:
                continue
            made[place] = run(place)
            if progress:
                progress(len(made), len(places))
            if save is not None and time.monotonic() - saved > SAVED_EVERY:
                save(made)
                saved = time.monotonic()
    finally:
        if save is not None and made:
            save(made)
    effects = {place: made[place] for place in places}
    if all(effect.failed for effect in effects.values()):
        first = next(iter(effects.values()))
        raise CheckFailed(
            f"The model failed with every change. The first, of {first.layer}: {first.failed}",
            "Try another change, or select other layers.",
        )
    return effects
