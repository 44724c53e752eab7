"""The words to choose among when a model is run, for the command line and for Python alike."""

from __future__ import annotations

DEFAULT_MODEL = "resnet18"
DTYPES = ("float32", "float64", "float16", "bfloat16")
DEVICES = ("cpu", "cuda", "mps", "auto")
