"""Chats as callers write them: their messages, the tools that the model may call, calls, and the plan to read them."""
