"""Speculative decoding against plain decoding: prompts, rounds, and what they show."""
