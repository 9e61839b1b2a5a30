"""From the script's module to the mode's: which module, how its call is routed, and the proof that it took effect."""
