"""The names of what a model predicts, and the class or token that a user names as a target."""

from __future__ import annotations

from hookscope.errors import RequestError
from hookscope.execution.language_output import is_over_vocabulary
from hookscope.execution.prepare import Prepared
from hookscope.execution.target import find_class
from hookscope.results.lens import Token

_ARGMAX = "argmax"


class OutputNames:
    """The names of what a model predicts: tokens of its vocabulary, or its classes."""

    def __init__(self, prepared: Prepared, count: int) -> None:
        loaded = prepared.loaded
        self._classes = loaded.categories if len(loaded.categories) == count else ()
        recipe = loaded.own_text
        is_text = not self._classes and is_over_vocabulary(prepared, count)
        self._vocabulary = recipe.vocabulary if recipe and is_text else None
        self._count = count
        self._known: dict[int, Token] = {}

    def __getitem__(self, index: int) -> Token:
        token = self._known.get(index)
        if token is None:
            text = str(index)
            if self._classes:
                text = self._classes[index]
            elif self._vocabulary is not None:
                text = self._vocabulary.text(index)
            token = self._known[index] = Token(index, text)
        return token

    def target(self, target: str | int) -> int | None:
        """Return the id of a target; None for ``argmax``."""
        if target == _ARGMAX:
            return None
        text = str(target)
        if text.isdecimal():
            if int(text) >= self._count:
                raise RequestError(
                    f"The target {text} is out of range: the model has {self._count} tokens.",
                    f"Give an id from 0 to {self._count - 1}.",
                )
            return int(text)
        if self._classes:
            return find_class(text, self._classes)
        if self._vocabulary is None:
            raise RequestError(
                f"The model has no tokenizer, so {text!r} has no id.", "Give the id of the token."
            )
        return self._vocabulary.token(text)
