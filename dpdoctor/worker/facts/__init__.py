"""Facts of the host inside a rank: what waits for the device, what happens between steps, what takes the cores."""
