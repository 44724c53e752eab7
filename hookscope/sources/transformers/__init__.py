"""Models and tokenizers of the package transformers."""

from hookscope.files.optional_packages import optional_package

with optional_package("transformers", "transformers", "A model or tokenizer of transformers"):
    import transformers  # noqa: F401
