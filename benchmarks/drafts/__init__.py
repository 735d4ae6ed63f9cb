"""The parts of speculation.py: prompts and plot."""
