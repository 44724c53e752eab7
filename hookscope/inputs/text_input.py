"""Texts, tokenized by the recipe of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hookscope.errors import InputError
from hookscope.files.file_types import WRITE_AGAIN
from hookscope.inputs.input_reader import (
    Batch,
    ReadContext,
    describe_path,
    read_bytes,
    sha256,
    tensor_entries,
)
from hookscope.sources.loaded import LoadedModel, TextRecipe
from hookscope.specs.input_spec import MAX_TEXT_BYTES, InputSpec


def text_recipe_of(loaded: LoadedModel) -> TextRecipe:
    """Return the preprocessing of texts of a model."""
    if loaded.own_text is None:
        raise InputError(
            f"{loaded.spec} has no tokenizer for a text.",
            "Give token ids, such as --input ints:1x5:0-100 or tokens.npy, a tokenizer with"
            " --tokenizer FILE, or define tokenize(texts) in the model's own Python file.",
        )
    return loaded.own_text


def read_texts(context: ReadContext, specs: Sequence[InputSpec]) -> Batch:
    """Return the call value of a batch of texts: text files, lines of one, and ``text:WORDS``."""
    recipe = text_recipe_of(context.loaded)
    texts, digests = [], []
    for spec in specs:
        if spec.path and not spec.rest:
            data = read_bytes(spec.path, MAX_TEXT_BYTES, "Give a shorter one.")
        else:
            data = spec.rest.encode()
        try:
            texts.append(data.decode("utf-8-sig"))
        except UnicodeDecodeError as exc:
            raise InputError(
                f"{describe_path(spec.path)} is not UTF-8 text: byte {exc.start} is not valid.",
                WRITE_AGAIN,
            ) from exc
        digests.append(sha256(data))
    if context.chat and recipe.chat is None:
        raise InputError(
            "The tokenizer has no chat template.",
            "Leave out --chat, or give the tokenizer of a chat model with --tokenizer FOLDER.",
        )
    value = recipe.chat(texts) if context.chat and recipe.chat else recipe.run(texts)
    if isinstance(value, Mapping):  # a tokenizer returns its own class
        value = dict(value)
    entries = tensor_entries(value, specs[0].text, digests[0])
    shape, dtype = entries[0]["shape"], entries[0]["dtype"]
    for spec, digest in zip(specs[1:], digests[1:], strict=True):
        entries += ({"shape": shape, "dtype": dtype, "spec": spec.text, "sha256": digest},)
    return Batch(value, entries, recipe.text)
