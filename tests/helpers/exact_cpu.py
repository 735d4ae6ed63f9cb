"""Whether this CPU gives a row the same bits in every batch.

Seen so on AVX2 (AMD) and AVX-512 (AMD, Intel), with all that the CPU has. Under a lowered capability torch, oneDNN and MKL
choose kernels of different instruction sets for one row and for many, and results are only close.
"""

from __future__ import annotations

import os

import torch

_LOWERED = {"ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA"} & os.environ.keys()

EXACT = not _LOWERED and torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
