"""One run of a program that is watched, from its first import of torch to its end. Torch-free."""

from __future__ import annotations

import atexit
import datetime
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hookscope.files.shell_words import join_words
from hookscope.specs.patterns import as_texts
from hookscope.specs.watch_options import WatchOptions
from hookscope.stores.runs.run_folder import create_run_folder, launch_in
from hookscope.stores.runs.series import LAYERS, STEPS
from hookscope.training.import_watch import call_after_import, report_fault, say
from hookscope.training.script_runner import Program
from hookscope.version import __version__

if TYPE_CHECKING:
    from hookscope.stores.runs.run_info import RunInfo, Status
    from hookscope.stores.runs.run_writer import RunWriter
    from hookscope.training.live_rows import LiveRows
    from hookscope.training.watcher import Watcher

NO_STEP = "The script called neither backward() nor an optimizer's step() in this process."


class RunSession:
    """A program and how it is watched."""

    def __init__(self, options: WatchOptions, program: Program, *, quiet: bool = False) -> None:
        self.program = Program(program.name, program.args, program.is_module, self._on_end)
        self._options = options
        self._quiet = quiet
        self._process = os.getpid()
        self._started_in = os.getcwd()  # the script may change it
        self._watcher: Watcher | None = None
        self._status: Status = "finished"
        self._exit_status: int | None = 0

    def watch_from_import(self) -> None:
        """Begin to watch once the program has imported torch.

        Torch is not imported for it: the program may set variables that torch reads on import.
        """
        call_after_import("torch", self._start)
        atexit.register(self._finish)

    def _start(self) -> None:
        from hookscope.stores.runs.run_writer import RunWriter
        from hookscope.training.watcher import Watcher

        folder = create_run_folder(
            self.program.title, self._options.output, os.environ, self._started_in
        )
        info = run_info(self.program.name, list(self.program.args), self._options)
        place = os.path.relpath(folder, self._started_in)
        is_below = not place.startswith(os.pardir)
        writer = RunWriter(folder, info, say, Path(place) if is_below else folder)
        self._watcher = Watcher(self._options, writer, live=self._live_rows())
        self._watcher.install()

    def _live_rows(self) -> LiveRows | None:
        if not self._options.live:
            return None
        from hookscope.training.live_rows import LiveRows
        from hookscope.views.text.live_run import LiveView

        return LiveRows(LiveView(sys.stderr, self.program.title))

    def _on_end(self, error: BaseException | None) -> None:
        if isinstance(error, SystemExit):
            code = error.code
            self._exit_status = 0 if code is None else code if isinstance(code, int) else 1
            self._status = "failed" if self._exit_status else "finished"
        elif error is not None:
            self._status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            self._exit_status = None if self._status == "interrupted" else 1

    def _finish(self) -> None:
        if os.getpid() != self._process:  # a copy of this one that the script has forked
            return
        try:
            if self._watcher is not None:
                self._watcher.finish(self._status, self._exit_status)
                self._say_where(self._watcher)
            elif "torch" not in sys.modules and not self._quiet:
                say("the script did not import torch, so nothing was recorded.")
        except Exception as error:
            report_fault("the end of the run could not be recorded", error)

    def _say_where(self, watcher: Watcher) -> None:
        """Say where the record is, once for all ranks."""
        writer = watcher.writer
        info = writer.info
        if self._quiet or info["rank"]:
            return
        place = str(writer.place.parent if writer.place.name == "rank0" else writer.place)
        count = recorded_steps(info, writer)
        if writer.rows_of(STEPS):
            lost, verb = "", "report"
            if watcher.recorder.lost is not None:
                lost, verb = (
                    f" The loss is NaN or infinite from step {watcher.recorder.lost:,}.",
                    "check",
                )
            say(f"{count} in {place}.{lost} Next: {join_words(['hookscope', verb, place])}")
        else:
            is_known = info["status"] == "stopped" or info["incomplete"]  # it was said
            say(f"{count} in {place}." + (f" {NO_STEP}" if not is_known else ""))


def recorded_steps(info: RunInfo, writer: RunWriter) -> str:
    """Return how many steps were recorded, as in ``recorded 120 steps (layers at 9 of them)``."""
    rows, sampled, is_complete = (
        writer.rows_of(STEPS),
        writer.rows_of(LAYERS),
        not info["incomplete"],
    )
    if not rows:
        return "no step was recorded"
    # Of a complete record, a row is missing only where a step has no number at all.
    steps = info["steps"] if is_complete else rows
    total = f"{steps:,}" if is_complete else f"{steps:,} of {info['steps']:,}"
    text = f"recorded {total} step{'s' * (steps != 1)}"
    if not is_complete:
        return f"{text}, layers at {sampled:,}; the record is incomplete,"
    if not sampled and info["layers"]:
        return f"{text} (--layer matches none of the layers)"
    if info["every"] is None and sampled < steps:
        text += f" (layers at {sampled:,} of them; --every N changes that)"
    return text


def run_info(script: str, arguments: list[str], options: WatchOptions) -> RunInfo:
    """Return what is known of a run when it begins; torch must have been imported."""
    is_launched = launch_in(os.environ) is not None
    rank = int(os.environ["RANK"]) if is_launched else 0
    size = int(os.environ["WORLD_SIZE"]) if is_launched else 1
    return {
        "schema": 1,
        "status": "running",
        "script": script,
        "arguments": arguments,
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "seconds": 0.0,
        "steps": 0,
        "exit_status": None,
        "every": options.every,
        "layers": list(as_texts(options.layers or ())),
        "loss": "",
        "rank": rank,
        "world_size": size,
        "versions": {"hookscope": __version__, "torch": str(sys.modules["torch"].__version__)},
        "models": [],
        "optimizers": [],
        "unwatched": [],
        "incomplete": "",
    }
