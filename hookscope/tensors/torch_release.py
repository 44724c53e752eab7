"""What the installed release of PyTorch cannot do safely, and what to say about it."""

from __future__ import annotations

import torch

# Before it, a crafted file gets past ``torch.load(weights_only=True)``.
_READS_PICKLES = (2, 10)
READS_PICKLES = ".".join(map(str, _READS_PICKLES))


def reads_pickles_safely(release: str = torch.__version__) -> bool:
    """Whether ``torch.load(weights_only=True)`` of a release builds plain values only.

    >>> reads_pickles_safely("2.6.0+cu124"), reads_pickles_safely("2.14.1")
    (False, True)
    """
    major, minor = release.split(".")[:2]
    return (int(major), int(minor)) >= _READS_PICKLES


def unsafe_pickle(path: str) -> str:
    """Return the sentence for a file that this release does not read."""
    installed = torch.__version__.partition("+")[0]
    return (
        f"{path!r} is not opened: with torch {installed}, a file made for it could run code when it"
        " is read."
    )
