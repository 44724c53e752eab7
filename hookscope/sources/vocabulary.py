"""The tokens of a language model: the text of a token, and the tokens of a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hookscope.errors import InputError

_UNKNOWN_BYTE = "\ufffd"  # a token of a few bytes that are not a character


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a model."""

    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]
    name: Callable[[int], str]
    size: int
    special: frozenset[int] = frozenset()
    padding: int | None = None
    unknown: int | None = None

    def text(self, token: int) -> str:
        """Return the text of a token as it stands within a text, with its leading space.

        An id that is not in the vocabulary gives ``<id>``: the embeddings of many models have more
        rows than the vocabulary. A part of a character gives the name of the token.
        """
        if not 0 <= token < self.size:
            return f"<{token}>"
        if token in self.special:
            return self.name(token)
        # Some tokenizers leave out the space before the first word, but not before a later one.
        before = self.decode([token])
        both = self.decode([token, token])
        text = both[len(before) :] if both.startswith(before) else before
        return self.name(token) if _UNKNOWN_BYTE in text or not text else text

    def texts(self, tokens: Sequence[int]) -> tuple[str, ...]:
        """Return the text of each token."""
        known = {token: self.text(token) for token in set(tokens)}
        return tuple(known[token] for token in tokens)

    def token(self, text: str) -> int:
        """Return the id of a text that is a single token."""
        ids = self.encode(text)
        if self.unknown in ids and text != self.name(ids[0]):
            raise InputError(f"{text!r} is not in the vocabulary.", "Give the id of a token.")
        if len(ids) == 1:
            return ids[0]
        if not ids:
            raise InputError(f"{text!r} has no tokens.", "Give a word.")
        parts = " + ".join(repr(self.text(token)) for token in ids)
        spaced = f" {text}"
        alone = not text.startswith(" ") and len(self.encode(spaced)) == 1
        hint = "Give one of them, or its number."
        if alone:
            hint = f"{spaced!r}, with a space in front, is one token."
        raise InputError(f"{text!r} is {len(ids)} tokens: {parts}.", hint)
