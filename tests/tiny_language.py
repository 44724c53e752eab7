"""Folders of small language models with tokenizers that are trained on one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

LINE = "The capital of France is Paris, and Berlin is the capital of Germany."
SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}


def byte_level(**options: Any) -> Any:
    """A byte-level tokenizer with the tokens <eos> and <pad>."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<eos>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([LINE] * 9, trainer)
    return _wrapped(tokenizer, eos_token="<eos>", pad_token="<pad>", **options)


def word_piece(**options: Any) -> Any:
    """A WordPiece tokenizer, which adds [CLS] and [SEP]."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator([LINE] * 9, trainer)
    ends = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    return _wrapped(tokenizer, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", **options)


def _wrapped(tokenizer: Tokenizer, **options: Any) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **options)


def save(folder: Path, model_class: Any, config: Any, tokenizer: Any) -> str:
    """Save a model with random weights and its tokenizer; return its spec."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model_class(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return f"hf:{folder}"


def gpt2(folder: Path, **options: Any) -> str:
    """GPT-2 with a byte-level tokenizer."""
    from transformers import GPT2Config, GPT2LMHeadModel

    tokenizer = byte_level(**options)
    config = GPT2Config(
        vocab_size=len(tokenizer) + 3,  # more rows than tokens, as in many models
        n_positions=64,
        n_embd=24,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    return save(folder, GPT2LMHeadModel, config, tokenizer)


def llama(folder: Path, **options: Any) -> str:
    """Llama with a byte-level tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = byte_level(**options)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        intermediate_size=32,
        num_key_value_heads=1,
        max_position_embeddings=64,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=1,
        **SIZES,
    )
    return save(folder, LlamaForCausalLM, config, tokenizer)


def bert(folder: Path) -> str:
    """BERT for masked tokens with a WordPiece tokenizer."""
    from transformers import BertConfig, BertForMaskedLM

    tokenizer = word_piece()
    config = BertConfig(
        vocab_size=len(tokenizer), intermediate_size=32, max_position_embeddings=64, **SIZES
    )
    return save(folder, BertForMaskedLM, config, tokenizer)


def t5(folder: Path) -> str:
    """T5, an encoder-decoder, with a byte-level tokenizer."""
    from transformers import T5Config, T5ForConditionalGeneration

    tokenizer = byte_level()
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=24,
        d_kv=12,
        d_ff=32,
        num_layers=2,
        num_heads=2,
        decoder_start_token_id=1,
        pad_token_id=1,
        eos_token_id=0,
    )
    return save(folder, T5ForConditionalGeneration, config, tokenizer)
