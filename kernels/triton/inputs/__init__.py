"""A step's inputs from the slot table, and drafts by n-gram lookup."""
