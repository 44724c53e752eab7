"""From the weights of a layer to a picture."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from hookscope.errors import RequestError
from hookscope.views.images.figures.canvas import paper
from hookscope.views.images.figures.drawing import Drawing
from hookscope.views.images.figures.filters import draw_kernels, draw_matrix
from hookscope.views.images.kernels import kernels_of
from hookscope.views.images.wording import numbers_text, shape_text


def draw(
    name: str,
    type: str,
    weight: NDArray[Any],
    about: str,
    chosen: dict[str, Any],
    each: bool,
    dark: bool,
) -> Drawing:
    """Return the picture of a weight.

    Args:
        name: of the parameter.
        type: class name of the layer.
        weight: a matrix, or kernels with their output channels first.
        about: the model.
        chosen: which filters: see ``kernels.kernels_of``.
        each: one scale of colours for each panel.
        dark: light on dark paper.

    Raises:
        RequestError: there is no such filter, or the weight has more than five dimensions.
    """
    title, told = f"{name} ({type})", f"{name} ({shape_text(weight.shape)})"
    if weight.ndim > 5:
        raise RequestError(
            f"{told} has {weight.ndim} dimensions, and up to five are drawn.", "Name another layer."
        )
    with paper(dark):
        if weight.ndim == 2:
            table = type.startswith("Embedding")
            axes = ("entry", "dimension") if table else ("output feature", "input feature")
            return Drawing(draw_matrix(weight, title, about, axes), "filters", (told,), dark)
        kernels = kernels_of(weight, name, **chosen)
        told += f": filters {numbers_text(kernels.filters)} of {kernels.total}"
        if kernels.color:
            told += ", in colour"
        elif kernels.left_out:
            told += f", {kernels.left_out} of the columns for its input channels left out"
        about += f"; {len(kernels.filters)} of {kernels.total} filters"
        return Drawing(draw_kernels(kernels, title, about, each), "filters", (told,), dark)
