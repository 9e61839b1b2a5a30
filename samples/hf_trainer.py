"""Train a small GPT-2 from a configuration with the Trainer of transformers (needs transformers and accelerate).

torchrun --standalone --nproc-per-node 2 samples/hf_trainer.py
"""

import argparse
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Tokens(Dataset):
    """Random sentences of equal length."""

    def __init__(self, num_sentences, length, vocabulary):
        """Draw the sentences."""
        self.tokens = torch.randint(vocabulary, (num_sentences, length))

    def __len__(self):
        """Return how many sentences there are."""
        return len(self.tokens)

    def __getitem__(self, index):
        """Return one sentence, which is to be learned by heart."""
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def main():
    """Train under the Trainer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--batch-size", type=int, default=8)
    options = parser.parse_args()
    model = GPT2LMHeadModel(GPT2Config(vocab_size=512, n_positions=64, n_embd=128, n_layer=2, n_head=4))
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        num_train_epochs=options.epochs,
        per_device_train_batch_size=options.batch_size,
        use_cpu=not torch.cuda.is_available(),
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    Trainer(model=model, args=arguments, train_dataset=Tokens(options.samples, 64, 512)).train()


if __name__ == "__main__":
    main()
