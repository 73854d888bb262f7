"""The agent: watches a live job and runs the chain on it."""
