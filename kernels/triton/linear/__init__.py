"""Linear layers, dense and in eight bits, by number of rows."""
