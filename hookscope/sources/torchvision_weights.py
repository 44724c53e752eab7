"""The installed torchvision, its pretrained weights by name, and loading their files safely."""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hookscope.errors import EnvironmentFault, WeightsError
from hookscope.files.signal_safety import signal_safe_contextmanager
from hookscope.specs.catalog import no_such_weights
from hookscope.specs.model_spec import is_weights_file
from hookscope.tensors.threads import SharedSetting

__all__ = ["choose_weights", "models", "pretrained_weights", "weights_only_load"]

with warnings.catch_warnings():  # warnings of torchvision about its own code
    warnings.simplefilter("ignore")
    try:
        from torchvision import models
    except ModuleNotFoundError as exc:
        if exc.name != "torchvision":
            raise
        raise EnvironmentFault(
            "torchvision is not installed.", "Install it: python -m pip install torchvision"
        ) from exc
    except (ImportError, RuntimeError, OSError, AttributeError) as exc:
        raise EnvironmentFault(
            f"torchvision does not match torch {torch.__version__}: {exc}.",
            "Install matching releases: python -m pip install --upgrade torch torchvision",
        ) from exc


def pretrained_weights(name: str) -> list[Any]:
    """Return the pretrained weights for the float model called ``name``."""
    return [member.meta.get("unquantized") or member for member in models.get_model_weights(name)]


def choose_weights(name: str, spec: str) -> Any:
    """Return the pretrained weights called ``spec`` of the model ``name``.

    None if ``spec`` is ``random`` or a file.
    """
    if spec == "random":
        return None
    known = {member.name: member for member in pretrained_weights(name)}
    if spec.lower() == "default":
        default = models.get_model_weights(name).DEFAULT
        return default.meta.get("unquantized") or default
    if spec in known:
        return known[spec]
    if is_weights_file(spec):
        return None
    raise no_such_weights(name, spec, known)


@contextmanager
def _forcing_weights_only() -> Iterator[None]:
    variable = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(variable)
    os.environ[variable] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before


_weights_only = SharedSetting(_forcing_weights_only)


@signal_safe_contextmanager
def weights_only_load(path: str) -> Iterator[None]:
    """While active, every torch.load builds tensors and plain values only.

    The builders of torchvision load the file at ``path`` and have no argument for this.
    """
    _weights_only.acquire()
    try:
        yield
    except (RuntimeError, EOFError, OSError, pickle.UnpicklingError) as exc:
        why = str(exc).partition("\n")[0]
        raise WeightsError(
            f"The cached weights {path!r} cannot be read: {why}",
            "Delete the file to download it again.",
        ) from exc
    finally:
        _weights_only.release()
