"""The installed torchvision, or one sentence about why there is none that works."""

from __future__ import annotations

import warnings

import torch

from hookscope.errors import EnvironmentFault

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
