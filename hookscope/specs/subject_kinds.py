"""The kinds of things that a function can be asked about."""

from __future__ import annotations

from typing import NamedTuple

MODELS, CAPTURES, FEATURES = "models", "captures", "features folders"
RUNS, WEIGHTS = "training runs", "weights"
MODEL_AND_WEIGHTS = "a model and weights"  # the two sides of diff
STRUCTURES = "structures"  # of two models that do not run


class Subject(NamedTuple):
    """What a function is asked about: its kind, and its name for messages."""

    kind: str
    label: str
