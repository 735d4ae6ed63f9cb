"""Parts of speculation.py: prompts and plot."""
