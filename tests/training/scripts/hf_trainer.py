# A tiny language model trained by the Trainer of transformers.
import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from reproducible import print_result, seed_all
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PrinterCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.utils import logging

logging.disable_progress_bar()
seed_all(11)
set_seed(11)
config = GPT2Config(
    vocab_size=40, n_positions=12, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
)
model = GPT2LMHeadModel(config)
tokens = torch.randint(0, 40, (24, 12))
data = [{"input_ids": row, "labels": row} for row in tokens]
arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    max_steps=6,
    learning_rate=1e-2,
    logging_steps=1,
    save_steps=3,
    eval_strategy="steps",
    eval_steps=3,
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
    seed=11,
)
trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data[:4])
trainer.remove_callback(PrinterCallback)  # it prints times
trainer.train()
history = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
print(history, sorted(os.listdir("out")))
print_result(history, model)
