"""The models that a program called."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from hookscope.results.result import Result


@dataclass(frozen=True)
class ProgramModel:
    """A model that a program called: a module that was called outside the call of another one.

    Attributes:
        name: the variable or attribute of the program that holds it, such as ``unet`` for
            ``pipe.unet``; else its class.
        type: the name of its class, without wrappers.
        parameters: the number of its parameters.
        calls: how often the program called it.
        place: the first line that called it, as ``infer.py:12``.
        device: of its parameters; empty if it has none.
        dtype: of its parameters; empty if it has none.
        mode: ``train`` or ``eval``, at its first call.
        wrapper: the class of its outermost wrapper, such as ``OptimizedModule``; may be empty.
    """

    name: str
    type: str
    parameters: int = 0
    calls: int = 0
    place: str = ""
    device: str = ""
    dtype: str = ""
    mode: str = ""
    wrapper: str = ""


@dataclass(frozen=True)
class UnseenModel:
    """What a program called, or may have called, and hookscope could not follow.

    Attributes:
        what: such as ``net (Net)``.
        reason: a sentence without a full stop.
    """

    what: str
    reason: str


@dataclass(frozen=True)
class ProgramModels(Result):
    """The models that a program called: the result of ``hookscope run --list``.

    Attributes:
        program: the script or module.
        models: in the order of their first calls.
        unseen: what could not be followed, with reasons.
    """

    view: ClassVar[str] = "program_models"

    program: str
    models: tuple[ProgramModel, ...]
    unseen: tuple[UnseenModel, ...] = ()

    def __repr__(self) -> str:
        return f"<ProgramModels of {self.program}: {', '.join(m.name for m in self.models)}>"

    def to_json(self) -> dict[str, Any]:
        """Return the program, its models and what was not seen as plain data."""
        return {
            "program": self.program,
            "models": [asdict(model) for model in self.models],
            "unseen": [asdict(one) for one in self.unseen],
        }
