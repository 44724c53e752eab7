"""Downloads from the hub of Hugging Face, for sources whose packages bring ``huggingface_hub``."""

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
from hookscope.sources.downloads import describe_network_error
from hookscope.specs.model_spec import end_sentence

log = logging.getLogger("hookscope")

_BY_HAND = "Run 'hf download {0}' on another machine and copy its cache (HF_HUB_CACHE)"


def cached_file(repository: str, names: Sequence[str]) -> str | None:
    """Return the path of the first of the files ``names`` of a repository in the cache."""
    for name in names:
        path = try_to_load_from_cache(repository, name)
        if isinstance(path, str):
            return path
    return None


def fetch_file(repository: str, names: Sequence[str]) -> str:
    """Return the path of the first of the files ``names`` that exists in a repository."""
    path = cached_file(repository, names)
    if path:
        return path
    with _downloading(repository):
        for name in names:
            try:
                return hf_hub_download(repository, name)
            except EntryNotFoundError:
                continue
    raise WeightsError(
        f"{repository} has no {' and no '.join(names)}.", "Use --weights FILE or --weights random."
    )


def fetch_folder(repository: str, patterns: Sequence[str]) -> str:
    """Return a folder with the files of a repository whose names match ``patterns``."""
    with _downloading(repository):
        return snapshot_download(repository, allow_patterns=list(patterns))


@contextmanager
def _downloading(repository: str) -> Iterator[None]:
    """Log the download, without progress bars, or raise at once if the hub cannot be reached."""
    address = f"{constants.ENDPOINT}/{repository}"
    repair = (
        f"{_BY_HAND.format(repository)}, use --weights FILE or --weights random. Address: {address}"
    )
    not_cached = f"{repository} is not in the cache ({constants.HF_HUB_CACHE})"
    offline = "HF_HUB_OFFLINE is set" if constants.is_offline_mode() else ""
    problem = offline or describe_network_error(address)
    if problem:
        raise WeightsError(f"{not_cached}, and {problem}.", repair)
    log.info("weights: downloading from %s to %s", address, constants.HF_HUB_CACHE)
    shown = not are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    except EntryNotFoundError:
        raise
    except (OSError, HfHubHTTPError, LocalEntryNotFoundError) as exc:
        why = str(exc).strip().partition("\n")[0]
        message = f"{not_cached}, and cannot be downloaded: {end_sentence(why)}"
        raise WeightsError(message, repair) from exc
    finally:
        if shown:
            enable_progress_bars()
