"""Answers one request in a process that hookscope did not start, from a thread of its own.

The thread waits for the request, for the end of the calls that are asked about, and for the asking
process to end. Then nothing of hookscope is left but the modules that were imported.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookscope.errors import RequestError, StoreError
from hookscope.files.shell_words import join_words
from hookscope.files.words import plural
from hookscope.specs.program_options import CAPTURE
from hookscope.stores.runs.live_socket import LiveRequest, listen, remove_stale_answers
from hookscope.training.live_answers import LiveAnswers
from hookscope.training.script_messages import kept_messages

if TYPE_CHECKING:
    from hookscope.training.followed_models import FollowedModels

_PAUSE = 0.02  # seconds between two looks at the socket
_ASKING = _READING = 60  # seconds that the asking process has for its request and for the answer
_following = threading.Lock()  # functions that two would replace could not be restored


def serve(folder: str, wait: int) -> None:
    """Listen in a folder, answer one request, and remove the folder.

    Args:
        folder: a folder that only this user can open.
        wait: seconds for which calls are followed.
    """
    program, *arguments = sys.argv or ["python"]
    answers = AttachedAnswers(Path(folder), listen(Path(folder)), program, arguments, wait)
    try:
        answers.serve()
    finally:
        answers.close()
    shutil.rmtree(folder, ignore_errors=True)


class AttachedAnswers(LiveAnswers):
    """The socket of a process, and the one request that is answered."""

    subject = "process"

    def __init__(
        self,
        folder: Path,
        listener: socket.socket,
        program: str,
        arguments: Sequence[str],
        wait: int,
    ) -> None:
        super().__init__(folder, listener, program, arguments)
        self._wait = wait
        self._ending = threading.Lock()
        self._has_all = threading.Event()
        self._messages: list[str] = []

    def serve(self) -> None:
        """Wait for the request, and answer it."""
        until = time.monotonic() + _ASKING
        while self._client is None or not self._has_received():
            if time.monotonic() > until:
                return
            time.sleep(_PAUSE)
            if self._client is None:
                self._accept()
        with kept_messages() as self._messages:
            self._begin_step(0)
            until = time.monotonic() + self._wait
            while self._followed is not None:
                if self._has_all.wait(_PAUSE) or time.monotonic() > until:
                    self._end_step()
                elif self._has_hung_up():
                    self._leave_models()

    def _follow(self, request: LiveRequest) -> FollowedModels:
        if "torch" not in sys.modules:
            raise RequestError(
                "The process has not imported torch.", "Ask a process that calls models."
            )
        if not _following.acquire(blocking=False):
            raise RequestError("Another command asks the process now.", "Ask once more.")
        try:
            return super()._follow(request)
        except BaseException:
            _following.release()
            raise

    def _leave_models(self) -> FollowedModels | None:
        followed = super()._leave_models()
        if followed is not None:
            _following.release()
        return followed

    def _on_call_end(self, followed: FollowedModels) -> None:
        """Remove the hooks once all is recorded. The thread of the program calls it."""
        if os.getpid() != self._process:  # a fork, which nobody asks
            followed.end()
            return
        with self._ending:
            if followed.has_all and not self._has_all.is_set():
                followed.end()
                self._has_all.set()

    def _check(self, followed: FollowedModels) -> None:
        models, time_given = followed.called.models, plural(self._wait, "second")
        longer = f"Wait longer with --wait {10 * self._wait}"
        if self._messages:
            raise StoreError(
                f"The process could not be followed: {' '.join(self._messages)}",
                "It goes on. Start the program with 'hookscope run' instead.",
            )
        if not models:
            raise RequestError(f"The process called no model within {time_given}.", f"{longer}.")
        for model in models:
            if not model.described.device:  # its first call has not ended
                model.describe()
        command = ["hookscope", "attach", str(self._process), "--layer", "*", "--no-output"]
        if unmatched := followed.unmatched():
            raise RequestError(
                " ".join(unmatched), f"{longer}, or list the layers: {join_words(command)}"
            )
        if self._asks_for_layers and not self._has_all.is_set():
            raise RequestError(f"No call of a model ended within {time_given}.", f"{longer}.")

    def _origin(self) -> dict[str, Any]:
        return {"process": self._process}

    @property
    def _asks_for_layers(self) -> bool:
        return self._request is not None and self._request.options.mode == CAPTURE

    def _has_hung_up(self) -> bool:
        """Whether the asking process has ended, which has no more to send in any case."""
        assert self._client is not None
        ends = select.poll()
        ends.register(self._client, 0)
        return bool(ends.poll(0))

    def _hang_up(self) -> None:
        """Let the asking process read the answer before the folder is removed."""
        answer = None if self._request is None else self._request.answer_in(self.folder)
        super()._hang_up()
        until = time.monotonic() + _READING
        while answer is not None and answer.parent.exists() and time.monotonic() < until:
            remove_stale_answers(self.folder)
            time.sleep(_PAUSE)
