"""What traces show: the traced modes of a run, what they say in words, and all ranks on one axis."""
