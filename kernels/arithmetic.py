"""``ARITHMETIC_REVISION``: the number of the rules by which kernels add and round.

An output is a function of its prompt, parameters and seed because every operation has one rule: which products are
added in which order, in which type, and where a result is rounded. docs/exactness.md states the rules. The revision
names them in `system_fingerprint`, so that a client can tell two engines of different rules apart.

Raise it by one in each commit after which any supported device may compute other bits for the same request:

- an operation adds in another order, keeps its sums in another type, or rounds at another point;
- an operation uses another instruction with other rounding, such as a fused multiply-add or an approximate division;
- tiles or parts that belong to a rule change, such as the keys of an attention part;
- the random numbers of sampling, or their use, change.

Leave it alone where every bit stays, however fast the kernel becomes.
"""

from __future__ import annotations

ARITHMETIC_REVISION = 11
