"""Model families, their checkpoints, and tokenizers."""
