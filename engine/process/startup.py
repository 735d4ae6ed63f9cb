"""What the processes of a server begin with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from draftline.engine.process.log_format import start_logging

_SWITCH_S = 0.0005
"""After how long a thread that runs Python makes way for one that waits for its turn. With Python's own five milliseconds
the step thread would wait longer than a step takes."""


def start_process(log_level: str, log_format: Literal["text", "json"]) -> None:
    """Log to standard error, and let threads take turns quickly."""
    start_logging(log_level, log_format)
    sys.setswitchinterval(_SWITCH_S)


def has_gpu() -> bool:
    """Whether the machine has a GPU that torch could use, as far as can be told without torch."""
    return Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists()
