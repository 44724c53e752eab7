"""The edit of a sweep, ``zero`` or ``patch:FILE``: an operation of ``--edit`` without a layer."""

from __future__ import annotations

from hookscope.errors import EditError, RequestError
from hookscope.specs.edit import WEIGHTS, Edit, TensorSource, parse_edits
from hookscope.specs.position_spec import parse_positions

ALL_POSITIONS = "all"
AUTO_HEADS = "auto"


def parse_sweep_edit(text: str) -> Edit:
    """Parse the edit of a sweep; its pattern is ``*``.

    >>> parse_sweep_edit("noise:0.1").argument
    (0.1, False)
    """
    try:
        [edit] = parse_edits(f"*={text}")
    except EditError as error:
        message = error.message.replace(repr(f"*={text}"), repr(text))
        if "=" in text and "is not" not in message.partition(":")[2]:
            raise EditError(
                f"{text!r} names a layer, but a sweep applies its edit to each layer in turn.",
                f"Write --edit {text.partition('=')[2]}, and name the layers with --layer.",
            ) from None
        hint = error.hint.replace("--edit LAYER=OPERATION", "--edit OPERATION")
        raise EditError(message, hint) from None
    return edit


def sweep_files(text: str) -> list[str]:
    """Return the files that the edit of a sweep reads."""
    source = parse_sweep_edit(text).argument
    return [source.path] if isinstance(source, TensorSource) else []


def expert_factor(edit: Edit) -> float | None:
    """Return what the edit of a sweep multiplies the output of an expert by; None if it cannot.

    >>> expert_factor(parse_sweep_edit("zero")), expert_factor(parse_sweep_edit("noise:1"))
    (0.0, None)
    """
    return {"zero": 0.0, "scale": edit.argument}.get(edit.name)


def check_sweep_places(
    edit: Edit, positions: str | None, heads: int | str | None, experts: bool
) -> None:
    """Check the positions, heads and experts of a sweep, and that they fit the edit."""
    if positions is not None and positions != ALL_POSITIONS:
        parse_positions(positions)
    if heads is not None and not str(heads).isdecimal() and heads != AUTO_HEADS:
        raise RequestError(f"{heads!r} is not a number of heads.", "Write --heads 12, or auto.")
    if heads is not None and str(heads).isdecimal() and int(heads) < 1:
        raise RequestError(f"{heads!r} is not a number of heads.", "Use 1 or more.")
    chosen = [
        name
        for name, value in (
            ("--positions", positions),
            ("--heads", heads),
            ("--experts", experts or None),
        )
        if value is not None
    ]
    if len(chosen) > 1:
        raise RequestError(f"{' and '.join(chosen)} cannot be combined.", "Use only one of them.")
    if chosen and edit.kind == WEIGHTS:
        raise RequestError(
            f"{edit.name} changes the weights of a whole layer, so {chosen[0]} does not apply.",
            f"Leave out {chosen[0]}.",
        )
    if experts and expert_factor(edit) is None:
        raise RequestError(
            f"{edit.name} cannot be applied to single experts.", "Use --edit zero or scale:A."
        )
