"""The parent's side: start the ranks, watch them, sample the machine, end them. Never imports torch."""
