"""The README's Python examples, run as they stand, and the names that it tells clients."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from draftline.v1 import engine_pb2

README = (Path(__file__).resolve().parents[1] / "README.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_the_readme_has_examples() -> None:
    assert len(EXAMPLES) >= 2


@pytest.mark.long
@pytest.mark.usefixtures("shared_weights")
def test_the_examples_run_and_print_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each by itself, though in one process and with the same weights: loading would take most of the time."""
    script, printed = tmp_path / "example.py", []
    for example in EXAMPLES:
        script.write_text(example)
        runpy.run_path(str(script), run_name="__main__")
        printed.append(capsys.readouterr().out)
    assert all(len(text.split()) > 5 for text in printed)
    # Greedy tokens may differ between kinds of CPU, so only the form of the promised line counts.
    promised = r"^{}name='.*' languages=\[.*\]$"
    assert re.search(promised.format("# "), "\n".join(EXAMPLES), re.MULTILINE)
    assert re.search(promised.format(""), "".join(printed), re.MULTILINE)


def test_the_methods_that_the_readme_calls_exist() -> None:
    called = set(re.findall(r"draftline\.v1\.(\w+)/(\w+)", README))
    services = engine_pb2.DESCRIPTOR.services_by_name
    assert called
    assert called <= {(name, method) for name, service in services.items() for method in service.methods_by_name}


def test_the_links_to_files_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!https?://)([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (Path(__file__).resolve().parents[1] / link).exists()] == []


def test_other_languages_are_told_what_the_proto_imports() -> None:
    proto = (Path(__file__).resolve().parents[1] / "proto/draftline/v1/engine.proto").read_text()
    imports = [name for name in re.findall(r'^import "(.*)";$', proto, re.MULTILINE) if "google/protobuf/" not in name]
    assert imports
    assert [name for name in imports if f"`{name}`" not in README] == []


def test_the_speeds_are_those_of_the_benchmarks() -> None:
    figures = re.compile(r"\b\d+,\d{3}\b")
    stated = set(figures.findall(README))
    assert stated
    assert (
        stated - set(figures.findall((Path(__file__).resolve().parents[1] / "docs/benchmarks.md").read_text())) == set()
    )
