"""What every source of models returns: the module, with what is known about its input.

An input is a *call value*: a tuple has positional arguments, a dict keyword arguments, a pair
``(tuple, dict)`` both, and any other value is the only positional argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from hookscope.errors import InputError
from hookscope.files.background_hash import BackgroundHash
from hookscope.sources.layouts import BATCH, Layout
from hookscope.sources.vocabulary import Vocabulary
from hookscope.tensors.seeding import seeded_torch

if TYPE_CHECKING:
    from PIL.Image import Image

Size = int | tuple[int, int]


@dataclass(frozen=True)
class Recipe:
    """The preprocessing of images."""

    run: Callable[[Image], Tensor]
    text: str
    tuned: Callable[[Size | None, Sequence[float] | None, Sequence[float] | None], Recipe] | None


@dataclass(frozen=True)
class TextRecipe:
    """The preprocessing of texts."""

    run: Callable[[Sequence[str]], Any]
    text: str
    vocabulary: Vocabulary | None = None
    chat: Callable[[Sequence[str]], Any] | None = None
    truncate: Callable[[Sequence[str], int], Any] | None = None
    spans: Callable[[str, int | None], str] | None = None


@dataclass(frozen=True)
class SoundRecipe:
    """The preprocessing of audio."""

    run: Callable[[Sequence[Tensor]], Any]
    rate: int
    text: str


@dataclass(frozen=True)
class WeightsRequest:
    """The weights that a model is loaded with."""

    spec: str = "random"
    rename: tuple[tuple[str, str], ...] = ()
    partial: bool = False


@dataclass(frozen=True)
class WeightsInfo:
    """Where the weights came from."""

    name: str
    file_hash: BackgroundHash | None = None
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    stripped: tuple[str, ...] = ()

    @property
    def blake3(self) -> str | None:
        """BLAKE3 of the file; for a sharded set see ``WeightFiles.blake3``; None without a file.

        It is computed while the model is built and run. This waits for it.
        """
        return self.file_hash.result() if self.file_hash else None


@dataclass(frozen=True)
class AdapterInfo:
    """An adapter that is attached to a model."""

    folder: str
    kind: str
    layers: int
    changes: bool | None
    file_hash: BackgroundHash | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the entry of the metadata. It waits for the hash."""
        return {
            "folder": self.folder,
            "type": self.kind,
            "layers": self.layers,
            "changes": self.changes,
            "blake3": self.file_hash.result() if self.file_hash else None,
        }


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run."""

    module: nn.Module
    spec: str
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
    example_spec: str = "example_input"
    packages: tuple[str, ...] = ()
    adapter: AdapterInfo | None = None

    def __repr__(self) -> str:
        kind, weights = type(self.module).__name__, self.weights.name
        return f"<LoadedModel {self.spec}: {kind}, weights: {weights}>"

    @property
    def preprocess(self) -> Callable[[Image], Tensor] | None:
        """Makes a float32 tensor C, H, W of a PIL image; None if the preprocessing is not known.

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
        """A description of ``preprocess``; empty if it is None."""
        return self.own_recipe.text if self.own_recipe else ""

    @property
    def example_input(self) -> Any:
        """An input of the model as a call value, the same each time: ``example(0)``."""
        return self.example(0)

    def example(self, seed: int) -> Any:
        """Return an input of the model as a call value: its file's example, or noise.

        The global random state is not changed.
        """
        if self.own_example is not None:
            with seeded_torch(seed):
                return self.own_example()
        if self.shape is None:
            raise InputError(
                f"Cannot tell what input {self.spec} expects.",
                "Give --shape (for example 1x3x224x224) for noise, or --input FILE, or define"
                " example_input() in the model's file.",
            )
        return self.layout.make_noise(self.shape, seed)

    def arrange(self, images: Sequence[Tensor]) -> Any:
        """Arrange image tensors (each C, H, W) to a call value."""
        return self.layout.arrange(images)
