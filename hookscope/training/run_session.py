"""One run of a program that is watched, from its first import of torch to its end. Torch-free."""

from __future__ import annotations

import atexit
import datetime
import importlib
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hookscope.errors import RequestError
from hookscope.files.shell_words import join_words
from hookscope.files.suggestions import did_you_mean
from hookscope.results.failure import kind_of_failure
from hookscope.specs.intervention_spec import Interventions
from hookscope.specs.patterns import as_texts
from hookscope.specs.program_options import ProgramOptions
from hookscope.specs.watch_options import WatchOptions
from hookscope.stores.runs.run_folder import check_run_folder, create_run_folder, launch_in
from hookscope.stores.runs.series import LAYERS, STEPS
from hookscope.training.script_messages import reported, say
from hookscope.training.script_runner import Program, has_safe_path, path_importer
from hookscope.version import __version__

if TYPE_CHECKING:
    from hookscope.stores.runs.run_info import RunInfo, Status
    from hookscope.stores.runs.run_writer import RunWriter
    from hookscope.training.followed_models import FollowedModels
    from hookscope.training.last_passes import BackwardPass
    from hookscope.training.run_recorder import LiveRows
    from hookscope.training.watcher import Watcher


NO_STEP = "The script called neither backward() nor an optimizer's step() in this process."


def check_program(program: Program) -> None:
    """Raise RequestError if there is no such program; no package is imported to find out."""
    if program.is_module:
        _check_module(program.name)
    elif not program.is_file and (importer := path_importer(program.name)) is not None:
        if importer.find_spec("__main__") is None:
            kind = "folder" if os.path.isdir(program.name) else "archive"
            raise RequestError(
                f"The {kind} {program.name} has no __main__.py, so there is nothing to run.",
                "Name a script in it, or a package with -m.",
            )
    elif not program.is_stdin:
        _check_file(program.name)


def _check_file(name: str) -> None:
    folder = os.path.dirname(name)
    if not os.path.exists(name):
        try:
            beside = sorted(os.listdir(folder or os.curdir))
        except OSError:
            raise RequestError(
                f"There is no script {name}: the folder {folder} cannot be read.",
                f"The working folder is {os.getcwd()}.",
            ) from None
        scripts = [entry for entry in beside if entry.endswith((".py", ".pyz"))]
        near = did_you_mean(os.path.basename(name), scripts)
        if re.fullmatch(r"python[\d.]*", name):
            hint = "Begin with the script, without python: hookscope run SCRIPT."
            raise RequestError(f"There is no script {name}.", hint)
        is_module = not folder and _find(name.partition(".")[0]) is not None
        hint = f"For the module {name} write: hookscope run -m {name}" * is_module
        raise RequestError(
            f"There is no script {name}.",
            near or hint or f"The working folder is {os.getcwd()}.",
        )
    try:
        if os.path.isfile(name):  # to open a pipe and close it would end the one who writes to it
            with open(name, "rb"):
                pass
    except OSError as error:
        raise RequestError(
            f"The script {name} cannot be read: {error.strerror}.",
            "Check its permissions.",
        ) from error


def _check_module(name: str) -> None:
    top = name.partition(".")[0]
    if name.endswith(".py") and os.path.exists(name):
        raise RequestError(f"{name} is a file, and -m takes the name of a module.", "Leave out -m.")
    if not all(part.isidentifier() for part in name.split(".")):
        raise RequestError(
            f"{name!r} is not the name of a module.",
            "Write a dotted name after -m, such as mypackage.train.",
        )
    if _find(top) is None:
        entries = [] if has_safe_path() else sorted(os.listdir())
        near = did_you_mean(top, [os.path.splitext(entry)[0] for entry in entries])
        raise RequestError(
            f"There is no module {top}.",
            near or "It must be installed, or be in the working folder or in PYTHONPATH.",
        )


def _find(top: str) -> ModuleSpec | None:
    """Find a module as the program would, with the working folder in front of ``sys.path``."""
    if not has_safe_path() and (importer := path_importer(os.getcwd())) is not None:
        spec: ModuleSpec | None = importer.find_spec(top)
        if spec is not None:
            return spec
    return _first_spec(sys.meta_path, top)


def _first_spec(
    finders: Iterable[Any],
    name: str,
    path: Sequence[str] | None = None,
    target: ModuleType | None = None,
) -> ModuleSpec | None:
    """Ask the finders in turn, as the import system does."""
    specs = (finder.find_spec(name, path, target) for finder in finders)
    return next((spec for spec in specs if spec is not None), None)


def call_after_import(module_name: str, function: Callable[[], object]) -> None:
    """Call ``function`` once, when ``module_name`` has been imported, or now if it has been.

    It is called in the thread that imports it, before its ``import`` statement ends, and not in a
    process forked before. Its exceptions are reported on standard error and go no further.
    """
    if module_name in sys.modules:
        # Another thread may be amid the import; this waits for its end.
        importlib.import_module(module_name)
        _call(module_name, function)
        return
    finder = _Finder(module_name, function)
    sys.meta_path.insert(0, finder)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=finder.withdraw)


def _call(module_name: str, function: Callable[[], object]) -> None:
    with reported(f"nothing is watched after the import of {module_name}"):
        function()


class _Finder:
    """A meta path finder for one module, which it lets the others find."""

    # The loader that they find stays in the module's spec. Only its method ``exec_module`` is
    # replaced, in the instance and until the module has been executed.

    def __init__(self, module_name: str, function: Callable[[], object]) -> None:
        self._name = module_name
        self._function = function
        self._searching = threading.local()
        self._lock = threading.Lock()
        self._done = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the finders behind this one return, with its loader watched."""
        if name != self._name or self._done or getattr(self._searching, "now", False):
            return None
        finders = list(sys.meta_path)
        behind = finders[finders.index(self) + 1 :] if self in finders else finders
        self._searching.now = True
        try:
            spec = _first_spec(behind, name, path, target)
        finally:
            self._searching.now = False
        if spec is not None and spec.loader is not None:
            with reported(f"the import of {name} cannot be watched"):
                self._watch(spec.loader)
        return spec

    def withdraw(self) -> None:
        """Call nothing from now on, and find nothing."""
        self._done = True
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def _watch(self, loader: Any) -> None:
        if isinstance(loader, type):
            raise TypeError(f"{loader.__name__} loads all modules of its kind")
        # Another finder of ours may have replaced it, or this one, if it was asked twice.
        before = vars(loader).get("exec_module")
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            if module.__name__ != self._name:  # one loader may serve a whole archive
                execute(module)
                return
            if before is None:
                del loader.exec_module
            else:
                loader.exec_module = before
            execute(module)
            self._fire()

        loader.exec_module = exec_module

    def _fire(self) -> None:
        with self._lock:
            if self._done:
                return
            self.withdraw()
        _call(self._name, self._function)


class ProgramSession:
    """A program that runs in this process, and what is done with it from its import of torch on."""

    def __init__(self, program: Program, *, quiet: bool = False) -> None:
        self.program = Program(program.name, program.args, program.is_module, self._on_end)
        self.quiet = quiet
        self.started_in = os.getcwd()  # the script may change it
        self.status: Status = "finished"
        self.exit_status: int | None = 0
        self._process = os.getpid()
        self._is_interrupted = False
        self._explanation: list[str] = []  # of the error that ended the program

    def watch_from_import(self) -> None:
        """Begin once the program has imported torch.

        Torch is not imported for it: the program may set variables that torch reads on import.
        """
        call_after_import("torch", self.start)
        atexit.register(self._finish)

    def check_output(self) -> None:
        """Raise RequestError if what the session writes cannot be written."""
        raise NotImplementedError

    def start(self) -> None:
        """Begin; torch has just been imported."""
        raise NotImplementedError

    def finish(self) -> None:
        """Write and say what was found; the program has ended."""
        raise NotImplementedError

    def shown(self, path: Path) -> Path:
        """Return how a path is named: from where the program was started, if it is below."""
        relative = os.path.relpath(path, self.started_in)
        return path if relative.startswith(os.pardir) else Path(relative)

    @property
    def passes(self) -> Sequence[BackwardPass]:
        """The last backward passes, as far as they are watched."""
        return ()

    def _on_end(self, error: BaseException | None) -> None:
        if isinstance(error, SystemExit):
            code = error.code
            self.exit_status = 0 if code is None else code if isinstance(code, int) else 1
            self.status = "failed" if self.exit_status else "finished"
        elif error is not None:
            self.status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            self.exit_status = None if self.status == "interrupted" else 1
            self._is_interrupted = type(error) is KeyboardInterrupt
        if error is not None:
            self._explanation = explanation_of(error, self.passes)

    def _finish(self) -> None:
        if os.getpid() != self._process:  # a copy of this one that the script has forked
            return
        for sentence in self._explanation:
            say(sentence)
        try:
            with reported("the end of the run could not be recorded"):
                if "torch" in sys.modules:
                    self.finish()
                elif not self.quiet:
                    say("the script did not import torch, so nothing was recorded.")
        finally:
            if self._is_interrupted:
                _end_by_interrupt()


def _end_by_interrupt() -> None:
    """Let Python end the process by SIGINT, as it does after a KeyboardInterrupt.

    It forgets the KeyboardInterrupt when a text is executed, as by the import of a dataclass.
    """
    with suppress(KeyboardInterrupt):
        exec("raise KeyboardInterrupt")


def explanation_of(error: BaseException, passes: Sequence[BackwardPass]) -> list[str]:
    """Return sentences about a backward pass that failed; ``passes`` are the last that ran."""
    if not isinstance(error, Exception | SystemExit) or not kind_of_failure(error):
        return []
    with reported("the failed backward pass could not be explained"):
        from hookscope.training.backward_story import explain_program_failure

        try:
            failure = explain_program_failure(error, passes)
        except KeyboardInterrupt:  # the program's own error is what it ends with
            return []
        return [] if failure is None else failure.explanation()
    return []


class RunSession(ProgramSession):
    """A training script that is watched."""

    def __init__(
        self,
        options: WatchOptions,
        interventions: Interventions,
        program: Program,
        *,
        quiet: bool = False,
    ) -> None:
        super().__init__(program, quiet=quiet)
        self._options = options
        self._interventions = interventions
        self._watcher: Watcher | None = None
        self._edited: FollowedModels | None = None

    def check_output(self) -> None:
        """Raise RequestError if the folder of the run is in use or cannot be created."""
        check_run_folder(self._options.output, os.environ)

    def start(self) -> None:
        """Create the folder of the run and begin to watch."""
        from hookscope.stores.runs.run_writer import RunWriter
        from hookscope.training.watcher import Watcher

        folder = create_run_folder(
            self.program.title, self._options.output, os.environ, self.started_in
        )
        info = run_info(self.program.name, list(self.program.args), self._options)
        writer = RunWriter(folder, info, say, self.shown(folder))
        self._watcher = Watcher(self._options, writer, live=self._live_rows())
        self._watcher.install()
        if self._interventions != Interventions():
            from hookscope.training.followed_models import FollowedModels

            self._edited = FollowedModels(
                ProgramOptions(), (), self._interventions, self._watcher.follow_other_hooks
            )
            self._edited.start()

    @property
    def passes(self) -> Sequence[BackwardPass]:
        """The last backward passes."""
        return () if self._watcher is None else list(self._watcher.passes.last)

    def _live_rows(self) -> LiveRows | None:
        if not self._options.live:
            return None
        from hookscope.training.run_recorder import LiveRows
        from hookscope.views.text.live_run import LiveView

        return LiveRows(LiveView(sys.stderr, self.program.title))

    def finish(self) -> None:
        """End the record and say where it is."""
        if self._edited is not None:
            self._edited.end()
        if self._watcher is not None:
            self._watcher.finish(self.status, self.exit_status)
            self._say_where(self._watcher)
        if self._edited is not None and not self.quiet:
            for sentence in self._edited.sentences():
                say(sentence)

    def _say_where(self, watcher: Watcher) -> None:
        """Say where the record is, once for all ranks."""
        writer = watcher.writer
        info = writer.info
        if self.quiet or info["rank"]:
            return
        place = str(writer.place.parent if writer.place.name == "rank0" else writer.place)
        count = recorded_steps(info, writer)
        if writer.rows_of(STEPS):
            lost, verb = "", "report"
            if (step := watcher.recorder.lost) is not None:
                lost, verb = f" The loss is NaN or infinite from step {step:,}.", "check"
            say(f"{count} in {place}.{lost} Next: {join_words(['hookscope', verb, place])}")
        else:
            is_known = info["status"] == "stopped" or info["incomplete"]  # it was said
            say(f"{count} in {place}." + (f" {NO_STEP}" if not is_known else ""))


def recorded_steps(info: RunInfo, writer: RunWriter) -> str:
    """Return how many steps were recorded, as in ``recorded 120 steps (layers at 9 of them)``."""
    rows, sampled = writer.rows_of(STEPS), writer.rows_of(LAYERS)
    is_complete = not info["incomplete"]
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
