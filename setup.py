"""Builds the package.

With DRAFTLINE_COMPILE=1, what a step runs on the host for every row becomes extension modules (mypyc).
"""

from __future__ import annotations

import os

from setuptools import setup

# What plans a step, launches it and takes its results, row by row. These modules see each other's types; all others are
# interpreted, among them what other processes receive: a compiled class does not pickle as its source does.
COMPILED = (
    "engine/core.py",
    "engine/drafting/cache.py",
    "engine/drafting/policy.py",
    "engine/request/sequence.py",
    "engine/runner/graphs/captured_step.py",
    "engine/runner/graphs/executor.py",
    "engine/runner/graphs/inputs.py",
    "engine/runner/launched_step.py",
    "engine/runner/masks.py",
    "engine/runner/shapes.py",
    "engine/runner/slot_writer.py",
    "engine/scheduling/block_pool.py",
    "engine/scheduling/cache_manager.py",
    "engine/scheduling/draft_tally.py",
    "engine/scheduling/planner.py",
    "engine/scheduling/prefix_tree.py",
    "engine/scheduling/queue.py",
    "engine/scheduling/scheduler.py",
    "engine/scheduling/step_stats.py",
    "engine/streaming/detokenizer.py",
    "engine/streaming/live_requests.py",
    "engine/streaming/output_state.py",
    "spec/acceptance_rates.py",
    "spec/adaptive.py",
    "spec/offers.py",
    "spec/step_costs.py",
)

# `make types` checks the types, with those of the libraries. Without them compiling is several times as fast.
_MYPY_OPTIONS = (
    "--config-file=",
    "--no-site-packages",
    "--follow-imports=silent",
    "--ignore-missing-imports",
    "--disable-error-code=overload-cannot-match",  # in stubs, where grpc has no types
)

asked = os.environ.get("DRAFTLINE_COMPILE", "0")
if asked not in ("0", "1"):
    raise SystemExit(f"DRAFTLINE_COMPILE: must be 0 or 1, not {asked!r}")
compiles = asked == "1"
extensions = []
if compiles:
    try:
        from mypyc.build import mypycify
    except ImportError:
        pass  # pip runs this file a first time to learn of setup_requires. That time, setup() does not return.
    else:
        paths = [f"src/draftline/{path}" for path in COMPILED]
        extensions = mypycify([*_MYPY_OPTIONS, *paths], opt_level="2", debug_level="0")

setup(ext_modules=extensions, setup_requires=["mypy>=2.4"] if compiles else [])
if compiles and not extensions:
    raise SystemExit("DRAFTLINE_COMPILE=1 needs mypy to be installed, where pip does not isolate builds")
