"""What the analysis stands on: figures with intervals, windows, launches and traces, and the shape of run.json."""
