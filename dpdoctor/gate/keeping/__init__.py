"""What outlives a gate: baselines for git, and the noise of machines."""
