"""What is checked and noted of the run without a change."""

from __future__ import annotations

import logging
from typing import Any

from hookscope.execution.edit_effect import relative_change
from hookscope.execution.prepare import Prepared
from hookscope.execution.verification import first_difference
from hookscope.tensors.hash import hash_tensors
from hookscope.tensors.nested import walk

log = logging.getLogger("hookscope")


def warn_of_noise(clean: Any, again: Any) -> bool:
    """Warn if two runs without a change gave different outputs; return whether they did."""
    different = first_difference(clean, again)
    if different:
        log.warning(
            "A second run without a change gave a different result (%s differs, relative difference"
            " %.3g). Changes up to that size are noise.",
            different,
            relative_change(clean, again) or 0.0,
        )
    return bool(different)


def fingerprint(prepared: Prepared, clean: Any) -> dict[str, str | None]:
    """Return the entry of the metadata by which a later run knows that it is the same.

    It is the hash of the model's parameters and buffers, its input and the clean output; None if
    values cannot be read.
    """
    state = {**dict(prepared.module.named_parameters()), **dict(prepared.module.named_buffers())}
    tensors = walk((state, prepared.value, clean))
    return {"fingerprint": hash_tensors((" ".join(path), tensor) for path, tensor in tensors)}
