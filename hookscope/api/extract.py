"""Run a model over a dataset and store the features of its layers in a folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from hookscope.extraction.batch_runner import RunProgress
from hookscope.extraction.extraction import Extraction, extract_into
from hookscope.specs.choices import DECODINGS, DEFAULT_MODEL
from hookscope.specs.extract_options import ExtractOptions
from hookscope.specs.request import InputRequest, LayerSelection, ModelRequest, Request
from hookscope.specs.run_options import RunOptions


def extract(
    model: str | os.PathLike[str] | nn.Module = DEFAULT_MODEL,
    folder: str | os.PathLike[str] = "features/",
    *,
    layers: str | Iterable[str] = (),
    types: str | Iterable[str] = (),
    depth: int | None = None,
    leaves: bool = False,
    what: str | Iterable[str] = ("output",),
    input: Any = None,
    preprocess: str | None = None,
    size: int | tuple[int, int] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    weights: str | os.PathLike[str] = "random",
    rename: Mapping[str, str] | None = None,
    partial: bool = False,
    model_args: Mapping[str, Any] | None = None,
    method: str | None = None,
    attn: str | None = None,
    trust: bool = False,
    onnx_optimize: str | None = None,
    adapter: str | os.PathLike[str] | None = None,
    seed: int = 0,
    dtype: str | None = None,
    device: str | None = None,
    device_map: str | None = None,
    max_memory: Mapping[str, int] | None = None,
    batch: int | None = None,
    memory: int = 2 * 10**9,
    workers: int | None = None,
    shard_size: int | None = None,
    every: int = 1,
    reduce: str | None = None,
    store_dtype: str | None = None,
    stats_only: bool = False,
    decode: str = DECODINGS[0],
    stop: bool = True,
    skip_bad: bool = False,
    resume: bool = False,
    force: bool = False,
    channels_last: bool = False,
    autocast: str | None = None,
    max_tokens: int | None = None,
    progress: Callable[[RunProgress], None] | None = None,
) -> Extraction:
    """Run a model over many inputs and write the outputs of its layers to a folder of shards.

    Memory does not grow with the number of inputs. Rows come in the order of the inputs. The bytes
    written depend only on the inputs, the model and the options, not on whether the run was
    interrupted. Keywords that ``capture`` also has mean the same here.

    Args:
        folder: the folder for the results (see docs/datasets.md).
        input: folders, globs, ``@list.txt``, tar files of images; a Dataset with a length, a
            DataLoader that does not shuffle, or the spec of one: ``data.py:photos``. Texts are the
            lines of ``notes.txt``, or a column of ``reviews.jsonl:COLUMN``, of CSV, of Parquet, or
            of a folder of the package datasets; the default column is ``text``.
        tokenizer: the tokenizer of texts; see ``capture``.
        batch: the batch size. None: as large as ``memory`` allows, up to 64, and on a CPU up to
            5 MB of inputs.
        memory: memory budget in bytes, excluding the model (estimated).
        workers: processes that read and preprocess inputs; None for the number of cores minus one.
        shard_size: approximate size of one file in bytes. None: up to 512 MB, and at least 16 files
            if there are enough batches.
        every: use every N-th input, starting with the first.
        reduce: reduce each row: ``mean``, ``max``, ``first``, ``last``, ``cls``, ``flatten``,
            ``topk:K``, ``pca:K`` or ``histogram``, optionally followed by ``:space``, ``:tokens``
            or ``:all``.
        store_dtype: dtype of the stored floating-point values: ``float16``, ``bfloat16`` or
            ``int8``. The model computes in ``dtype``.
        stats_only: store statistics of each channel over all inputs instead of rows.
        decode: ``exact`` for the same pixels as ``capture``; ``fast`` to scale a JPEG down while it
            is decoded, to at least twice the model's input size.
        stop: stop each forward pass after the last selected layer, if a pass on the meta device
            shows that the order of layers does not depend on the data.
        skip_bad: skip inputs that cannot be used. Their rows are NaN and marked in the table.
        resume: resume an interrupted run with the same options, and rewrite damaged shards.
        force: replace the results of another run.
        channels_last: use this memory format for images and weights.
        autocast: ``bfloat16`` or ``float16``, for ``torch.autocast``.
        max_tokens: cut longer texts to so many tokens, special tokens included.
        progress: called with the state of the run after each batch.

    Returns:
        The manifest of the folder, and a summary of the run.

    Raises:
        ModelError, LayerError, InputError, RequestError: a spec, a pattern or a file is wrong,
            ``reduce`` cannot be applied to a layer, or ``folder`` contains something else.
        ForwardError: the model itself raised; names the layer.
        StoreError: the results cannot be written, for example because the disk is full. Finished
            shards stay.

    Example:
        >>> import hookscope, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     done = hookscope.extract("resnet18", folder, layers="avgpool", input="img.png")
        >>> done.rows, [key["shape"] for key in done.manifest["keys"]]
        (1, [[512, 1, 1]])
    """
    request = Request(
        "extract",
        ModelRequest(
            model, weights, rename, partial, model_args, method, attn, trust, onnx_optimize, adapter
        ),
        LayerSelection(layers, types, depth, leaves),
        InputRequest(input, None, preprocess, size, mean, std, tokenizer),
        RunOptions(seed, dtype, device, device_map, max_memory),
    )
    options = ExtractOptions(
        what=what,
        batch=batch,
        memory=memory,
        workers=workers,
        shard_size=shard_size,
        every=every,
        reduce=reduce,
        store_dtype=store_dtype,
        stats_only=stats_only,
        decode=decode,
        stop=stop,
        skip_bad=skip_bad,
        resume=resume,
        force=force,
        channels_last=channels_last,
        autocast=autocast,
        max_tokens=max_tokens,
    )
    return extract_into(os.fspath(folder), request, options, progress or (lambda state: None))
