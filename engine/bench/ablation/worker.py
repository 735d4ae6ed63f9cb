"""The engine process of a variant: ``python -m draftline.engine.bench.ablation.worker NAMES FD``."""

from __future__ import annotations

import sys

from draftline.engine.process.worker import main

if __name__ == "__main__":
    names = [name for name in sys.argv[1].split(",") if name]
    from draftline.engine.bench.ablation.substitutes import substitutes_of

    main(int(sys.argv[2]), substitutes_of(names))
