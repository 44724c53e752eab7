"""What every source of models hands on: the module with all that is known about its input.

An input travels as a *call value*: a tuple holds positional arguments, a dict keyword arguments, a
pair ``(tuple, dict)`` both, and anything else is the one positional argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from hookscope.errors import InputError
from hookscope.sources.layouts import BATCH, Layout
from hookscope.tensors.seeding import seeded_torch

if TYPE_CHECKING:
    from PIL.Image import Image

Size = int | tuple[int, int]


@dataclass(frozen=True)
class Recipe:
    """How an image becomes what the model wants.

    Attributes:
        run: takes a PIL image, returns a float32 tensor of shape C, H, W.
        text: what ``run`` does, for people.
        tuned: takes ``(size, mean, std)``, each possibly None, and returns the recipe changed that
            way; None where a recipe cannot be changed.
    """

    run: Callable[[Image], Tensor]
    text: str
    tuned: Callable[[Size | None, Sequence[float] | None, Sequence[float] | None], Recipe] | None


@dataclass(frozen=True)
class TextRecipe:
    """How texts become what the model wants.

    Attributes:
        run: takes a list of texts, returns the call value of that batch.
        text: what ``run`` does, for people.
    """

    run: Callable[[Sequence[str]], Any]
    text: str


@dataclass(frozen=True)
class SoundRecipe:
    """How sound becomes what the model wants.

    Attributes:
        run: takes a list of float32 waveforms of shape (samples,), mono, from -1 to 1, at ``rate``;
            returns the call value of that batch.
        rate: samples a second that the model is made for.
        text: what ``run`` does, for people.
    """

    run: Callable[[Sequence[Tensor]], Any]
    rate: int
    text: str


@dataclass(frozen=True)
class WeightsRequest:
    """Which weights a model is to get.

    Attributes:
        word: ``random``, ``default``, the name of pretrained weights, or a file (of a sharded set
            its index or its folder).
        rename: prefixes of names in the file, each with what stands for it in the model.
        partial: whether to take from the file what fits and to leave the rest as built.
    """

    word: str = "random"
    rename: tuple[tuple[str, str], ...] = ()
    partial: bool = False


@dataclass(frozen=True)
class WeightsInfo:
    """Where the weights came from.

    Attributes:
        word: ``random``, ``as built``, ``as given``, ``none`` (on the meta device), the name of
            pretrained weights, or the file.
        blake3: BLAKE3 of the file they were read from; of a set see ``WeightFiles.blake3``; None
            where there was none.
        missing: parameters and buffers of the model that the file does not hold.
        unexpected: names in the file that the model does not have.
        stripped: prefixes of wrappers that were taken off the names.
    """

    word: str
    blake3: str | None = None
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    stripped: tuple[str, ...] = ()


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run.

    Attributes:
        module: the model, in eval mode (a live module stays in the mode it was in).
        word: how it was named.
        name: a short name for it that can stand in a file's name.
        source: ``torchvision``, ``file``, ``torchscript``, ``exported`` or ``live``.
        task: ``classification``, ``detection``, ``segmentation``, ``video``, ``optical flow`` or
            ``quantized``; empty where it is not known.
        categories: names of the classes by index; empty where they are not known.
        weights: where the weights came from.
        own_recipe: how an image becomes an input; None where the model does not say.
        own_text: how texts become an input; None where the model takes none.
        own_sound: how sound becomes an input; None where the model takes none.
        shape: shape of one input tensor; None where it is not known.
        layout: how tensors are put together to an input.
        min_size: smallest height and width of an image it is made for.
        own_example: makes an input the file itself offers; None where it offers none.
        example_text: what ``own_example`` makes, for people.
        example_word: what is recorded as the source of such an input.
    """

    module: nn.Module
    word: str
    name: str
    source: str
    task: str = ""
    categories: tuple[str, ...] = ()
    weights: WeightsInfo = field(default=WeightsInfo("random"))
    own_recipe: Recipe | None = None
    own_text: TextRecipe | None = None
    own_sound: SoundRecipe | None = None
    shape: tuple[int, ...] | None = None
    layout: Layout = BATCH
    min_size: int = 1
    own_example: Callable[[], Any] | None = None
    example_text: str = "example_input() of its file"
    example_word: str = "example_input"

    @property
    def preprocess(self) -> Callable[[Image], Tensor] | None:
        """Turns a PIL image into a float32 tensor C, H, W; None where the model does not say how.

        Example:
            >>> import hookscope
            >>> from PIL import Image
            >>> model = hookscope.load_model("resnet18")
            >>> model.preprocess(Image.new("RGB", (640, 480))).shape
            torch.Size([3, 224, 224])
        """
        return self.own_recipe.run if self.own_recipe else None

    @property
    def recipe(self) -> str:
        """What ``preprocess`` does, in words; empty where there is none."""
        return self.own_recipe.text if self.own_recipe else ""

    @property
    def example_input(self) -> Any:
        """An input the model takes (a call value), the same each time: ``example(0)``."""
        return self.example(0)

    def example(self, seed: int) -> Any:
        """Return a call value the model takes: what its file offers, else noise of its shape.

        The global random state is left as it was.

        Raises:
            InputError: neither is known.
        """
        if self.own_example is not None:
            with seeded_torch(seed):
                return self.own_example()
        if self.shape is None:
            raise InputError(
                f"What {self.word} takes as input is not known.",
                "Offer example_input() in its file, or give --shape 1x3x224x224 or --input.",
            )
        return self.layout.noise(self.shape, seed)

    def arrange(self, images: Sequence[Tensor]) -> Any:
        """Put image tensors (each C, H, W) together to a call value.

        Raises:
            InputError: their number or their shapes do not fit.
        """
        return self.layout.arrange(images)
