"""The options of the input: files, generated tensors, its shape, and preprocessing of images."""

from __future__ import annotations

from hookscope.cli.commands import combine
from hookscope.cli.declared import options_of
from hookscope.specs.request import InputRequest

shape = options_of(InputRequest, "shape")
input = options_of(InputRequest, "input")
images = options_of(InputRequest, "preprocess", "size", "mean", "std")
inputs = combine(input, shape, images)
tokenizer = options_of(InputRequest, "tokenizer")
texts = options_of(InputRequest, "tokenizer", "chat")
