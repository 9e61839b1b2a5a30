"""Whether a change makes training slower: judged by paired launches, by stored baselines or by counters."""
