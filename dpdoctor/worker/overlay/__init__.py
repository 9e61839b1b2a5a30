"""The user's files: what the script writes goes to a copy that only it sees."""
