"""Draftline: an asyncio streaming inference engine for language models."""
