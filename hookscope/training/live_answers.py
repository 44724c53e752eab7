"""Answers what other processes ask about the next step of the training in this process.

Nothing waits for them: the socket is looked at between two steps, for about a microsecond. A fault
here, or the end of the asking process, does not reach the training.
"""

from __future__ import annotations

import os
import pickle
import shutil
import socket
import struct
import sys
from contextlib import suppress
from multiprocessing.connection import Connection

from hookscope.errors import HookscopeError, cause
from hookscope.files.shell_words import join_words
from hookscope.files.signal_safety import uninterrupted
from hookscope.hooks.capture import Capture
from hookscope.specs.intervention_spec import Interventions
from hookscope.stores.runs.live_socket import (
    SCRATCH,
    SOCKET,
    LiveAnswer,
    LiveRequest,
    can_listen,
    listen,
)
from hookscope.stores.runs.run_writer import RunWriter
from hookscope.training.followed_models import FollowedModels
from hookscope.version import __version__


class LiveAnswers:
    """The socket of a training, and the request that is being answered."""

    def __init__(self, writer: RunWriter, listener: socket.socket) -> None:
        self._writer = writer
        self._folder = writer.folder.resolve()
        self._process = os.getpid()
        self._listener = listener
        self._connection: Connection | None = None
        self._request: LiveRequest | None = None
        self._followed: FollowedModels | None = None
        self._step = 0

    @classmethod
    def of(cls, writer: RunWriter) -> LiveAnswers | None:
        """Listen in the folder of a run; None where there are no sockets."""
        if not can_listen():
            return None
        try:
            return cls(writer, listen(writer.folder))
        except OSError:  # the file system has none
            return None

    @uninterrupted
    def between_steps(self, step: int) -> None:
        """Answer the request that was about the step before, or take the next one."""
        if self._followed is not None:
            self._end_step()
        elif self._connection is None:
            self._accept()
        if self._connection is not None:
            self._begin_step(step)

    def close(self) -> None:
        """Listen no more; who waits for an answer is told by the end of the connection."""
        self._leave_models()
        self._hang_up()
        self._listener.close()
        if os.getpid() == self._process:  # not in a fork of the training
            with suppress(OSError):
                (self._folder / SOCKET).unlink()
            for left in self._folder.glob(f"{SCRATCH}*"):
                shutil.rmtree(left, ignore_errors=True)

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:  # nobody asks
            return
        if _is_of_this_user(client):
            self._connection = Connection(client.detach())
        else:
            client.close()

    def _begin_step(self, step: int) -> None:
        """Follow the models in the step that begins, if the request has arrived."""
        assert self._connection is not None
        try:
            if not self._connection.poll():
                return
            request = self._connection.recv()
            if request.version != __version__:
                ours = f"The training runs with hookscope {__version__}, and this is"
                raise _Refused(f"{ours} {request.version}.", "Use the same version for both.")
            followed = FollowedModels(request.options, request.layers, Interventions())
            followed.start()
        except (EOFError, OSError):  # the asking process has ended
            self._hang_up()
        except Exception as error:
            self._reply(_refusal(step, error))
        else:
            self._request, self._followed, self._step = request, followed, step

    def _end_step(self) -> None:
        """Write what was found in the step that has ended, and say so."""
        followed, request = self._leave_models(), self._request
        assert followed is not None
        assert request is not None
        try:
            unmet = tuple(followed.unmet())
            if followed.called.models and not followed.unmatched():
                self._write(followed, request)
                answer = LiveAnswer(self._step, unmet)
            else:
                sentence = f"Nothing was recorded at step {self._step}: {' '.join(unmet)}"
                listed = join_words(["hookscope", "show", str(self._folder), "--live"])
                answer = LiveAnswer(self._step, fault=(sentence, f"To list its layers: {listed}"))
        except Exception as error:
            answer = _refusal(self._step, error)
        self._reply(answer)

    def _write(self, followed: FollowedModels, request: LiveRequest) -> None:
        info = self._writer.info
        result = followed.result(info["script"], request.options.mode, info["arguments"])
        path = request.answer_in(self._folder)
        if isinstance(result, Capture):
            result.metadata["run"] = {"folder": str(self._folder), "step": self._step}
            result.save(path)
        else:
            path.write_bytes(pickle.dumps(result))

    def _leave_models(self) -> FollowedModels | None:
        followed, self._followed = self._followed, None
        if followed is not None:
            followed.end()
        return followed

    def _reply(self, answer: LiveAnswer) -> None:
        """Send an answer; the asking process may have ended, or may not read."""
        assert self._connection is not None
        try:
            os.set_blocking(self._connection.fileno(), False)
            self._connection.send(answer)
        except OSError:
            if self._request is not None:
                shutil.rmtree(self._request.answer_in(self._folder).parent, ignore_errors=True)
        self._hang_up()

    def _hang_up(self) -> None:
        connection, self._connection, self._request = self._connection, None, None
        if connection is not None:
            with suppress(OSError):
                connection.close()


class _Refused(HookscopeError):
    """The request cannot be answered."""


def _refusal(step: int, error: Exception) -> LiveAnswer:
    if isinstance(error, HookscopeError):
        return LiveAnswer(step, fault=(error.message, error.hint))
    return LiveAnswer(step, fault=(f"The training could not answer: {cause(error)}.", ""))


def _is_of_this_user(client: socket.socket) -> bool:
    """Whether the other end is a process of this user; elsewhere than on Linux its mode says so."""
    if sys.platform != "linux":
        return True
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return bool(user == os.getuid())
