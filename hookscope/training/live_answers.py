"""Answers what other processes ask about the next step of the training in this process.

Nothing waits for them: the socket is looked at between two steps, for about a microsecond. A fault
here, or the end of the asking process, does not reach the training.
"""

from __future__ import annotations

import os
import pickle
import shutil
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hookscope.errors import FAILED, HookscopeError, RequestError, cause
from hookscope.files.shell_words import join_words
from hookscope.files.signal_safety import uninterrupted
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
from hookscope.version import __version__

if TYPE_CHECKING:
    from hookscope.stores.runs.run_writer import RunWriter
    from hookscope.training.followed_models import FollowedModels

_LARGEST = 1 << 20  # bytes of a request
# A program may have set that a closed connection ends it, as for a pipe into ``head``.
_NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)


class LiveAnswers:
    """The socket of a training, and the request that is being answered."""

    subject = "training"  # what is asked

    def __init__(
        self, folder: Path, listener: socket.socket, program: str, arguments: Sequence[str]
    ) -> None:
        self.folder = folder.resolve()
        self._program = program
        self._arguments = arguments
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
            listener = listen(writer.folder)
        except OSError:  # the file system has none
            return None
        return cls(writer.folder, listener, writer.info["script"], writer.info["arguments"])

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
                (self.folder / SOCKET).unlink()
            remove_stale_answers(self.folder)

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
                    f"The {self.subject} runs with hookscope {__version__}, and the command with"
                    " another version.",
                    "Use the same version for both.",
                )
            followed = self._follow(request)
        except Exception as error:
            self._reply(self._refusal(step, error))
        else:
            self._request, self._followed, self._step = request, followed, step

    def _follow(self, request: LiveRequest) -> FollowedModels:
        from hookscope.training.followed_models import FollowedModels

        followed = FollowedModels(request.options, request.layers, Interventions())
        followed.called.on_end = lambda: self._on_call_end(followed)
        followed.start()
        return followed

    def _on_call_end(self, followed: FollowedModels) -> None:
        """A call of a model has ended; a step goes on."""

    def _end_step(self) -> None:
        """Write what was found in the step that has ended, and say so."""
        request = self._request
        assert request is not None
        try:
            followed = self._leave_models()
            assert followed is not None
            self._check(followed)
            self._write(followed, request)
            answer = LiveAnswer(self._step, tuple(followed.unmet()))
        except Exception as error:
            answer = self._refusal(self._step, error)
        self._reply(answer)

    def _check(self, followed: FollowedModels) -> None:
        """Raise RequestError if what was asked for did not come."""
        if not followed.called.models:
            raise RequestError(
                f"The training called no model at step {self._step}.", "Ask once more."
            )
        if unmatched := followed.unmatched():
            listed = join_words(["hookscope", "show", str(self.folder), "--live"])
            raise RequestError(" ".join(unmatched), f"To list the layers: {listed}")

    def _origin(self) -> dict[str, Any]:
        """What the metadata of a capture say of the process and the step."""
        return {"run": {"folder": str(self.folder), "step": self._step}}

    def _write(self, followed: FollowedModels, request: LiveRequest) -> None:
        import torch

        from hookscope.hooks.capture import Capture

        result = followed.result(self._program, request.options.mode, self._arguments)
        path = request.answer_in(self.folder)
        if isinstance(result, Capture):
            result.metadata |= self._origin()
            accelerator = torch.accelerator.current_accelerator()
            for device in {tensor.device for tensor in result.values()}:
                if accelerator is not None and device.type == accelerator.type:
                    # Other threads may have copied on streams of their own.
                    torch.accelerator.synchronize(device)
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
                shutil.rmtree(self._request.answer_in(self.folder).parent, ignore_errors=True)
        self._hang_up()

    def _hang_up(self) -> None:
        client, self._client = self._client, None
        self._request, self._received = None, b""
        if client is not None:
            client.close()

    def _refusal(self, step: int, error: Exception) -> LiveAnswer:
        if isinstance(error, HookscopeError):
            return LiveAnswer(step, fault=LiveFault(error.message, error.hint, error.exit_code))
        message = f"The {self.subject} could not answer: {cause(error)}."
        return LiveAnswer(step, fault=LiveFault(message, "It goes on.", FAILED))
