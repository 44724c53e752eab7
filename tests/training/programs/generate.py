# A language model that generates with a cache and prints each token as it comes.
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TextStreamer

words = ["<pad>", "<unk>", "the", "a", "cat", "dog", "sat", "on", "mat", "bad", "very"]
vocabulary = {word: number for number, word in enumerate(words)}
level = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
level.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=level, pad_token="<pad>", unk_token="<unk>", eos_token="<pad>"
)

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=13,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    pad_token_id=0,
    eos_token_id=0,
    bos_token_id=0,
)
llm = LlamaForCausalLM(config).eval()
prompt = tokenizer("the cat", return_tensors="pt")
ids = llm.generate(
    input_ids=prompt["input_ids"],
    attention_mask=prompt["attention_mask"],
    max_new_tokens=6,
    do_sample=True,
    streamer=TextStreamer(tokenizer),
)
print(ids.tolist())
