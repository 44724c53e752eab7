"""Torchvision's pretrained weights: choosing them by name, and having their file at hand."""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hookscope.errors import EnvironmentFault, WeightsError
from hookscope.specs.catalog import no_such_weights
from hookscope.specs.model_spec import is_weights_file
from hookscope.tensors.interrupts import signal_safe_contextmanager
from hookscope.tensors.threads import SharedSetting


def pretrained_weights(name: str) -> list[Any]:
    """Return the pretrained weights that fit the float model called ``name``."""
    found = models.get_model_weights(name)
    unquantized = [member.meta.get("unquantized") for member in found]
    return [float_one or member for member, float_one in zip(found, unquantized, strict=True)]


def choose_weights(name: str, word: str) -> Any:
    """Return the weights that ``word`` names for the model ``name``; None for random or a file.

    Raises:
        RequestError: there are none of that name.
    """
    if word == "random":
        return None
    known = {member.name: member for member in pretrained_weights(name)}
    if word.lower() == "default":
        default = models.get_model_weights(name).DEFAULT
        return default.meta.get("unquantized") or default
    if word in known:
        return known[word]
    if is_weights_file(word):
        return None
    raise no_such_weights(name, word, known)


@contextmanager
def _forcing_weights_only() -> Iterator[None]:
    switch = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(switch)
    os.environ[switch] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[switch]
        else:
            os.environ[switch] = before


_weights_only = SharedSetting(_forcing_weights_only)


@signal_safe_contextmanager
def weights_only_load(path: str) -> Iterator[None]:
    """While active, torch.load builds tensors and plain values only, whoever calls it.

    Torchvision's builders load the file at ``path`` themselves and offer no argument for this.

    Raises:
        WeightsError: the file could not be read that way, or does not fit the model.
    """
    _weights_only.acquire()
    try:
        yield
    except (RuntimeError, EOFError, OSError, pickle.UnpicklingError) as exc:
        why = str(exc).partition("\n")[0]
        raise WeightsError(
            f"The cached weights {path!r} cannot be read: {why}",
            "Delete the file, so that it is downloaded again.",
        ) from exc
    finally:
        _weights_only.release()


__all__ = ["models"]

with warnings.catch_warnings():  # torchvision's remarks about its own parts are not the user's
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
            "Install the two together: python -m pip install --upgrade torch torchvision",
        ) from exc
