"""Chats as callers write them: their messages, the tools that the model may call, and calls."""
