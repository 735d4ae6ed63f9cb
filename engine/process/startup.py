"""The first steps of a server's processes."""

from __future__ import annotations

import gc
import sys

from draftline.engine.process.log_format import LogFormat, start_logging
from draftline.kernels.host_gpu import has_gpu

_SWITCH_S = 0.0005
"""Seconds after which a running thread yields to a waiting one. With Python's default of 5 ms the step thread would
wait longer than a step takes."""


def start_process(log_level: str, log_format: LogFormat) -> None:
    """Start logging to standard error, and make threads take turns quickly.

    The garbage collector rests until `keep_heap`: what a start makes stays, and looking through it again and again
    takes a tenth of the time that imports take.
    """
    gc.disable()
    start_logging(log_level, log_format)
    sys.setswitchinterval(_SWITCH_S)


def keep_heap() -> None:
    """Let the garbage collector skip all objects that exist now: the modules and the model live as long as the process.

    Looking through them takes more than 0.1 s, in which no thread runs. So the garbage among them stays too: it is too
    little to be worth another look.
    """
    gc.freeze()
    gc.enable()


def runs_on_gpu(device: str) -> bool:
    """Whether an engine with this option ``device`` probably runs on a GPU. Does not import torch."""
    return device != "cpu" and has_gpu()
