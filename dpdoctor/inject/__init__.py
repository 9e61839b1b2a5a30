"""What goes first on the import path of a command that starts its own ranks, and of all that a script starts."""
