"""One file per ablation arm; the file's name is what `--arms` takes. Importing an arm does not import torch."""
