"""Answers what other processes ask about the next step of the program in this process.

Nothing waits for them: the socket is looked at between two steps, for about a microsecond. A fault
here, or the end of the asking process, does not reach the program.
"""

from __future__ import annotations

import os
import pickle
import select
import shutil
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from torch import nn

from hookscope.errors import FAILED, HookscopeError, RequestError, cause
from hookscope.files.shell_words import join_words
from hookscope.files.signal_safety import uninterrupted
from hookscope.hooks.process_hooks import Undo, around_outer_calls
from hookscope.specs.intervention_spec import Interventions
from hookscope.specs.program_options import CallChoice
from hookscope.specs.tensor_key import GRADIENT_KINDS
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
from hookscope.tensors.torch_internals import DisableTorchFunction
from hookscope.training.script_messages import reported

if TYPE_CHECKING:
    from hookscope.stores.runs.run_writer import RunWriter
    from hookscope.training.followed_models import FollowedModels

_LARGEST = 1 << 20  # bytes of a request
_MOST = 16  # processes that ask at the same time; others wait until they can connect
PATIENCE = 10.0  # seconds in which a process must have sent its request
# A program may have set that a closed connection ends it, as for a pipe into ``head``.
_NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)


class Client:
    """A process that asks, and what it has sent."""

    def __init__(self, connection: socket.socket, patience: float) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.message = b""
        self._until = time.monotonic() + patience

    def has_sent_all(self) -> bool:
        """Whether the whole request has arrived; it ends with the stream.

        Raises:
            OSError: the process has ended, sent too much, or takes too long.
        """
        try:
            while part := self.connection.recv(1 << 16):
                self.message += part
                if len(self.message) > _LARGEST:
                    raise ConnectionAbortedError
        except BlockingIOError:
            if time.monotonic() >= self._until:
                raise TimeoutError from None
            return False
        return True

    @property
    def has_hung_up(self) -> bool:
        """Whether the process has ended, which has no more to send in any case."""
        ends = select.poll()
        ends.register(self.connection, 0)
        return bool(ends.poll(0))


class LiveAnswers:
    """The socket of a program, and the request that is being answered.

    A step of a training is one of its optimizers. A program that does not train, or not yet, has a
    step with each call of a model.
    """

    def __init__(
        self,
        folder: Path,
        listener: socket.socket,
        program: str,
        arguments: Sequence[str],
        patience: float = PATIENCE,
    ) -> None:
        self.folder = folder.resolve()
        self._program = program
        self._arguments = arguments
        self._process = os.getpid()
        self._listener = listener
        self._patience = patience
        self._clients: list[Client] = []  # whose requests are not answered so far
        self._client: Client | None = None  # whose request is
        self._request: LiveRequest | None = None
        self._followed: FollowedModels | None = None
        self._step = 0
        self._trains = False
        self._calls = _OuterCalls(self._after_call)
        self._ignore_calls: Undo = lambda: None
        self._looking = threading.RLock()  # a program may call its models on several threads

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

    def watch_calls(self) -> None:
        """Look after each call of a model, until the program trains."""
        self._ignore_calls = around_outer_calls(self._calls)

    @uninterrupted
    def train(self) -> None:
        """Steps are those of the training from now on, also for a request that is answered now."""
        with self._looking:
            if self._trains:
                return
            self._trains = True
            was_asked = self._leave_models() is not None
            self._ignore_calls()
            if was_asked and self._client is not None:
                self._begin_step(0, self._client.message)

    @uninterrupted
    def between_steps(self, step: int) -> None:
        """Answer the request that was about the step before, or take the next one."""
        if self._followed is not None:
            self._end_step()
        self._take_request(step)

    def _after_call(self) -> None:
        """Look after a call of a model by the program, which does not train."""
        if self._client is None and not self._trains:
            self._accept()
            if self._clients:
                self._take_request_of_call()

    @uninterrupted
    def _take_request_of_call(self) -> None:
        if self._looking.acquire(blocking=False):  # else another thread looks
            try:
                if self._client is None and not self._trains:
                    self._take_request(self._calls.count)
            finally:
                self._looking.release()

    @uninterrupted
    def _after_followed_call(self, followed: FollowedModels) -> None:
        """Answer, unless the step goes on: a training, or what was asked for comes later."""
        with self._looking, DisableTorchFunction():
            if self._trains or followed is not self._followed or os.getpid() != self._process:
                return
            assert self._client is not None
            if self._client.has_hung_up:
                self._leave_models()
                self._hang_up()
            elif followed.has_all or not followed.may_match(self._calls.known.values()):
                self._end_step()

    def close(self) -> None:
        """Listen no more; who waits for an answer is told by the end of the connection."""
        with suppress(Exception):
            self._leave_models()
        self._ignore_calls()
        self._hang_up()
        for client in self._clients:
            client.connection.close()
        self._clients.clear()
        self._listener.close()
        if os.getpid() == self._process:  # not in a fork of the program
            with suppress(OSError):
                (self.folder / SOCKET).unlink()
            remove_stale_answers(self.folder)

    def _take_request(self, step: int) -> None:
        """Begin with the first request that has arrived; the others stay."""
        self._accept()
        for client in list(self._clients):
            try:
                has_sent_all = client.has_sent_all()
            except OSError:
                self._clients.remove(client)
                client.connection.close()
                continue
            if has_sent_all and self._client is None:
                self._clients.remove(client)
                self._client = client
        if self._client is not None:
            self._begin_step(step, self._client.message)

    def _accept(self) -> None:
        while len(self._clients) < _MOST:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # nobody asks
                return
            if is_of_this_user(connection):
                self._clients.append(Client(connection, self._patience))
            else:
                connection.close()

    def _begin_step(self, step: int, message: bytes) -> None:
        """Follow the models in the step that begins."""
        try:
            request = LiveRequest.read(message)
            followed = self._follow(request)
        except Exception as error:
            self._reply(self._refusal(step, error))
        else:
            self._request, self._followed, self._step = request, followed, step

    def _follow(self, request: LiveRequest) -> FollowedModels:
        from hookscope.training.followed_models import FollowedModels

        if not self._trains and request.options.kinds & {*GRADIENT_KINDS.values()}:
            raise RequestError(
                "The program has made no optimizer and run no backward pass so far, so its models"
                " have no gradients.",
                "Ask once more when it trains.",
            )
        options = request.options
        if not self._trains:  # a model may be called often before another one that is asked for
            options = replace(options, calls=CallChoice(((1, 1),)))
        followed = FollowedModels(options, request.layers, Interventions())
        followed.called.on_end = lambda: self._after_followed_call(followed)
        followed.start()
        return followed

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
                f"The program called no model at step {self._step}.", "Ask once more."
            )
        if unmatched := followed.unmatched():
            listed = join_words(["hookscope", "show", str(self.folder), "--live"])
            raise RequestError(" ".join(unmatched), f"To list the layers: {listed}")

    def _write(self, followed: FollowedModels, request: LiveRequest) -> None:
        import torch

        from hookscope.hooks.capture import Capture

        result = followed.result(self._program, request.options.mode, self._arguments)
        path = request.answer_in(self.folder)
        if isinstance(result, Capture):
            result.metadata |= {"run": {"folder": str(self.folder), "step": self._step}}
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
            self._client.connection.sendall(answer.to_bytes(), _NO_SIGNAL)
        except OSError:
            if self._request is not None:
                shutil.rmtree(self._request.answer_in(self.folder).parent, ignore_errors=True)
        self._hang_up()

    def _hang_up(self) -> None:
        client, self._client = self._client, None
        self._request = None
        if client is not None:
            client.connection.close()

    def _refusal(self, step: int, error: Exception) -> LiveAnswer:
        if isinstance(error, HookscopeError):
            return LiveAnswer(step, fault=LiveFault(error.message, error.hint, error.exit_code))
        message = f"The program could not answer: {cause(error)}."
        return LiveAnswer(step, fault=LiveFault(message, "It goes on.", FAILED))


class _OuterCalls:
    """The calls of models by a program, which an observer counts."""

    def __init__(self, after_call: Callable[[], None]) -> None:
        self.count = 0
        self.known: WeakValueDictionary[int, nn.Module] = WeakValueDictionary()  # by their ids
        self._after_call = after_call

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note which module is called."""
        if id(module) not in self.known:
            self.known[id(module)] = module

    def end(self, call: None, output: Any) -> None:
        """Act after the call."""
        self.count += 1
        with reported("no question about the program is answered"):
            self._after_call()

    def fail(self, call: None, error: BaseException) -> None:
        """Act after a call that has raised an exception."""
        self.end(call, None)
