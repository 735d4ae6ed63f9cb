"""Model families, the checkpoints that they are read from, and tokenizers."""
