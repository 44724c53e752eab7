"""The score of a detected object: of torchvision's detectors, of DETR-like models, of any tensor.

torchvision's detectors return boxes, labels and scores, sorted by the score: the score of an object
is the probability that they return. Models like DETR (Carion et al., 2020, arXiv:2005.12872) return
logits and a box for each query: the score of an object is the logit of its class.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from hookscope.errors import LossError, RequestError
from hookscope.execution.prepare import Prepared
from hookscope.execution.target import find_class
from hookscope.files.words import plural, shape_text
from hookscope.model_analysis.cams.layer_scan import LayerCandidate
from hookscope.model_analysis.cams.scores import Score, named_part
from hookscope.tensors.grad_mode import grad_mode

log = logging.getLogger("hookscope")

SAME_OBJECT = 0.5  # least overlap with the box, in a run on another image
_BACKBONE = "backbone"


class BoxScore(Score):
    """The score of the object with this number, among those of the target's class.

    In a run on a changed image, the object of a torchvision detector is the one of the same class
    that overlaps most with the box, by at least half; without one the score is 0.
    """

    of_object = True

    def __init__(self, box: int, target: Any, part: str | None = None) -> None:
        super().__init__(target, part)
        self._number = box
        self._label: int | None = None
        self._query = 0
        self._found: dict[str, Any] = {}
        self._box: Tensor | None = None  # left, top, right, bottom in pixels
        self._size = (0, 0)

    def check_input(self, prepared: Prepared, image: Tensor) -> None:
        """Raise RequestError unless the input is one image."""
        if image.ndim != 4 or len(image) != 1:
            raise RequestError(
                "--box explains an object in one image, and the input is"
                f" {shape_text(image.shape)}.",
                "Give one image.",
            )
        self._size = (image.shape[2], image.shape[3])

    def value(self, prepared: Prepared, output: Any) -> Tensor:
        """Return the score of the object."""
        if self._label is None:
            self._choose(prepared, output)
        return self._score(output)

    def each(self, output: Any) -> Tensor:
        """Return the score of the object, (1,)."""
        return self._score(output).detach().reshape(1).cpu()

    def probabilities(self, output: Any) -> list[float | None]:
        """Return None: the score is a probability, or the logit of a model's own function."""
        return [None]

    def skips(self, prepared: Prepared, output: Any) -> Callable[[LayerCandidate], bool]:
        """Leave out the queries, and what follows a module named ``backbone``.

        The head of a one-stage detector has maps too: at them the gradient is at one position.
        """
        inside = any(name == _BACKBONE for name, _ in prepared.module.named_children())
        queries = None if _objects(output) else self._rows(output).shape[0]

        def skip(candidate: LayerCandidate) -> bool:
            name = candidate.layer.name
            if inside and name.partition(".")[0] != _BACKBONE:
                return True
            tokens = candidate.grid is not None and candidate.grid.layout == "NLC"
            return tokens and candidate.shape[1] == queries

        return skip

    def entry(self) -> dict[str, Any]:
        """Return the number of the object, how many there are, and its box."""
        return self._found

    def view_size(self, prepared: Prepared, image: Tensor) -> tuple[tuple[int, ...], ...]:
        """Return the size after resizing and padding by torchvision's detectors, and without it."""
        transform = getattr(prepared.module, "transform", None)
        if transform is None or not hasattr(transform, "size_divisible"):
            return super().view_size(prepared, image)
        with grad_mode(False):
            images, _ = transform([image[0].detach().clone()])
        return tuple(images.tensors.shape[-2:]), tuple(images.image_sizes[0])

    def _choose(self, prepared: Prepared, output: Any) -> None:
        categories = prepared.loaded.categories
        wanted = None if self._target == "argmax" else _class_of(self._target, categories)
        objects = _objects(output)
        if objects is not None:
            labels = objects["labels"]
            indices = range(len(labels)) if wanted is None else (labels == wanted).nonzero()[:, 0]
            chosen = self._at([int(index) for index in indices], len(labels), categories, wanted)
            self._label, self._box = int(labels[chosen]), objects["boxes"][chosen].detach()
        else:
            certainty = self._certainty(prepared, output)
            if wanted is not None and wanted >= certainty.shape[1]:
                raise LossError(
                    f"There is no class {wanted}: the scores have {certainty.shape[1]} classes.",
                    "Give another --class.",
                )
            best = certainty.argmax(1)
            if wanted is not None:
                best = torch.full_like(best, wanted)
            rows = certainty.gather(1, best.unsqueeze(1)).squeeze(1)
            order = rows.argsort(descending=True, stable=True).tolist()
            self._query = self._at(order, len(order), categories, None)
            self._label = int(best[self._query])
            self._box = self._query_box(output)
        self.classes = torch.tensor([self._label])
        name = categories[self._label] if self._label < len(categories) else f"class {self._label}"
        self.text = f"box {self._number}: {name}"
        if self._box is not None:
            self._found["box"] = [float(edge) for edge in self._box]

    def _at(
        self, indices: list[int], count: int, categories: tuple[str, ...], wanted: int | None
    ) -> int:
        """The object with the number; those before it have larger scores."""
        self._found = {"detection": self._number, "detections": len(indices)}
        if self._number < len(indices):
            return indices[self._number]
        known = wanted is not None and wanted < len(categories)
        kind = "" if wanted is None else f" of class {categories[wanted] if known else wanted}"
        found = plural(len(indices), "object") if indices else "no object"
        more = "" if wanted is None else f" ({plural(count, 'object')} of any class)"
        hint = (
            f"Boxes are numbered from 0 to {len(indices) - 1}."
            if indices
            else "Use trained weights, leave out --class, or let a detector of torchvision return"
            " uncertain objects: --model-arg box_score_thresh=0 or score_thresh=0."
        )
        raise RequestError(
            f"The model found {found}{kind}{more}, so there is no box {self._number}.", hint
        )

    def _score(self, output: Any) -> Tensor:
        objects = _objects(output)
        if objects is None:
            return self._rows(output)[self._query, self._label]
        assert self._box is not None
        same = objects["labels"] == self._label
        overlaps = _overlaps(objects["boxes"].detach(), self._box) * same
        if not len(overlaps) or float(overlaps.max()) < SAME_OBJECT:
            return objects["scores"].sum() * 0
        return objects["scores"][int(overlaps.argmax())]

    def _rows(self, output: Any) -> Tensor:
        """The scores of each query, (Q, C)."""
        if self.part:
            part = named_part(output, self.part)
            scores: Tensor = part["logits"] if isinstance(part, Mapping) else part
        else:
            logits = _read(output, "logits")
            if logits is None or _read(output, "pred_boxes") is None:
                raise RequestError(
                    "The output has no boxes: neither boxes, labels and scores, nor logits and"
                    " pred_boxes.",
                    "Name the tensor (1, objects, classes) with --scores, or leave out --box.",
                )
            scores = logits
        if scores.ndim == 3 and len(scores) == 1:
            scores = scores[0]
        if scores.ndim != 2:
            raise RequestError(
                f"The scores are {shape_text(scores.shape)}, not (1, objects, classes).",
                "Name another tensor with --scores.",
            )
        return scores

    def _certainty(self, prepared: Prepared, output: Any) -> Tensor:
        """The scores to sort by: without the class for no object, if the model has one."""
        scores = self._rows(output).detach()
        classes = getattr(getattr(prepared.module, "config", None), "num_labels", None)
        if not self.part and classes == scores.shape[1] - 1:
            return scores.softmax(1)[:, :-1]
        return scores

    def _query_box(self, output: Any) -> Tensor | None:
        """The box of the query: ``pred_boxes`` has its centre and size, as parts of the image."""
        boxes = _read(output, "pred_boxes")
        if boxes is None:
            return None
        x, y, width, height = boxes[0, self._query].detach().tolist()
        edges = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
        rows, columns = self._size
        sides = (columns, rows, columns, rows)
        return torch.tensor([edge * side for edge, side in zip(edges, sides, strict=True)])


def _objects(output: Any) -> Mapping[str, Tensor] | None:
    """The objects in the first image of a torchvision detector; None of another model."""
    first = output[0] if isinstance(output, list | tuple) and output else None
    if isinstance(first, Mapping) and {"boxes", "labels", "scores"} <= first.keys():
        return first
    return None


def _read(output: Any, name: str) -> Tensor | None:
    value = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
    return value if isinstance(value, Tensor) else None


def _class_of(target: Any, categories: tuple[str, ...]) -> int:
    if isinstance(target, str) and not target.isdecimal():
        return find_class(target, categories)
    if isinstance(target, str | int):
        return int(target)
    raise LossError(f"{target!r} is not a class.", "Give the index or the label of one.")


def _overlaps(boxes: Tensor, box: Tensor) -> Tensor:
    """The intersection over the union of each box with one box."""
    low, high = torch.maximum(boxes[:, :2], box[:2]), torch.minimum(boxes[:, 2:], box[2:])
    shared = (high - low).clamp(min=0).prod(1)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1) + (box[2:] - box[:2]).prod()
    return shared / (areas - shared).clamp(min=torch.finfo(boxes.dtype).tiny)
