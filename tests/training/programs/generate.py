# A language model that generates with a cache and prints each token as it comes.
import torch
from tiny_tokenizer import make_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, TextStreamer

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
tokenizer = make_tokenizer()
prompt = tokenizer("the cat", return_tensors="pt")
streamer = TextStreamer(tokenizer)
ids = llm.generate(
    input_ids=prompt["input_ids"],
    attention_mask=prompt["attention_mask"],
    max_new_tokens=6,
    do_sample=True,
    streamer=streamer,
)
print(ids.tolist())
