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
    """The preprocessing of images.

    Attributes:
        run: takes a PIL image, returns a float32 tensor of shape C, H, W.
        text: a description of ``run`` for users.
        tuned: takes ``(size, mean, std)``, each of which may be None, and returns the recipe with
            these values; None if the recipe cannot be changed.
    """

    run: Callable[[Image], Tensor]
    text: str
    tuned: Callable[[Size | None, Sequence[float] | None, Sequence[float] | None], Recipe] | None


@dataclass(frozen=True)
class TextRecipe:
    """The preprocessing of texts.

    Attributes:
        run: takes a list of texts, returns the call value of that batch.
        text: a description of ``run`` for users.
        vocabulary: the text of each token; None if it is not known.
        chat: as ``run``, with each text as a message in the chat template; None without a template.
        truncate: as ``run``, with each text cut to a number of tokens, special tokens included;
            None if that is not possible.
        spans: takes a text and a number of tokens to cut it to, or None; returns the characters of
            each token as ``results.features.token_spans`` writes them. None if they are not known.
    """

    run: Callable[[Sequence[str]], Any]
    text: str
    vocabulary: Vocabulary | None = None
    chat: Callable[[Sequence[str]], Any] | None = None
    truncate: Callable[[Sequence[str], int], Any] | None = None
    spans: Callable[[str, int | None], str] | None = None


@dataclass(frozen=True)
class SoundRecipe:
    """The preprocessing of audio.

    Attributes:
        run: takes a list of float32 waveforms of shape (samples,), mono, from -1 to 1, at ``rate``;
            returns the call value of that batch.
        rate: sample rate of the model in Hz.
        text: a description of ``run`` for users.
    """

    run: Callable[[Sequence[Tensor]], Any]
    rate: int
    text: str


@dataclass(frozen=True)
class WeightsRequest:
    """The weights that a model is loaded with.

    Attributes:
        spec: ``random``, ``default``, the name of pretrained weights, or a file (of a sharded set
            its index or its folder).
        rename: prefixes of names in the file, each with its replacement in the model.
        partial: load only the weights that fit, and keep the initial values of the others.
    """

    spec: str = "random"
    rename: tuple[tuple[str, str], ...] = ()
    partial: bool = False


@dataclass(frozen=True)
class WeightsInfo:
    """Where the weights came from.

    Attributes:
        name: ``random``, ``as built``, ``as given``, ``none`` (on the meta device), the name of
            pretrained weights, or the file.
        file_hash: the hash of the file, which may still be computed; None without a file.
        missing: parameters and buffers of the model that are not in the file.
        unexpected: names in the file that the model does not have.
        stripped: prefixes of wrappers that were removed from the names.
    """

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
    """An adapter that is attached to a model.

    Attributes:
        folder: where it came from.
        kind: its type as peft names it, such as ``LORA``.
        layers: how many layers it has replaced.
        changes: whether it changes a weight; None if that is not known.
        file_hash: computes the BLAKE3 of its values.
    """

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
    """A model ready to run.

    Attributes:
        module: the model, in eval mode (a live module stays in the mode it was in).
        spec: the model's spec.
        name: a short name for it, valid in a file's name.
        source: ``torchvision``, ``file``, ``torchscript``, ``exported``, ``onnx`` or ``live``.
        task: ``classification``, ``detection``, ``segmentation``, ``video``, ``optical flow`` or
            ``quantized``; empty if it is not known.
        categories: names of the classes by index; empty if they are not known.
        weights: where the weights came from.
        own_recipe: the model's preprocessing of images; None if it is not known.
        own_text: the model's preprocessing of texts; None if it takes no text.
        own_sound: the model's preprocessing of audio; None if it takes no audio.
        shape: shape of one input tensor; None if it is not known.
        layout: how tensors are arranged to a call value.
        min_size: smallest height and width of an image for this model.
        own_example: makes an input that the model's file defines; None without one.
        example_text: a description of that input for users.
        example_spec: the spec of that input in metadata.
        packages: other packages that compute its results, whose versions are in the metadata.
        adapter: the adapter that is attached; None without one.
    """

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

        Raises:
            InputError: neither is known.
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
        """Arrange image tensors (each C, H, W) to a call value.

        Raises:
            InputError: their number or their shapes do not fit.
        """
        return self.layout.arrange(images)
