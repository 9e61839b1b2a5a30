"""What a gate is asked for, one file each: two checkouts by turns, a run against a baseline, counters, calibration."""
