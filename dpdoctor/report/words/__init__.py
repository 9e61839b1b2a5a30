"""What is said, alike on the page, in the terminal and elsewhere: verdicts, bottlenecks, what to change first."""
