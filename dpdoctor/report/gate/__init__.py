"""What a gate found: for a terminal, a job's summary, a CI system's test report and the changed lines themselves."""
