"""Files of weights from the network, where they are not in a cache already.

The network is used only from here, and only when pretrained weights were asked for by name.
"""

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

_PATIENCE = 10.0  # seconds for a server to answer at all, names looked up included


def fetch(url: str) -> str:
    """Return the path of the file of weights at ``url`` in torch.hub's cache.

    It is downloaded first if need be, and checked against the hash that its name may hold.

    Raises:
        WeightsError: the file is not cached and cannot be fetched.
    """
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    path = folder / os.path.basename(urlparse(url).path)
    if path.exists():
        return str(path)
    repair = (
        f"Put the file there by hand, set TORCH_HOME to a cache that has it, "
        f"give --weights FILE, or use --weights random. Address: {url}"
    )
    trouble = describe_network_error(url)
    if trouble:
        raise WeightsError(f"The weights are not in the cache ({path}), and {trouble}.", repair)
    log.info("weights: downloading %s to %s", url, path)
    try:
        with redirect_stdout(io.StringIO()):  # torch.hub prints there
            torch.hub.load_state_dict_from_url(
                url, progress=False, check_hash=True, weights_only=True
            )
    except (OSError, RuntimeError, http.client.HTTPException) as exc:
        raise WeightsError(
            f"The weights could not be downloaded: {end_sentence(str(exc))}", repair
        ) from exc
    return str(path)


def describe_network_error(url: str) -> str:
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
