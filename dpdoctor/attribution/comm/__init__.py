"""Communication: which calls a rank made, what they cost, and what DDP, FSDP and DataParallel made of them."""
