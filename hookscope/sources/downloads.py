"""Downloads to the cache of torch.hub, only of pretrained weights that are requested by name."""

from __future__ import annotations

import http.client
import io
import logging
import os
import threading
from contextlib import redirect_stdout
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlparse
from urllib.request import Request, urlopen

import torch

from hookscope.errors import WeightsError
from hookscope.specs.model_spec import end_sentence

log = logging.getLogger("hookscope")

_TIMEOUT = 10.0  # seconds for the name lookup and the answer of the server


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
