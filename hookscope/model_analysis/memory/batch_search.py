"""The largest batch whose peak is within a limit."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress

from hookscope.errors import ForwardError, RequestError
from hookscope.model_analysis.memory.allocations import AllocationLog
from hookscope.results.memory import BatchLimit

_MOST = 2**40  # samples
_LINES = 6  # runs until the interval is halved instead: peaks may bend


def find_batch(
    log_of: Callable[[int], AllocationLog], batch: int, log: AllocationLog, limit: int
) -> BatchLimit:
    """Return the largest batch within a limit, from the logs of two batches, and a run of it.

    Where that run does not have the peak that the logs foretell, all batches that are tried run.
    """
    peak = log.peak().size
    try:
        twice = log_of(2 * batch)
    except ForwardError as error:
        raise _not_larger(batch, 2 * batch, error) from error
    foretold = log.line_to(twice, batch)
    if foretold is not None:
        found = largest_batch(lambda n: foretold(n - batch).peak().size, batch, peak, limit)
        tried, expected = (found.batch, found.peak) if found.batch else (1, found.next_peak)
        with suppress(ForwardError):  # as batch normalisation of one sample
            if tried == batch or log_of(tried).peak().size == expected:
                return found
    return largest_batch(lambda n: log_of(n).peak().size, batch, peak, limit)


def largest_batch(peak_of: Callable[[int], int], batch: int, peak: int, limit: int) -> BatchLimit:
    """Return the largest batch within a limit, where ``batch`` has a peak that is known.

    Peaks are nearly linear in the batch, so a line through two of them gives the next batch to try.
    The search ends when the peaks of a batch that fits and of the next, which does not, are known.
    """
    known: dict[int, float] = {batch: peak}

    def measure(size: int) -> None:
        try:
            known[size] = peak_of(size)
        except ForwardError as error:
            if size > batch:
                raise _not_larger(batch, size, error) from error
            known[size] = -math.inf  # as batch normalisation of one sample: more may run

    measure(2 * batch)
    while True:
        fits = max((size for size in known if known[size] <= limit), default=0)
        beyond = min((size for size in known if known[size] > limit), default=_MOST)
        if beyond == fits + 1 or beyond <= fits:
            break
        if len(known) < _LINES or beyond == _MOST:
            guess = _on_line(known, fits, beyond, limit)
        else:
            guess = (fits + beyond) // 2
        measure(min(max(guess, fits + 1), beyond - 1))
    if math.isinf(known.get(fits, 0)):  # it does not run
        fits = 0
    return BatchLimit(limit, fits, int(known.get(fits, 0)), int(known[beyond]), beyond)


def _not_larger(batch: int, size: int, error: ForwardError) -> RequestError:
    """The error of a model whose code has the number of samples in it."""
    return RequestError(
        f"The model runs with a batch of {batch} and not with one of {size}, so --limit cannot look"
        f" for the largest batch. {error.message}",
        "Leave out --limit, or let the model take the number of samples from its input.",
    )


def _on_line(known: dict[int, float], fits: int, beyond: int, limit: int) -> int:
    """The batch whose peak is the limit, on the line through the two known ones next to it."""
    sizes = sorted(size for size in known if not math.isinf(known[size]))
    below, above = [s for s in sizes if s <= fits][-2:], [s for s in sizes if s >= beyond][:2]
    first, second = (below[-1], above[0]) if below and above else (below or above)[:2]
    slope = (known[second] - known[first]) / (second - first)
    if slope <= 0:
        return 2 * max(fits, 1)
    return int(min(first + (limit - known[first]) / slope, _MOST))
