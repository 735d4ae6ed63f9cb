"""What the tests of structured output share."""

from __future__ import annotations

import sys
from pathlib import Path

# Test modules are imported each by itself, so what they share must be found as a top-level module.
sys.path.insert(0, str(Path(__file__).parent))
