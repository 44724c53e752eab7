"""What ``run`` records of a training, how often, and what it stops at."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from hookscope.errors import RequestError
from hookscope.specs.choices import check_choice
from hookscope.specs.patterns import as_texts, check_patterns
from hookscope.specs.settings import setting

# The values of --what and of --stop-on.
ACTIVATIONS, GRADIENTS, PARAMETERS = "activations", "gradients", "parameters"
OPTIMIZER = "optimizer"
WATCHED = (ACTIVATIONS, GRADIENTS, PARAMETERS, OPTIMIZER)
NAN, INF, SPIKE, DEAD, VANISHING = "nan", "inf", "spike", "dead", "vanishing"
STOPS = (NAN, INF, SPIKE, DEAD, VANISHING)

INTERVAL = 50  # steps between samples by default, after a denser start
DENSE_FINGERPRINTS = (
    64  # sampled steps that all have one; then those whose number is a power of two
)


@dataclass(frozen=True)
class WatchOptions:
    """How a training script is watched."""

    section: ClassVar[str] = "Watching"

    every: int | None = setting(
        None,
        f"Record each Nth step. Default: each {INTERVAL}th, and more of the first ones.",
        minimum=1,
        metavar="N",
    )
    layers: str | Iterable[str] | None = setting(
        None,
        "Layers to watch, such as 'layer3.*'. Prefix ! to exclude. Repeatable. Default: all.",
        flags=("--layer", "-l"),
        metavar="GLOB",
        many=True,
        complete="layers",
    )
    what: str | Iterable[str] = setting(
        WATCHED,
        "What to record. Separate several with commas.",
        choices=WATCHED,
        commas=True,
        metavar="LIST",
        shell_default=",".join(WATCHED),
    )
    stop_on: str | Iterable[str] = setting(
        (),
        "Stop the script at the first of these. Separate several with commas.",
        choices=STOPS,
        commas=True,
        shell_default=None,
    )
    fingerprint: bool = setting(
        False, "Also write a fingerprint of the outputs in sampled steps, for 'hookscope diff'."
    )
    live: bool = setting(False, "Show the numbers while the script runs.")
    output: str | os.PathLike[str] | None = setting(
        None,
        "Folder to write. Default: runs/SCRIPT-NUMBER.",
        section="Output",
        flags=("--output", "-o"),
        file="folder",
    )

    def __post_init__(self) -> None:
        every: object = self.every
        if every is not None and (not isinstance(every, int) or every < 1):
            raise RequestError(
                f"--every must be at least 1, not {every!r}.",
                "Give a number of steps, such as 100.",
            )
        if self.layers is not None:
            object.__setattr__(self, "layers", as_texts(self.layers))
            check_patterns(as_texts(self.layers))
        for name, keyword, known in (
            ("what", "--what", WATCHED),
            ("stop_on", "--stop-on", STOPS),
        ):
            _hold_names(self, name)
            for value in getattr(self, name):
                check_choice(keyword, value, known)
        if not self.what:
            raise RequestError("--what is empty.", f"Choose among {', '.join(WATCHED)}.")
        if self.output is not None:
            _check_folder(os.fspath(self.output))

    def samples(self, step: int) -> bool:
        """Whether the step with this number, from 0, is recorded.

        >>> [step for step in range(120) if WatchOptions().samples(step)]
        [0, 1, 2, 4, 8, 16, 32, 50, 100]
        >>> [step for step in range(10) if WatchOptions(every=4).samples(step)]
        [0, 4, 8]
        """
        if self.every is not None:
            return step % self.every == 0
        # A power of two has a single bit.
        return step % INTERVAL == 0 or (step < INTERVAL and step & (step - 1) == 0)

    def fingerprints(self, step: int) -> bool:
        """Whether a fingerprint of this step is written: of sampled ones, later fewer and fewer.

        >>> chosen = WatchOptions(fingerprint=True, every=1)
        >>> [step for step in range(600) if step > 60 and chosen.fingerprints(step)]
        [61, 62, 63, 64, 128, 256, 512]
        """
        if not (self.fingerprint and self.samples(step)):
            return False
        place = step // (self.every or INTERVAL)
        return place < DENSE_FINGERPRINTS or place & (place - 1) == 0


def _hold_names(options: WatchOptions, name: str) -> None:
    """Convert a field to a tuple of names, each once."""
    value = getattr(options, name)
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")]
    object.__setattr__(options, name, tuple(dict.fromkeys(value)))


def _check_folder(output: str) -> None:
    if not output:
        raise RequestError("--output is empty.", "Name a folder, such as runs/first.")
    if os.path.exists(output) and not os.path.isdir(output):
        raise RequestError(
            f"{output} is a file, and a run is written to a folder.",
            "Name another folder with --output, or leave it out.",
        )
