"""Load a model by its spec, as every command does."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hookscope.specs.public import public
from hookscope.specs.request import ModelRequest

if TYPE_CHECKING:
    from hookscope.sources.loaded import LoadedModel


@public
def load_model(
    model: str | os.PathLike[str], *, loading: ModelRequest, seed: int = 0, meta: bool = False
) -> LoadedModel:
    """Load a model, in eval mode on the CPU.

    Args:
        model: the spec of a model.
        seed: of random weights.
        meta: build it on the meta device, without values.

    Raises:
        ModelError: no such model, or it cannot be built.
        WeightsError: the weights cannot be loaded into it.

    Example:
        >>> import hookscope
        >>> hookscope.load_model("resnet18").shape
        (1, 3, 224, 224)
    """
    from hookscope.sources.model_loader import load

    return load(loading, seed=seed, meta=meta)
