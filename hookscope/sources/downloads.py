"""Downloads to the cache of torch.hub, only of pretrained weights that are requested by name."""

from __future__ import annotations

import http.client
import io
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlparse
from urllib.request import Request, urlopen

import torch
from huggingface_hub import constants, hf_hub_download, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError
from huggingface_hub.utils.tqdm import (
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
)

from hookscope.errors import WeightsError
from hookscope.specs.model_spec import end_sentence

log = logging.getLogger("hookscope")

_TIMEOUT = 10.0  # seconds for the name lookup and the answer of the server

_BY_HAND = "Run 'hf download {0}' on another machine and copy its cache (HF_HUB_CACHE)"


def fetch(url: str) -> str:
    """Return the path of the weights at ``url`` in torch.hub's cache; download them if needed."""
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    path = folder / os.path.basename(urlparse(url).path)
    if path.exists():
        return str(path)
    repair = (
        f"Download the file to that path, set TORCH_HOME to a cache that has it, "
        f"give --weights FILE, or use --weights random. Address: {url}"
    )
    problem = describe_network_error(url)
    if problem:
        raise WeightsError(f"The weights are not in the cache ({path}), and {problem}.", repair)
    log.info("weights: downloading %s to %s", url, path)
    try:
        with redirect_stdout(io.StringIO()):  # torch.hub prints to stdout
            torch.hub.load_state_dict_from_url(
                url, progress=False, check_hash=True, weights_only=True
            )
    except (OSError, RuntimeError, http.client.HTTPException) as exc:
        raise WeightsError(
            f"The weights could not be downloaded: {end_sentence(str(exc))}", repair
        ) from exc
    return str(path)


def describe_network_error(url: str) -> str:
    """Return why the server cannot be reached, or an empty string."""
    # A name lookup can take half a minute in spite of the timeout, so it runs on another thread.
    answer: list[str] = []

    def send_request() -> None:
        try:
            with urlopen(Request(url, method="HEAD"), timeout=_TIMEOUT):
                answer.append("")
        except HTTPError:  # the server answers; the download shows the error if it remains
            answer.append("")
        except URLError as exc:
            answer.append(f"the server cannot be reached ({exc.reason})")
        except (OSError, http.client.HTTPException) as exc:
            answer.append(f"the server cannot be reached ({exc})")

    thread = threading.Thread(target=send_request, daemon=True)
    thread.start()
    thread.join(_TIMEOUT)
    return answer[0] if answer else f"the server did not answer within {_TIMEOUT:.0f} seconds"


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
