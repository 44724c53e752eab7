"""Write the folder gpt2: a small GPT-2 with random weights, and a tokenizer made of one sentence.

python make_gpt2.py
hookscope capture hf:gpt2 --input "text:The capital of France is"
"""

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

line = "The capital of France is Paris, and Berlin is the capital of Germany."
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
letters = pre_tokenizers.ByteLevel.alphabet()
special = ["<eos>", "<pad>"]
trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=letters)
tokenizer.train_from_iterator([line] * 9, trainer)
fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
    tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>"
)
fast.save_pretrained("gpt2")
config = GPT2Config(
    vocab_size=400,
    n_positions=64,
    n_embd=24,
    n_layer=2,
    n_head=2,
    bos_token_id=0,
    eos_token_id=0,
)
torch.manual_seed(0)
GPT2LMHeadModel(config).save_pretrained("gpt2")
