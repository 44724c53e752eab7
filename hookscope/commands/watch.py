"""Watch a training loop from Python."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hookscope.specs.watch_options import WATCHED, WatchOptions
from hookscope.stores.runs.run_folder import create_run_folder
from hookscope.stores.runs.run_writer import RunWriter

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


@contextmanager
def watch(
    model: nn.Module | Mapping[str, nn.Module],
    optimizer: Optimizer | Sequence[Optimizer],
    *,
    every: int | None = None,
    layers: str | Iterable[str] | None = None,
    what: str | Iterable[str] = WATCHED,
    stop_on: str | Iterable[str] = (),
    folder: str | os.PathLike[str] | None = None,
) -> Iterator[Path]:
    """Watch the training within the block, as ``hookscope run`` does for a whole script.

    What the block computes stays the same, bit for bit. A fault of hookscope is logged and does not
    end the training.

    Args:
        model: the model, or several by name. Its modules have the names of the model without
            wrappers, such as DistributedDataParallel.
        optimizer: the optimizer, or several.
        every: measure layers and parameters at each step that is a multiple of this number. None
            for step 0, the powers of two below 50, and each 50th step.
        layers: patterns of layer names; None for all layers.
        what: among ``activations``, ``gradients``, ``parameters`` and ``optimizer``.
        stop_on: raise ``SystemExit`` at the first ``nan``, ``inf``, ``spike``, ``dead`` or
            ``vanishing``.
        folder: where to write; None for a new folder in ``runs``, named after the program.

    Yields:
        The folder, which ``hookscope.load``, ``report``, ``check`` and ``diff`` take.

    Raises:
        RequestError: a name is unknown, a number out of range, or the folder has files.
        StoreError: the folder cannot be created.

    Example:
        >>> import tempfile, torch, hookscope
        >>> net = torch.nn.Linear(4, 2)
        >>> sgd = torch.optim.SGD(net.parameters(), lr=0.1)
        >>> with hookscope.watch(net, sgd, every=1, folder=tempfile.mkdtemp()) as folder:
        ...     for _ in range(3):
        ...         net(torch.ones(8, 4)).sum().backward()
        ...         sgd.step()
        >>> hookscope.load(folder).curve("./output", "rms").steps.tolist()
        [0, 1, 2]
    """
    from hookscope.training.run_session import run_info
    from hookscope.training.watcher import Watcher

    options = WatchOptions(every, layers, what, stop_on, output=folder)
    models = model if isinstance(model, Mapping) else {type(model).__name__: model}
    optimizers = optimizer if isinstance(optimizer, Sequence) else [optimizer]
    script = sys.argv[0] or "python"
    written = create_run_folder(Path(script).stem, folder, os.environ)
    writer = RunWriter(written, run_info(script, sys.argv[1:], options))
    watcher = Watcher(options, writer, models, optimizers)
    watcher.install()
    try:
        yield written
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        watcher.finish("interrupted" if interrupted else "failed", None)
        raise
    watcher.finish("finished", None)
