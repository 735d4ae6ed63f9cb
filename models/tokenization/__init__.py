"""Tokenizers and chat templates: text and conversations to token ids, and ids to bytes."""
