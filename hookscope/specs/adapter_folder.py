"""The folder of an adapter of the package peft, checked without torch."""

from __future__ import annotations

import os
from pathlib import Path

from hookscope.errors import RequestError, WeightsError
from hookscope.specs.model_spec import TRANSFORMERS, ModelSpec

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
NO_ADAPTER = "none"


def check_adapter(spec: ModelSpec | None, adapter: str | os.PathLike[str] | None) -> None:
    """Raise an error if an adapter is given that cannot be attached."""
    if adapter is None or os.fspath(adapter) == NO_ADAPTER:
        return
    if spec is None or spec.source != TRANSFORMERS:
        what = "a module was given" if spec is None else f"{spec.text!r} is not one"
        raise RequestError(
            f"--adapter is only for models of transformers (hf:FOLDER), and {what}.",
            "Leave it out, or give the model as hf:FOLDER.",
        )
    folder = Path(adapter)
    for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
        if not (folder / name).is_file():
            raise WeightsError(
                f"{os.fspath(adapter)!r} is not the folder of an adapter: it has no {name}.",
                "Give a folder that save_pretrained of peft wrote.",
            )
