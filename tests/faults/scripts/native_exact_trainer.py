"""Trains a small GPT-2 with dropout under the Trainer, with loader workers and a checkpoint; says what came of it."""

import hashlib

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.manual_seed(3)
sentences = [{"input_ids": row, "labels": row} for row in torch.randint(64, (96, 8))]
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=8, n_embd=16, n_layer=1, n_head=2))
arguments = TrainingArguments(
    output_dir="out",
    num_train_epochs=2,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    dataloader_num_workers=1,
    use_cpu=True,
    save_strategy="epoch",
    report_to="none",
    disable_tqdm=True,
)
trainer = Trainer(model=model, args=arguments, train_dataset=sentences)
trainer.train()
if trainer.is_world_process_zero():
    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    print("weights", hashlib.sha256(weights).hexdigest(), flush=True)
