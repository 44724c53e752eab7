"""The metadata with which a capture can be reproduced."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cache, partial
from importlib.metadata import version
from typing import Any

from hookscope.errors import HookError
from hookscope.execution.prepare import Prepared
from hookscope.execution.prompt_tokens import describe_arguments
from hookscope.hooks.capture import Capture
from hookscope.hooks.user_hooks import describe_hooks
from hookscope.results.metadata import ClassProbability
from hookscope.tensors.nested import walk
from hookscope.version import __version__

TOP = 5


class Provenance:
    """The metadata of a run. If a user hook raises, its error gets the capture with them.

    At the end of the block, padding is left out of the statistics of the capture.
    """

    def __init__(self, command: str, prepared: Prepared, options: Mapping[str, Any]) -> None:
        self.metadata = partial(describe_run, command, prepared, options)
        self.capture: Capture | None = None

    def __enter__(self) -> Provenance:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, HookError):
            error.capture = error.capture or self.capture
            if error.capture is not None:
                error.capture.metadata = {**self.metadata(), "failed": error.message}
                error.capture.exclude_padding()
        elif error is None and self.capture is not None:
            self.capture.exclude_padding()


def describe_run(command: str, prepared: Prepared, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata that all recordings have. The same command gives the same metadata."""
    loaded = prepared.loaded
    return {
        "command": command,
        "options": dict(options),
        "model": {
            "spec": loaded.spec,
            "source": loaded.source,
            "weights": loaded.weights.name,
            "blake3": loaded.weights.blake3,
            **({"adapter": loaded.adapter.to_json()} if loaded.adapter else {}),
        },
        "inputs": list(prepared.sources),
        **describe_arguments(loaded, prepared.value),
        "seed": prepared.seed,
        "device": str(prepared.device),
        "dtype": prepared.dtype,
        "training": prepared.train,
        "versions": versions() | {name: version(name) for name in loaded.packages},
        **({"hooks": describe_hooks(hooks)} if (hooks := prepared.interventions.hooks) else {}),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that a result depends on."""
    return dict(_versions())


@cache  # a look-up takes a millisecond, and a loop may record often
def _versions() -> tuple[tuple[str, str], ...]:
    packages = ("torch", "torchvision", "safetensors", "numpy")
    return (
        ("hookscope", __version__),
        ("python", platform.python_version()),
        *((name, version(name)) for name in packages),
    )


def top_classes(prepared: Prepared, output: Any) -> list[list[ClassProbability]]:
    """Return the five most probable classes of each image; empty if the classes have no names."""
    names = prepared.loaded.categories
    logits = next((t for _, t in walk(output)), None)
    if logits is None or logits.ndim != 2 or not names or logits.shape[1] != len(names):
        return []
    scores = logits.detach().double()
    shares = scores.softmax(dim=1)
    best = shares.topk(min(TOP, len(names)), dim=1)
    return [
        [
            {
                "index": i,
                "label": names[i],
                "probability": round(p, 6),
                "logit": round(row[i].item(), 6),
            }
            for p, i in zip(values, indices, strict=True)
        ]
        for row, values, indices in zip(
            scores, best.values.tolist(), best.indices.tolist(), strict=True
        )
    ]
