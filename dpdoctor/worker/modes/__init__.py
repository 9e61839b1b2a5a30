"""One file per mode; the file's name is the value of `--modes`. Importing a mode does not import torch."""
