"""What goes first on the import path of a command that starts its own ranks: it reaches their processes."""
