"""Texts, through the tokenizer of the model's source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hookscope.errors import InputError
from hookscope.files.file_types import WRITE_AGAIN
from hookscope.inputs.input_reader import (
    ReadContext,
    ReadResult,
    describe_path,
    read_bytes,
    sha256,
    tensor_entries,
)
from hookscope.specs.input_spec import InputSpec

_MOST = 16 << 20  # bytes; tokenizers take seconds for each million


def read_texts(asked: ReadContext, words: Sequence[InputSpec]) -> ReadResult:
    """Read text files, each one text, and ``text:WORDS``, to the call value of that batch.

    Raises:
        InputError: the model takes no texts, or a file is no UTF-8.
    """
    recipe = asked.loaded.own_text
    if recipe is None:
        raise InputError(
            f"{asked.loaded.word} does not say how a text becomes its input.",
            "Offer tokenize(texts) in the model's file, or give the numbers of its tokens:"
            " --input tokens.npy.",
        )
    texts, digests = [], []
    for word in words:
        data = (
            read_bytes(word.path, _MOST, "Give a shorter one.") if word.path else word.rest.encode()
        )
        try:
            texts.append(data.decode("utf-8-sig"))
        except UnicodeDecodeError as exc:
            raise InputError(
                f"{describe_path(word.path)} is no text in UTF-8: byte {exc.start} does not fit.",
                WRITE_AGAIN,
            ) from exc
        digests.append(sha256(data))
    value = recipe.run(texts)
    if isinstance(value, Mapping):  # tokenizers have classes of their own
        value = dict(value)
    entries = tensor_entries(value, words[0].word, digests[0])
    like = {key: entries[0][key] for key in ("shape", "dtype")}
    for word, digest in zip(words[1:], digests[1:], strict=True):
        entries += (like | {"word": word.word, "sha256": digest},)
    return ReadResult(value, entries, recipe.text)
