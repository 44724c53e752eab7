"""Texts as the input of a model: a tokenizer of transformers as a recipe, with its vocabulary."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import transformers
from torch import nn

from hookscope.errors import InputError, cause
from hookscope.files.signatures import signature_of
from hookscope.sources.loaded import TextRecipe, Vocabulary
from hookscope.sources.transformers.folder_names import check_vocabularies
from hookscope.sources.transformers.model_inputs import (
    ModelInputs,
    accepted,
    decoder_note,
    load_processor,
)
from hookscope.specs.input_spec import VOCABULARIES
from hookscope.specs.model_spec import end_sentence
from hookscope.stores.features.token_spans import join_spans

log = logging.getLogger("hookscope")

_MOST = 5  # words that are named; the rows of a data set come one by one

_UNLIMITED = 10**6  # a tokenizer without a limit has 1e30


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


def text_recipe(folder: Path, inputs: ModelInputs) -> TextRecipe | None:
    """Return the recipe of the tokenizer in ``folder``; None without a tokenizer."""
    if "input_ids" not in inputs.names:
        return None
    tokenizer = load_processor(transformers.AutoTokenizer, folder, VOCABULARIES)
    if tokenizer is None:
        return None
    arrange = _arrangement_of(inputs)
    return _recipe(tokenizer, arrange, f"tokenizer of the model's folder{{}}{decoder_note(inputs)}")


def recipe_of_file(path: str, module: nn.Module) -> TextRecipe:
    """Return the recipe of a tokenizer that is given by a file or a folder, for any model."""
    if Path(path).is_dir():
        check_vocabularies(path)
    try:
        if Path(path).is_dir():
            tokenizer: Any = transformers.AutoTokenizer.from_pretrained(
                path, local_files_only=True, trust_remote_code=False
            )
        else:
            reader: Any = transformers.PreTrainedTokenizerFast
            tokenizer = reader(tokenizer_file=path)
    except Exception as exc:  # the readers raise nearly any type
        raise InputError(
            f"{path!r} is not a tokenizer: {end_sentence(cause(exc).partition(chr(10))[0])}",
            "Give the tokenizer.json of the package tokenizers, or a folder of transformers.",
        ) from exc
    if hasattr(module, "main_input_name"):
        arrange = _arrangement_of(ModelInputs(module))
    else:
        names = tuple(signature_of(module.forward).parameters)

        def arrange(encoding: dict[str, Any]) -> Any:
            if "input_ids" not in names:
                return encoding["input_ids"]
            return {name: value for name, value in encoding.items() if name in names}

    return _recipe(tokenizer, arrange, f"tokenizer {path}{{}}")


def _arrangement_of(inputs: ModelInputs) -> Callable[[dict[str, Any]], Any]:
    return lambda encoding: inputs.completed(accepted(encoding, inputs))


def _recipe(tokenizer: Any, arrange: Callable[[dict[str, Any]], Any], origin: str) -> TextRecipe:
    padding = ""
    if tokenizer.pad_token is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token
        padding = f", padded with {tokenizer.eos_token}"

    unknown_words = UnknownWords(tokenizer)

    def run(texts: Sequence[str], special: bool = True, limit: int | None = None) -> Any:
        several = len(texts) > 1
        if several and tokenizer.pad_token is None:
            raise InputError(
                "The tokenizer has no padding token, which several texts need.",
                "Give the texts one by one, or a tokenizer that names a pad_token.",
            )
        encoding = tokenizer(
            list(texts),
            padding=several,
            return_tensors="pt",
            add_special_tokens=special,
            truncation=limit is not None,
            max_length=limit,
        )
        _check_length(encoding["input_ids"].shape[-1], tokenizer.model_max_length)
        unknown_words.warn(texts, encoding)
        return arrange(dict(encoding))

    def spans(text: str, limit: int | None) -> str:
        encoding = tokenizer(
            text, truncation=limit is not None, max_length=limit, return_offsets_mapping=True
        )
        names = tokenizer.convert_ids_to_tokens(encoding["input_ids"])
        return join_spans(encoding["offset_mapping"], names)

    def chat(texts: Sequence[str]) -> Any:
        # The template writes the special tokens that the tokenizer would add otherwise.
        return run([_as_chat(tokenizer, text) for text in texts], special=False)

    return TextRecipe(
        run,
        f"text, {origin.format(padding)}",
        vocabulary_of(tokenizer),
        chat if getattr(tokenizer, "chat_template", None) else None,
        lambda texts, limit: run(texts, limit=limit),
        spans if getattr(tokenizer, "is_fast", False) else None,  # others do not know them
    )


def _check_length(length: int, most: int) -> None:
    if most < _UNLIMITED and length > most:
        raise InputError(
            f"The text has {length} tokens, but the model takes at most {most}.", "Shorten it."
        )
    if not length:
        raise InputError("The text has no tokens.", "Give at least a word.")


def _as_chat(tokenizer: Any, text: str) -> str:
    """The text as the message of a user, up to where the answer begins."""
    messages = [{"role": "user", "content": text}]
    try:
        return str(
            tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        )
    except Exception as exc:  # a template is a program of its own
        raise InputError(
            f"The chat template of the tokenizer fails: {end_sentence(cause(exc))}",
            "Leave out --chat, and write the text as the model expects it.",
        ) from exc


def vocabulary_of(tokenizer: Any) -> Vocabulary:
    """Return the vocabulary of a tokenizer of transformers."""
    added = tokenizer.added_tokens_decoder.items()  # a file of tokenizers names no end of a text
    special = [token for token, entry in added if entry.special]
    return Vocabulary(
        encode=lambda text: list(tokenizer(text, add_special_tokens=False)["input_ids"]),
        decode=lambda ids: str(tokenizer.decode(ids, clean_up_tokenization_spaces=False)),
        name=lambda token: str(tokenizer.convert_ids_to_tokens(token)),
        size=len(tokenizer),
        special=frozenset((*tokenizer.all_special_ids, *special)),
        padding=tokenizer.pad_token_id,
        unknown=tokenizer.unk_token_id,
    )
