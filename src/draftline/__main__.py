"""``python -m draftline``: the command line."""

from __future__ import annotations

from draftline.engine.cli import main

if __name__ == "__main__":
    main()
