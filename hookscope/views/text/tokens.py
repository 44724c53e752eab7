"""The tokens of a language model as text: its input, the most likely next ones, generated text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from rich.text import Text

from hookscope.escapes import visible
from hookscope.files.words import plural
from hookscope.results.metadata import TokenProbability
from hookscope.results.records import Recording
from hookscope.results.tokens import PromptTokens, padded_dims, prompts_of
from hookscope.views.text.shared_parts import (
    count_cell,
    label_cell,
    logit_cell,
    probability_cell,
    untrained_lines,
)
from hookscope.views.text.table import Cell, Column, Row, Table, drop, shorten
from hookscope.views.text.text_table import TextOptions, sentence, table_lines

CHANGE_COLUMNS = (  # of the most probable classes or tokens, without edits and with them
    *(Column("unedited"), Column("p unedited", "p", right=True)),
    *(Column("logit unedited", "logit", right=True), Column("edited")),
    *(Column("p edited", "p", right=True), Column("logit edited", "logit", right=True)),
)
CHANGE_SQUEEZE = (
    *shorten("p unedited", "logit unedited", "p edited", "logit edited"),
    *drop("p unedited", "p edited", "logit unedited", "logit edited"),
)
MAX_TOKENS = 16  # of a row on a terminal; a pipe gets all of them
MAX_ROWS = 3  # of a batch on a terminal
MAX_ENDING = 4  # tokens of a row before the next one


def prompt_lines(metadata: Mapping[str, Any], options: TextOptions) -> list[Text]:
    """Return a line for each row of token ids; on a terminal without the end of what is long."""
    prompts = prompts_of(metadata)
    lines: list[Text] = []
    for prompt in prompts:
        name = f" of {prompt.argument}" if len(prompts) > 1 else ""
        rows = len(prompt.ids)
        shown = rows if options.width is None else min(rows, MAX_ROWS)
        for row in range(shown):
            which = f" {row + 1}" if rows > 1 else ""
            lines += sentence(f"Tokens{which}{name}: {_row_text(prompt, row, options)}", options)
        if rows > shown:
            lines += sentence(f"{plural(rows - shown, 'more row')} of tokens.", options)
    return lines


def _row_text(prompt: PromptTokens, row: int, options: TextOptions) -> str:
    real = prompt.real(row)
    shown = real if options.width is None else real[:MAX_TOKENS]
    text = "|".join(visible(prompt.label(row, position)) for position in shown)
    notes = [f"{len(real) - len(shown)} more"] if len(real) > len(shown) else []
    padding = prompt.padding[row]
    if padding:
        left = not real or padding[0] < real[0]
        notes.append(f"{len(padding)} of padding {'before' if left else 'after'}")
    count = plural(len(real), "token")
    return f"{text} ({', '.join([count, *notes])})"


def next_token_lines(metadata: dict[str, Any], options: TextOptions) -> list[Text]:
    """Return the most probable next tokens after each row of a language model."""
    rows_of = metadata.get("next_tokens") or []
    if not any(rows_of):
        return []
    endings = _endings(metadata, len(rows_of))
    rows = [
        Row.of(token_cell(entry), count_cell(entry["id"]), probability_cell(entry), Cell(ending))
        for entries, ending in zip(rows_of, endings, strict=True)
        for entry in entries
    ]
    columns = (
        Column("next token"),
        Column("id", right=True),
        Column("probability", short="prob", right=True),
        Column("after", optional=len(rows_of) == 1),
    )
    squeeze = (*drop("id"), *shorten("probability"))
    table = table_lines(Table(columns, tuple(rows), squeeze, note=""), options)
    return table + untrained_lines(metadata, options, "next tokens mean")


def change_lines(
    what: Literal["top", "next_tokens"], metadata: dict[str, Any], options: TextOptions
) -> list[Text]:
    """Return the most probable classes or tokens without edits and with them, side by side."""
    top = metadata.get("effect", {}).get(what)
    if not top:
        return []
    noun, name_of, nothing = _CHANGED[what]
    rows = [
        Row.of(
            *(name_of(before), probability_cell(before), logit_cell(before)),
            *(name_of(after), probability_cell(after), logit_cell(after), count_cell(n)),
        )
        for n, pair in enumerate(zip(top["unedited"], top["edited"], strict=True), start=1)
        for before, after in zip(*pair, strict=True)
    ]
    columns = (*CHANGE_COLUMNS, Column(noun, right=True, optional=True))
    table = Table(columns, tuple(rows), (*drop(noun), *CHANGE_SQUEEZE), note="")
    return table_lines(table, options) + untrained_lines(metadata, options, nothing)


def token_cell(entry: TokenProbability) -> Cell:
    """Return a token in quotes; its id without a vocabulary."""
    token = entry.get("token")
    return Cell(f"id {entry['id']}" if token is None else repr(token))


# The noun of a list, the name of an entry, and what means nothing with random weights.
_CHANGED: dict[str, tuple[str, Callable[[Any], Cell], str]] = {
    "top": ("image", label_cell, "class names mean"),
    "next_tokens": ("row", token_cell, "next tokens mean"),
}


def _endings(metadata: Mapping[str, Any], rows: int) -> Sequence[str]:
    """The last few tokens of each row, after which the next one comes."""
    prompts = [prompt for prompt in prompts_of(metadata) if len(prompt.ids) == rows]
    if not prompts:
        return [str(n + 1) for n in range(rows)]
    prompt = prompts[-1]
    return [
        "".join(prompt.label(row, n) if prompt.texts else f"{prompt.label(row, n)} " for n in last)
        for row in range(rows)
        for last in [prompt.real(row)[-MAX_ENDING:]]
    ]


def generated_lines(metadata: Mapping[str, Any], options: TextOptions) -> list[Text]:
    """Return the text that was generated after each row; the ids without a vocabulary."""
    rows = metadata.get("generated") or []
    lines: list[Text] = []
    for n, entry in enumerate(rows, start=1):
        which = f" {n}" if len(rows) > 1 else ""
        text = ", ".join(map(str, entry["ids"])) if entry["text"] is None else repr(entry["text"])
        count = plural(len(entry["ids"]), "token")
        if entry.get("ended"):
            count += "; ended at the end-of-text token"
        lines += sentence(f"Generated{which}: {text} ({count})", options)
    return lines


def padding_lines(capture: Recording, options: TextOptions) -> list[Text]:
    """Return the note that statistics leave out the padding of a batch, if they do."""
    padded = [dims for r in capture.records if (dims := padded_dims(r, capture.metadata))]
    if not padded:
        return []
    prompts = {prompt.argument: prompt for dims in padded for prompt in dims.values()}.values()
    count = sum(len(row) for prompt in prompts for row in prompt.padding)
    total = sum(len(prompt.ids) * prompt.length for prompt in prompts)
    text = f"The statistics of {plural(len(padded), 'tensor')} leave out the padding: {count}"
    return sentence(f"{text} of {total} positions.", options)
