"""A program whose models are listed or recorded, from its first import of torch to its end."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hookscope.errors import HookscopeError
from hookscope.files import strict_json
from hookscope.files.output_path import MARK
from hookscope.files.shell_words import join_words
from hookscope.files.words import plural
from hookscope.specs.intervention_spec import Interventions
from hookscope.specs.program_options import ProgramOptions
from hookscope.training.run_session import ProgramSession
from hookscope.training.script_messages import say
from hookscope.training.script_runner import Program
from hookscope.version import __version__

if TYPE_CHECKING:
    from hookscope.hooks.capture import Capture
    from hookscope.results.result import Result
    from hookscope.training.followed_models import FollowedModels


class ModelSession(ProgramSession):
    """A program whose models are looked into."""

    def __init__(
        self,
        options: ProgramOptions,
        interventions: Interventions,
        layers: Sequence[str],
        output: str | os.PathLike[str] | None,
        program: Program,
        *,
        quiet: bool = False,
    ) -> None:
        super().__init__(program, quiet=quiet)
        self._options = options
        self._interventions = interventions
        self._layers = layers
        self._output = output
        self._followed: FollowedModels | None = None

    @property
    def _file(self) -> str | os.PathLike[str] | None:
        """The file to write; None if the result is printed."""
        recording = f"{self.program.title}.run.safetensors" if self._options.capture else None
        return self._output or recording

    def check_output(self) -> None:
        """Raise RequestError if the file of the result cannot be written."""
        if (file := self._file) is not None:
            self._options.check_output(file)

    def start(self) -> None:
        """Follow the calls of all models from now on."""
        from hookscope.training.followed_models import FollowedModels

        try:
            followed = FollowedModels(self._options, self._layers, self._interventions)
        except HookscopeError as error:  # a hook that cannot be loaded
            say(f"{error.message} {error.hint}".strip())
            raise SystemExit(error.exit_code) from None
        followed.start()
        self._followed = followed

    def finish(self) -> None:
        """Show what was found, or write the file."""
        from hookscope.hooks.capture import Capture

        if self._followed is None:
            return
        self._followed.end()
        result = self._followed.result(self.program.name, arguments=self.program.args)
        if isinstance(result, Capture):
            self._save(result)
        else:
            self._show(result)
        for sentence in () if self.quiet else self._followed.sentences():
            say(sentence)

    def _save(self, capture: Capture) -> None:
        path = Path(self.started_in, self._file or "")
        capture.save(path)
        if not self.quiet:
            shown = str(self.shown(path))
            count = plural(len(capture), "tensor")
            say(f"recorded {count} in {shown}. Next: {join_words(['hookscope', 'show', shown])}")

    def _show(self, result: Result) -> None:
        """Write the document of a result, or print it on standard error."""
        from hookscope.views.display import document, text
        from hookscope.views.text.text_table import TextOptions

        if self._output is not None:
            # At the top of the file, it would import random before the program starts.
            from hookscope.files.atomic_files import write_text

            path = Path(self.started_in, self._output)
            write_text(path, strict_json.dumps({MARK: __version__, **document(result)}))
        elif not self.quiet and sys.stderr is not None:
            is_terminal = sys.stderr.isatty()
            width = shutil.get_terminal_size().columns if is_terminal else None
            lines = text(result, TextOptions(width=width))
            sys.stderr.write("".join(f"{line.plain}\n" for line in lines))
            sys.stderr.flush()
