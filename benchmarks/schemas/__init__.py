"""Parts of structured.py and constrained.py: schema coverage, and documents for extraction."""
