"""Words that a tokenizer does not know: the model gets the same token for all of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

log = logging.getLogger("hookscope")

_MOST = 5  # words that are named; the rows of a data set come one by one


class UnknownWords:
    """Warns of the words in texts that become a tokenizer's token for unknown words, once each."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._named: set[str] = set()

    def warn(self, texts: Sequence[str], encoding: Any) -> None:
        """Name the new unknown words of texts that were encoded."""
        room = _MOST - len(self._named)
        if room == 0:
            return
        new = dict.fromkeys(w for w in self._found(texts, encoding) if w not in self._named)
        words = list(new)[:room]
        self._named.update(words)
        if words:
            log.warning(
                "%s %s not in the vocabulary; the model gets %s instead.%s",
                ", ".join(map(repr, words)),
                "is" if len(words) == 1 else "are",
                self._tokenizer.unk_token,
                " Further words are not named." if len(self._named) == _MOST else "",
            )

    def _found(self, texts: Sequence[str], encoding: Any) -> Iterator[str]:
        unknown = self._tokenizer.unk_token_id
        if unknown is None or not self._tokenizer.is_fast:  # others do not know where a token is
            return
        for row, token in (encoding["input_ids"] == unknown).nonzero().tolist():
            span = encoding.token_to_chars(row, token)
            word = "" if span is None else texts[row][span.start : span.end].strip()
            # GPT-2 has one special token for all purposes, which a text may contain.
            if word and word != self._tokenizer.unk_token:
                yield word
