"""Names of tensors in a checkpoint mapped to names in the model, by prefixes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from hookscope.errors import WeightsFileError
from hookscope.files.suggestions import did_you_mean
from hookscope.files.words import join_first
from hookscope.specs.module_names import begins_with

_WRAPPERS = re.compile(
    r"(?:(?<=\.)|^)(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
)

# A tensor name that occurs in one family of models only, without its prefix.
_FAMILIES = {
    "a ResNet of torchvision or timm": r"layer4\.0\.conv1\.weight",
    "a DenseNet of torchvision": r"features\.denseblock1\..*",
    "a VGG or AlexNet of torchvision": r"classifier\.6\.weight",
    "a MobileNet or EfficientNet of torchvision": r"features\.1(\.0)?\.(block|conv)\.0\.0\.weight",
    "a ConvNeXt of torchvision": r"features\.1\.0\.layer_scale",
    "a Swin transformer of torchvision": r"features\.1\.0\.attn\.qkv\.weight",
    "a vision transformer of torchvision": r"encoder\.layers\.encoder_layer_0\..*",
    "a vision transformer of timm": r"blocks\.0\.attn\.qkv\.weight",
    "BERT of transformers": r"(.*\.)?encoder\.layer\.0\.attention\.self\.query\.weight",
    "GPT-2 of transformers": r"(.*\.)?h\.0\.attn\.c_attn\.weight",
    "Llama or a similar model of transformers": r"(.*\.)?layers\.0\.self_attn\.q_proj\.weight",
}

Names = dict[str, str]  # from the name in the file to the name in the model


@dataclass(frozen=True)
class ResolvedNames:
    """The name in the model of each name in a file.

    Attributes:
        names: from the name in the file to that in the model.
        stripped: the prefixes of wrappers that were removed.
        renamed: the number of names in which a prefix was replaced.
    """

    names: Names
    stripped: tuple[str, ...]
    renamed: int


def resolve_names(
    stored: Iterable[str], own: Collection[str], rename: Iterable[tuple[str, str]], path: str
) -> ResolvedNames:
    """Return the name in the model of each name in the file, by the prefixes to ``rename``."""
    plain, stripped = _strip_wrappers(list(stored), own)
    pairs = dict(sorted(rename, key=lambda pair: len(pair[0]), reverse=True))
    names: Names = {}
    owners: Names = {}
    renamed = 0
    for name, short in plain.items():
        old = next((old for old in pairs if old and begins_with(name, old)), None)
        start = short if old is None else name
        if old is None:
            old = next((old for old in pairs if begins_with(short, old)), None)
        names[name] = short
        if old is not None:
            renamed += 1
            rest = _WRAPPERS.sub("", start.removeprefix(old).removeprefix("."))
            names[name] = ".".join(part for part in (pairs[old], rest) if part)
        first = owners.setdefault(names[name], name)
        if first != name:
            raise WeightsFileError(
                f"{first!r} and {name!r} in {path!r} would both become {names[name]!r}.",
                "Rename each prefix to a different one: --rename OLD=NEW.",
            )
    for old in pairs:
        if not any(begins_with(name, old) for pair in plain.items() for name in pair):
            raise WeightsFileError(
                f"No key in {path!r} begins with {old!r}: it contains {join_first(plain)}.",
                did_you_mean(old, {short.partition(".")[0] for short in plain.values()})
                or "A prefix consists of whole parts of a key, as in --rename backbone=features.",
            )
    return ResolvedNames(names, stripped, renamed)


def model_family(names: Iterable[str]) -> str:
    """Return the family of models that has tensors of these names; empty if not known."""
    plain = [_WRAPPERS.sub("", name).removeprefix("module.") for name in names]
    return next(
        (family for family, name in _FAMILIES.items() if any(re.fullmatch(name, n) for n in plain)),
        "",
    )


def has_prefix(names: Iterable[str], prefix: str) -> bool:
    """Whether a name begins with a prefix, with prefixes of wrappers or without them."""
    return any(
        begins_with(name, prefix)
        or begins_with(_WRAPPERS.sub("", name).removeprefix("module."), prefix)
        for name in names
    )


def _strip_wrappers(names: list[str], known: Collection[str]) -> tuple[Names, tuple[str, ...]]:
    """The names without the prefixes of wrappers, and these prefixes."""
    own = set(known)
    stripped: dict[str, None] = {}
    plain = {name: name for name in names}
    for name in names:
        if name not in own:
            stripped.update(dict.fromkeys(f"{prefix}." for prefix in _WRAPPERS.findall(name)))
            plain[name] = _WRAPPERS.sub("", name)
    # A data-parallel wrapper prefixes every name. A model may have a module of that name too.
    while (
        plain
        and all(short.startswith("module.") for short in plain.values())
        and own.isdisjoint(plain.values())
    ):
        stripped["module."] = None
        plain = {name: short.removeprefix("module.") for name, short in plain.items()}
    return plain, tuple(stripped)
