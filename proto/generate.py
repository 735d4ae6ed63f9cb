#!/usr/bin/env python3
"""Regenerate ``draftline.v1`` from its .proto files: ``python proto/generate.py``, or ``--check`` to compare and lint.

The generated modules and their type stubs are committed, so that neither users nor builds need a compiler. Run it in an
environment with the development dependencies: grpcio-tools brings the compiler, mypy-protobuf the stubs, buf-bin the
linter, and googleapis-common-protos the imported google/rpc/status.proto.

``--check`` also runs ``buf breaking`` against the last release, whose compiled sources are released.binpb: a clone need
not have the release's tag. ``--release`` writes that file, before a release is tagged.
"""

from __future__ import annotations

import argparse
import difflib
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

PROTO = Path(__file__).resolve().parent
SOURCES = sorted(path.relative_to(PROTO) for path in PROTO.rglob("draftline/**/*.proto"))
TARGET = PROTO.parent / "src"
RELEASED = PROTO / "released.binpb"


def _third_party_protos() -> Path:
    """The site-packages folder that holds google/rpc/status.proto."""
    spec = find_spec("google.rpc.status_pb2")
    if spec is None or spec.origin is None:
        raise SystemExit("googleapis-common-protos is not installed")
    return Path(spec.origin).parents[2]


def _run(*command: str) -> None:
    # The plug-ins are scripts beside the interpreter, which are not on PATH unless the environment is activated.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    subprocess.run(command, cwd=PROTO, check=True, env={**os.environ, "PATH": path})


def _protoc(*outputs: str) -> None:
    imports = (f"--proto_path={PROTO}", f"--proto_path={_third_party_protos()}")
    _run(sys.executable, "-m", "grpc_tools.protoc", *imports, *outputs, *map(str, SOURCES))


def generate(out: Path) -> None:
    """Write the modules and stubs of every source below ``out``."""
    stubs = (f"--mypy_out=quiet:{out}", f"--mypy_grpc_out=quiet:{out}")
    _protoc(f"--python_out={out}", f"--grpc_python_out={out}", *stubs)


def lint(scratch: Path) -> None:
    """Lint the sources with buf, and compare them with the last release's.

    buf gets them compiled, as one image, so it need not fetch their imports.
    """
    image = scratch / "image.binpb"
    _protoc("--include_imports", "--include_source_info", f"--descriptor_set_out={image}")
    config = str(PROTO / "buf.yaml")
    _run("buf", "lint", str(image), "--config", config)
    _run("buf", "breaking", str(image), "--against", str(RELEASED), "--config", config)


def _is_generated(path: Path) -> bool:
    return path.stem.endswith(("_pb2", "_pb2_grpc"))


def differences(fresh: Path, committed: Path) -> list[str]:
    """A unified diff from the committed files to the fresh ones, empty where they agree."""
    names = {
        path.relative_to(root)
        for root in (fresh, committed)
        for path in (root / "draftline" / "v1").glob("*.py*")
        if _is_generated(path)
    }
    lines: list[str] = []
    for name in sorted(names):
        old, new = (
            (root / name).read_text().splitlines() if (root / name).exists() else [] for root in (committed, fresh)
        )
        lines += difflib.unified_diff(old, new, f"committed/{name}", f"regenerated/{name}", lineterm="")
    return lines


def main() -> int:
    """Regenerate in place, or check that the sources are clean and that regenerating would change nothing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    todo = parser.add_mutually_exclusive_group()
    todo.add_argument("--check", action="store_true", help="change nothing; lint, and exit 1 where files differ")
    todo.add_argument("--release", action="store_true", help="write released.binpb")
    arguments = parser.parse_args()
    if arguments.release:
        _protoc("--include_imports", f"--descriptor_set_out={RELEASED}")
        return 0
    if not arguments.check:
        generate(TARGET)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        lint(Path(folder))
        generate(Path(folder))
        diff = differences(Path(folder), TARGET)
    if diff:
        print("\n".join(diff), file=sys.stderr)
    return 1 if diff else 0


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"failed: {' '.join(map(str, error.cmd))}") from None
