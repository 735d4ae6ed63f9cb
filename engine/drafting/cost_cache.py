"""``cached_costs``: measured step costs in a folder, so that later engines need not measure them.

A file is named by a digest of all that a step's duration depends on (`engine_digest`). It is read for a week: the
machine may have been busy while it was measured. The cache only saves time: a file that cannot be read, or does not
have the costs that are asked for, counts as absent.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from draftline.engine.config import EngineConfig
from draftline.engine.drafting.costs import Costs
from draftline.engine.fingerprint import engine_digest
from draftline.structured.cache_files import write_whole

logger = logging.getLogger(__name__)

_MAX_AGE_S = 7 * 24 * 3600.0
_SUFFIX = ".json"


def cached_costs(
    config: EngineConfig,
    facts: tuple[str, ...],
    folder: Path | None,
    shapes: Collection[tuple[int, int]],
    measure: Callable[[], Costs],
) -> Costs:
    """The costs of an engine's steps: those in the folder, or else new ones, which are kept.

    Args:
        config: the engine's options.
        facts: what else a step's duration depends on: the device, the libraries, the models' shapes.
        folder: where to keep costs, made when the first are kept; None keeps none.
        shapes: the rows and drafts of the steps.
        measure: measures all of them.
    """
    if folder is None:
        return measure()
    path = folder / f"{engine_digest(config, facts)}{_SUFFIX}"
    costs = _read(path, shapes)
    if costs is None:
        costs = measure()
        _keep(path, costs)
    return costs


def _read(path: Path, shapes: Collection[tuple[int, int]]) -> Costs | None:
    try:
        if not 0 <= time.time() - path.stat().st_mtime < _MAX_AGE_S:
            return None
        content = path.read_bytes()
    except OSError:
        return None
    try:
        costs = {(rows, drafts): float(seconds) for rows, drafts, seconds in json.loads(content)}
        if costs.keys() != set(shapes) or not all(0 < seconds < math.inf for seconds in costs.values()):
            raise ValueError("its steps are others")
    except (ValueError, TypeError) as error:
        logger.warning("%s is ignored: it is no file of step costs, or not whole (%s)", path, error)
        return None
    return costs


def _keep(path: Path, costs: Costs) -> None:
    content = json.dumps([[rows, drafts, seconds] for (rows, drafts), seconds in costs.items()])
    try:
        write_whole(path, content.encode())
    except OSError as error:
        logger.warning("step costs are not kept in %s: %s", path.parent, error)
        return
    for other in path.parent.glob(f"*{_SUFFIX}"):
        with suppress(OSError):  # another process may remove it at the same time
            if time.time() - other.stat().st_mtime > _MAX_AGE_S:
                other.unlink()
