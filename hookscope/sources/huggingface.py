"""Files of a repository on the Hugging Face hub: from its cache, or fetched where asked for."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from huggingface_hub import constants, hf_hub_download, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError
from huggingface_hub.utils.tqdm import (
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
)

from hookscope.errors import WeightsError
from hookscope.sources.network import describe_network_error
from hookscope.specs.model_spec import end_sentence

log = logging.getLogger("hookscope")

_BY_HAND = "Fetch it elsewhere (hf download {0}) and copy the cache, whose place is HF_HUB_CACHE"


def cached_file(repository: str, names: Sequence[str]) -> str | None:
    """Return the path of the first of the files ``names`` that the cache has of a repository."""
    for name in names:
        found = try_to_load_from_cache(repository, name)
        if isinstance(found, str):
            return found
    return None


def fetch_file(repository: str, names: Sequence[str]) -> str:
    """Return the path of the first of the files ``names`` that there is in a repository.

    Raises:
        WeightsError: none is cached, and none can be fetched.
    """
    found = cached_file(repository, names)
    if found:
        return found
    with _asking(repository):
        for name in names:
            try:
                return hf_hub_download(repository, name)
            except EntryNotFoundError:
                continue
    raise WeightsError(
        f"{repository} has no {' and no '.join(names)}.", "Give --weights FILE, or random."
    )


def fetch_folder(repository: str, patterns: Sequence[str]) -> str:
    """Return a folder with the files of a repository whose names match ``patterns``.

    Raises:
        WeightsError: they cannot be fetched.
    """
    with _asking(repository):
        return snapshot_download(repository, allow_patterns=list(patterns))


@contextmanager
def _asking(repository: str) -> Iterator[None]:
    """Say what is fetched, or at once why nothing can be; keep bars off a stream that is a file."""
    address = f"{constants.ENDPOINT}/{repository}"
    repair = f"{_BY_HAND.format(repository)}, give --weights FILE, or random. Address: {address}"
    here = f"{repository} is not in the cache ({constants.HF_HUB_CACHE})"
    offline = "HF_HUB_OFFLINE is set" if constants.is_offline_mode() else ""
    trouble = offline or describe_network_error(address)
    if trouble:
        raise WeightsError(f"{here}, and {trouble}.", repair)
    log.info("weights: downloading from %s to %s", address, constants.HF_HUB_CACHE)
    shown = not are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    except EntryNotFoundError:
        raise
    except (OSError, HfHubHTTPError, LocalEntryNotFoundError) as exc:
        why = str(exc).strip().partition("\n")[0]
        raise WeightsError(f"{here}, and cannot be fetched: {end_sentence(why)}", repair) from exc
    finally:
        if shown:
            enable_progress_bars()
