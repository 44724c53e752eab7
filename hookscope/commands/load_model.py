"""Load a model by its spec, as every command does."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

from hookscope.errors import RequestError
from hookscope.specs.public import Only, public
from hookscope.specs.request import ModelRequest
from hookscope.specs.run_options import RunOptions

if TYPE_CHECKING:
    from hookscope.sources.loaded import LoadedModel


@public
def load_model(
    model: str | os.PathLike[str],
    *,
    loading: ModelRequest,
    run: Annotated[RunOptions, Only("seed")],
    meta: bool = False,
) -> LoadedModel:
    """Load a model, in eval mode on the CPU.

    Args:
        model: the spec of a model.
        seed: seed of random weights.
        meta: build it on the meta device, without values.

    Raises:
        ModelError: no such model, or it cannot be built.
        RequestError: a module is given, which is loaded already.
        WeightsError: the weights cannot be loaded into it.

    Example:
        >>> import hookscope
        >>> hookscope.load_model("resnet18").shape
        (1, 3, 224, 224)
    """
    from hookscope.sources.model_loader import load

    if not loading.named:
        raise RequestError(
            f"A value of type {type(model).__name__} is not the spec of a model.",
            "Give its name or file; see 'hookscope help model-specs'.",
        )
    return load(loading, seed=run.seed, meta=meta)
