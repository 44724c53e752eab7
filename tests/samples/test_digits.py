"""The trained digits model is as good as it says, on digits that it never saw."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from PIL import Image
from safetensors import safe_open

import hookscope

Sample = Callable[[str], ModuleType]


def test_accuracy_is_what_the_docstring_states(sample: Sample) -> None:
    digits, training = sample("digits"), sample("train_digits")
    share, right, of = re.search(r"([\d.]+)%\s+\((\d+)\s+of\s+(\d+)\)", digits.__doc__).groups()
    *_, images, labels = training.split()
    hits = training.correct(digits.trained(), images, labels)
    assert len(hits) == int(of)
    assert int(hits.sum()) == pytest.approx(int(right), abs=1)  # one may lie on a knife's edge
    assert float(share) == pytest.approx(100 * int(right) / int(of), abs=0.05)


def test_training_and_held_out_digits_are_apart(sample: Sample) -> None:
    images, labels, unseen, unseen_labels = sample("train_digits").split()
    assert len(images) == len(labels) == 1437
    assert len(unseen) == len(unseen_labels) == 360
    seen = {image.numpy().tobytes() for image in images}
    assert not any(image.numpy().tobytes() in seen for image in unseen)


def test_training_is_repeatable_and_learns(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    training = sample("train_digits")
    monkeypatch.setattr(training, "EPOCHS", 1)
    images, labels, *_ = training.split()
    first, second = (training.train(images[:256], labels[:256]) for _ in range(2))
    assert all(
        torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True)
    )
    untrained = training.DigitsCNN()
    assert (
        training.correct(first, images, labels).sum()
        > training.correct(untrained, images, labels).sum()
    )


def test_weights_fit_the_model_and_are_small(sample: Sample, repo: Path) -> None:
    file = repo / "sample_models" / "digits.safetensors"
    assert file.stat().st_size < 100_000
    with safe_open(file, framework="pt") as opened:
        assert set(opened.keys()) == set(sample("digits").trained().state_dict())


def test_five_is_read_as_a_five(sample: Sample) -> None:
    digits = sample("digits")
    probabilities = digits.trained()(digits.example_input()).softmax(1)[0]
    assert digits.categories[probabilities.argmax()] == "5"
    assert probabilities.max() > 0.9


def test_preprocess_gives_back_the_data_that_the_image_was_drawn_from(sample: Sample) -> None:
    digits, training = sample("digits"), sample("train_digits")
    *_, images, _ = training.split()
    for image in images[:20]:
        again = digits.preprocess(training.draw(image))
        assert again.shape == (1, 8, 8)
        assert again.dtype == torch.float32
        torch.testing.assert_close(again, image, rtol=0, atol=0.51 / 255)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "LA", "1"])
def test_preprocess_takes_an_image_of_any_mode(sample: Sample, mode: str) -> None:
    prepared = sample("digits").preprocess(Image.new(mode, (31, 17)))
    assert prepared.shape == (1, 8, 8)
    assert 0 <= prepared.min() <= prepared.max() <= 1


def test_the_capture_of_the_five_is_that_of_the_model(repo: Path) -> None:
    model = f"{repo / 'sample_models' / 'digits.py'}:trained"
    image = str(repo / "sample_models" / "five.png")
    kept = hookscope.load(repo / "sample_models" / "five.safetensors")
    again = hookscope.capture(model, layers=["{conv,relu}*"], input=[image])
    assert list(kept) == list(again)
    for key, tensor in kept.items():
        torch.testing.assert_close(tensor, again[key])
