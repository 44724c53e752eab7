# A pipeline of transformers for texts.
import torch
from tiny_tokenizer import make_tokenizer
from transformers import BertConfig, BertForSequenceClassification, pipeline

torch.manual_seed(0)
config = BertConfig(
    vocab_size=13, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24
)
classifier = pipeline(
    "text-classification",
    model=BertForSequenceClassification(config),
    tokenizer=make_tokenizer(),
    device="cpu",
)
for result in classifier(["the cat sat on a mat", "a very bad dog"]):
    print(result["label"], result["score"])
