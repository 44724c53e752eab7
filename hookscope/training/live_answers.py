"""Answers what other processes ask about the next step of the training in this process.

Nothing waits for them: the socket is looked at between two steps, for about a microsecond. A fault
here, or the end of the asking process, does not reach the training.
"""

from __future__ import annotations

import os
import pickle
import shutil
import socket
from contextlib import suppress

from hookscope.errors import FAILED, HookscopeError, RequestError, cause
from hookscope.files.shell_words import join_words
from hookscope.files.signal_safety import uninterrupted
from hookscope.hooks.capture import Capture
from hookscope.specs.intervention_spec import Interventions
from hookscope.stores.runs.live_socket import (
    SOCKET,
    LiveAnswer,
    LiveFault,
    LiveRequest,
    can_listen,
    is_of_this_user,
    listen,
    remove_stale_answers,
)
from hookscope.stores.runs.run_writer import RunWriter
from hookscope.training.followed_models import FollowedModels
from hookscope.version import __version__

_LARGEST = 1 << 20  # bytes of a request
# A program may have set that a closed connection ends it, as for a pipe into ``head``.
_NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)


class LiveAnswers:
    """The socket of a training, and the request that is being answered."""

    def __init__(self, writer: RunWriter, listener: socket.socket) -> None:
        self._writer = writer
        self._folder = writer.folder.resolve()
        self._process = os.getpid()
        self._listener = listener
        self._client: socket.socket | None = None
        self._received = b""
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
        elif self._client is None:
            self._accept()
        if self._client is not None and self._has_received():
            self._begin_step(step)

    def close(self) -> None:
        """Listen no more; who waits for an answer is told by the end of the connection."""
        with suppress(Exception):
            self._leave_models()
        self._hang_up()
        self._listener.close()
        if os.getpid() == self._process:  # not in a fork of the training
            with suppress(OSError):
                (self._folder / SOCKET).unlink()
            remove_stale_answers(self._folder)

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:  # nobody asks
            return
        client.setblocking(False)
        self._client = client
        if not is_of_this_user(client):
            self._hang_up()

    def _has_received(self) -> bool:
        """Whether the whole request has arrived; it ends with the stream."""
        assert self._client is not None
        try:
            while part := self._client.recv(1 << 16):
                self._received += part
                if len(self._received) > _LARGEST:
                    self._hang_up()
                    return False
        except BlockingIOError:
            return False
        except OSError:
            self._hang_up()
            return False
        return True

    def _begin_step(self, step: int) -> None:
        """Follow the models in the step that begins."""
        try:
            request = pickle.loads(self._received)
            if not isinstance(request, LiveRequest) or request.version != __version__:
                raise RequestError(
                    f"The training runs with hookscope {__version__}, and the command with another"
                    " version.",
                    "Use the same version for both.",
                )
            followed = FollowedModels(request.options, request.layers, Interventions())
            followed.start()
        except Exception as error:
            self._reply(_refusal(step, error))
        else:
            self._request, self._followed, self._step = request, followed, step

    def _end_step(self) -> None:
        """Write what was found in the step that has ended, and say so."""
        request = self._request
        assert request is not None
        try:
            followed = self._leave_models()
            assert followed is not None
            if not followed.called.models:
                raise RequestError(
                    f"The training called no model at step {self._step}.", "Ask once more."
                )
            if unmatched := followed.unmatched():
                listed = join_words(["hookscope", "show", str(self._folder), "--live"])
                raise RequestError(" ".join(unmatched), f"To list the layers: {listed}")
            self._write(followed, request)
            answer = LiveAnswer(self._step, tuple(followed.unmet()))
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
        assert self._client is not None
        try:
            self._client.sendall(pickle.dumps(answer), _NO_SIGNAL)
        except OSError:
            if self._request is not None:
                shutil.rmtree(self._request.answer_in(self._folder).parent, ignore_errors=True)
        self._hang_up()

    def _hang_up(self) -> None:
        client, self._client = self._client, None
        self._request, self._received = None, b""
        if client is not None:
            client.close()


def _refusal(step: int, error: Exception) -> LiveAnswer:
    if isinstance(error, HookscopeError):
        return LiveAnswer(step, fault=LiveFault(error.message, error.hint, error.exit_code))
    message = f"The training could not answer: {cause(error)}."
    return LiveAnswer(step, fault=LiveFault(message, "The training goes on.", FAILED))
