"""Run a model over a dataset and store the features of its layers in a folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Annotated

from torch import nn

from hookscope.api.public import Given, Only, public
from hookscope.extraction.batch_runner import RunProgress
from hookscope.extraction.extraction import Extraction, extract_into
from hookscope.specs.choices import DEFAULT_MODEL
from hookscope.specs.extract_options import ExtractOptions
from hookscope.specs.request import InputRequest, LayerSelection, ModelRequest, Request
from hookscope.specs.run_options import RunOptions


@public
def extract(
    model: str | os.PathLike[str] | nn.Module = DEFAULT_MODEL,
    folder: str | os.PathLike[str] = "features/",
    *,
    layers: LayerSelection,
    input: Annotated[InputRequest, Only("input", "preprocess", "size", "mean", "std", "tokenizer")],
    loading: Given[ModelRequest],
    run: Annotated[RunOptions, Only("seed", "dtype", "device", "device_map", "max_memory")],
    options: Given[ExtractOptions],
    progress: Callable[[RunProgress], None] | None = None,
) -> Extraction:
    """Run a model over many inputs and write the outputs of its layers to a folder of shards.

    Memory does not grow with the number of inputs. Rows come in the order of the inputs. The bytes
    written depend only on the inputs, the model and the options, not on whether the run was
    interrupted.

    Args:
        folder: the folder for the results (see docs/datasets.md).
        input: folders, globs, ``@list.txt``, tar files of images; a Dataset with a length, a
            DataLoader that does not shuffle, or the spec of one: ``data.py:photos``. Texts are the
            lines of ``notes.txt``, or a column of ``reviews.jsonl:COLUMN``, of CSV, of Parquet, or
            of a folder of the package datasets; the default column is ``text``.
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
    request = Request("extract", loading.make(model=model), layers, input, run)
    return extract_into(
        os.fspath(folder), request, options.make(), progress or (lambda state: None)
    )
