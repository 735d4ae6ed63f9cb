"""The host's memory that this process may still take: what Linux has left, and what cgroups and ``ulimit -v`` allow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class HostMemory:
    """A limit on this process's memory, in bytes.

    Attributes:
        whose: what sets the limit: "the machine", a cgroup's path, or the address space.
        total: the limit.
        free: what can be taken until it is reached; the page cache counts as free.
        own: what this process has taken.
    """

    whose: str
    total: int
    free: int
    own: int


def host_memory(root: Path = Path("/")) -> HostMemory | None:
    """The tightest limit; None on a system without Linux's ``/proc/meminfo``.

    Args:
        root: the root of the file system; another one in tests.
    """
    try:
        status = _numbers(root / "proc/self/status")
        own = status.get("VmRSS:", 0) << 10
        machine = _numbers(root / "proc/meminfo")
        limits = [HostMemory("the machine", machine["MemTotal:"] << 10, machine["MemAvailable:"] << 10, own)]
    except (OSError, KeyError):
        return None
    limits += [HostMemory(f"cgroup {name}", total, max(0, total - used), own) for name, total, used in _cgroups(root)]
    if (space := _address_space(root)) is not None:
        taken = status.get("VmSize:", 0) << 10
        limits.append(HostMemory("its address space (ulimit -v)", space, max(0, space - taken), taken))
    return min(limits, key=lambda limit: limit.free)


def _address_space(root: Path) -> int | None:
    """The most address space that this process may have, in bytes; None where nothing limits it."""
    name = "Max address space"
    try:
        lines = (root / "proc/self/limits").read_text().splitlines()
    except OSError:
        return None
    soft = next((line.removeprefix(name).split()[0] for line in lines if line.startswith(name)), "unlimited")
    return None if soft == "unlimited" else int(soft)


def _cgroups(root: Path) -> Iterator[tuple[str, int, int]]:
    """Name, limit and use of every memory cgroup that this process is in, version 1 or 2."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, limit, use, cache = root / "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            limit, use, cache = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
        else:
            continue
        # A container sees its own cgroup at the mount point, and its parents' not at all.
        names = [Path(path), *Path(path).parents]
        for name in names:
            folder = base / str(name).lstrip("/")
            try:
                total, used = int((folder / limit).read_text()), int((folder / use).read_text())
                used -= _numbers(folder / "memory.stat").get(cache, 0)
            except (OSError, ValueError):  # not there, or "max"
                continue
            if total < 1 << 62:  # version 1 writes a huge number where there is no limit
                yield str(name), total, used


def _numbers(path: Path) -> dict[str, int]:
    """The numbers of a file with a name and a number in each line."""
    found = {}
    for line in path.read_text().splitlines():
        name, _, rest = line.partition(" " if "\t" not in line else "\t")
        number = rest.split()[:1]
        if number and number[0].isdigit():
            found[name] = int(number[0])
    return found
