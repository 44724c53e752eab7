"""The kinds of things that a function can be asked about."""

from __future__ import annotations

from typing import NamedTuple

MODELS, CAPTURES, FEATURES = "models", "captures", "features folders"
RUNS, WEIGHTS = "training runs", "weights"
FINGERPRINTS = "fingerprints"
STRUCTURES = "structures"  # of two models that do not run
# The two sides of diff. A dump is what another program wrote.
MODEL_AND_WEIGHTS = "a model and weights"
MODEL_AND_DUMP, CAPTURE_AND_DUMP = "a model and a dump", "a capture and a dump"
MODEL_AND_FINGERPRINT = "a model and a fingerprint"
PAIRS = (MODEL_AND_WEIGHTS, MODEL_AND_DUMP, CAPTURE_AND_DUMP, MODEL_AND_FINGERPRINT)


class Subject(NamedTuple):
    """What a function is asked about: its kind, and its name for messages."""

    kind: str
    label: str
