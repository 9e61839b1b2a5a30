"""One file per ablation; the file's name is what `--ablations` takes. Importing an ablation does not import torch."""
