"""Inside a rank: wrap the script, watch its steps, agree on windows, record. The only place that imports torch."""
