"""What people read, as documents of blocks: of a run and of a comparison; formats draw them."""
