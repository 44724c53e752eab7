"""Torchvision's pretrained weights: choosing them by name, and having their file at hand.

The network is used only from here, and only when pretrained weights were asked for by name.
"""

from __future__ import annotations

import http.client
import io
import logging
import os
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlparse
from urllib.request import Request, urlopen

import torch

from hookscope.errors import WeightsError
from hookscope.sources.catalog import no_such_weights
from hookscope.sources.installed import models
from hookscope.spec import ended, is_weights_file

log = logging.getLogger("hookscope")

_PATIENCE = 10.0  # seconds for a server to answer at all, names looked up included


def members(name: str) -> list[Any]:
    """Return the pretrained weights that fit the float model called ``name``."""
    found = models.get_model_weights(name)
    unquantized = [member.meta.get("unquantized") for member in found]
    return [float_one or member for member, float_one in zip(found, unquantized, strict=True)]


def choose(name: str, word: str) -> Any:
    """Return the weights that ``word`` names for the model ``name``; None for random or a file.

    Raises:
        RequestError: there are none of that name.
    """
    if word == "random":
        return None
    known = {member.name: member for member in members(name)}
    if word.lower() == "default":
        default = models.get_model_weights(name).DEFAULT
        return default.meta.get("unquantized") or default
    if word in known:
        return known[word]
    if is_weights_file(word):
        return None
    raise no_such_weights(name, word, known)


def fetch(entry: Any) -> str:
    """Return the path of the cached file of ``entry``, which is downloaded first if need be.

    Raises:
        WeightsError: the file is not cached and cannot be fetched.
    """
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    path = folder / os.path.basename(urlparse(entry.url).path)
    if path.exists():
        return str(path)
    repair = (
        f"Put the file there by hand, set TORCH_HOME to a cache that has it, "
        f"give --weights FILE, or use --weights random. Address: {entry.url}"
    )
    trouble = _trouble_with(entry.url)
    if trouble:
        raise WeightsError(f"The weights are not in the cache ({path}), and {trouble}.", repair)
    log.info("weights: downloading %s to %s", entry.url, path)
    try:
        with redirect_stdout(io.StringIO()):  # torch.hub prints there
            entry.get_state_dict(progress=False, check_hash=True, weights_only=True)
    except (OSError, RuntimeError, http.client.HTTPException) as exc:
        raise WeightsError(
            f"The weights could not be downloaded: {ended(str(exc))}", repair
        ) from exc
    return str(path)


@contextmanager
def only_tensors(path: str) -> Iterator[None]:
    """While active, torch.load builds tensors and plain values only, whoever calls it.

    Torchvision's builders load the file at ``path`` themselves and offer no argument for this.

    Raises:
        WeightsError: the file could not be read that way, or does not fit the model.
    """
    switch = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(switch)
    os.environ[switch] = "1"
    try:
        yield
    except (RuntimeError, EOFError, OSError, pickle.UnpicklingError) as exc:
        why = str(exc).partition("\n")[0]
        raise WeightsError(
            f"The cached weights {path!r} cannot be read: {why}",
            "Delete the file, so that it is downloaded again.",
        ) from exc
    finally:
        if before is None:
            del os.environ[switch]
        else:
            os.environ[switch] = before


def _trouble_with(url: str) -> str:
    """Why the server cannot be reached, or an empty string.

    A name server that is not there can hold a lookup for half a minute whatever time-out is set,
    so the question is asked on a thread that need not be waited for.
    """
    answer: list[str] = []

    def ask() -> None:
        try:
            with urlopen(Request(url, method="HEAD"), timeout=_PATIENCE):
                answer.append("")
        except HTTPError:  # it answers; what it says to the download itself is what counts
            answer.append("")
        except URLError as exc:
            answer.append(f"the server cannot be reached ({exc.reason})")
        except (OSError, http.client.HTTPException) as exc:
            answer.append(f"the server cannot be reached ({exc})")

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    return answer[0] if answer else f"the server did not answer within {_PATIENCE:.0f} seconds"
