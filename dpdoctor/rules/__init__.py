"""One file per rule; its name is the rule's, and nothing else is edited for a new one."""
