"""What a build holds: one top-level package with its types, the same from a checkout, an sdist and an editable install."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import shutil
import site
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Wheels are not compressed: that takes most of the time.
BUILD = (sys.executable, "-m", "build", "--no-isolation", "--config-setting=--build-option=--compression=stored")
LAYERS = ("engine", "kernels", "models", "quant", "spec", "structured")


def sources(root: Path) -> set[str]:
    """Every file that belongs in the package, as the wheel names it."""
    folders = [*((root / layer, layer) for layer in LAYERS), (root / "src/draftline/v1", "v1")]
    names = {
        f"draftline/{name}/{path.relative_to(folder).as_posix()}"
        for folder, name in folders
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    return names | {f"draftline/{path.name}" for path in (root / "src/draftline").iterdir() if path.is_file()}


def members(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def run(*command: str | Path, cwd: Path) -> str:
    result = subprocess.run(
        list(map(str, command)), cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    assert result.returncode == 0, f"{' '.join(map(str, command))}:\n{result.stdout}"
    return result.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, symlinks and all, so that no build writes into the repository."""
    copy = tmp_path_factory.mktemp("checkout") / "draftline"
    unwanted = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "tests", "docs")
    return Path(shutil.copytree(ROOT, copy, symlinks=True, ignore=unwanted))


@pytest.fixture(scope="module")
def wheel(checkout: Path) -> Path:
    run(*BUILD, "--wheel", "--outdir", "from-checkout", cwd=checkout)
    (built,) = (checkout / "from-checkout").glob("*.whl")
    return built


def environment(folder: Path) -> Path:
    """The interpreter of a virtual environment that sees our dependencies, and not this repository's own install."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    (site_packages,) = folder.glob("lib/python*/site-packages")
    # The .pth files in a folder that a .pth file names are not read: our editable install stays out of sight.
    (site_packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return python


def pip_install(python: Path, *arguments: str | Path, cwd: Path) -> None:
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--ignore-installed", "--no-index")
    run(*pip, "--no-build-isolation", "--disable-pip-version-check", *arguments, cwd=cwd)


def imported_from(python: Path, module: str, cwd: Path) -> Path:
    code = f"import importlib.util; print(importlib.util.find_spec({module!r}).origin)"
    return Path(run(python, "-I", "-c", code, cwd=cwd).strip())


def test_the_only_top_level_name_is_draftline(wheel: Path) -> None:
    assert {name.split("/")[0] for name in members(wheel)} == {"draftline"}


def test_the_wheel_holds_every_source_and_nothing_else(checkout: Path, wheel: Path) -> None:
    assert members(wheel) == sources(checkout)


def test_the_wheel_is_typed(wheel: Path) -> None:
    data = {"draftline/py.typed", "draftline/v1/engine_pb2.pyi", "draftline/v1/engine_pb2_grpc.pyi"}
    assert data | {"draftline/structured/json_schema/metaschemas.json"} <= members(wheel)


def test_the_wheel_has_the_command_and_the_license(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = {name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name}
        entry_points = archive.read(f"{metadata}/entry_points.txt").decode()
        license_text = archive.read(f"{metadata}/licenses/LICENSE").decode()
    assert "draftline = draftline.engine.cli:main" in entry_points
    assert license_text == (ROOT / "LICENSE").read_text()


@pytest.mark.slow
def test_a_wheel_from_the_sdist_is_the_same(checkout: Path, wheel: Path) -> None:
    run(*BUILD, "--outdir", "from-sdist", cwd=checkout)
    (sdist,) = (checkout / "from-sdist").glob("*.tar.gz")
    (again,) = (checkout / "from-sdist").glob("*.whl")
    with tarfile.open(sdist) as archive:
        assert not [member.name for member in archive if member.issym()]
    assert members(again) == members(wheel)


def test_an_installed_wheel_is_imported_from_site_packages(wheel: Path, tmp_path: Path) -> None:
    python = environment(tmp_path / "env")
    pip_install(python, wheel, cwd=tmp_path)
    origin = imported_from(python, "draftline.engine.params", tmp_path)
    assert origin.is_relative_to(tmp_path / "env")
    assert not origin.is_symlink()


_ANSWERS = """
import draftline.engine.core, draftline.spec.adaptive
from draftline import LLM, Constraint, SamplingParams
print(draftline.engine.core.__file__, draftline.spec.adaptive.__file__)
with LLM("smollm2", max_num_seqs=4) as llm:
    common = {"seed": 5, "max_tokens": 24, "stop": ["zzz"]}
    many = {"logprobs": 2, "prompt_logprobs": 1, "bad_words": [" the"], "logit_bias": {5: 2.0}, "min_tokens": 4}
    params = [
        SamplingParams(temperature=0, **common),
        SamplingParams(**common),
        SamplingParams(repetition_penalty=1.1, top_k=50, **many, **common),
        *2 * [SamplingParams(**common)],
    ]
    # The device walks the automaton, and the host the grammar.
    constraints = [None] * 3 + [Constraint(regex="[a-f]+(cab)+!"), Constraint(grammar='start: "x" /[a-z]+/ ("," /[0-9]+/)+')]
    prompts = ["One, two,", "A cat is", "The sea", "A word:", "Numbers:"]
    for output in llm.generate(prompts, params, constraint=constraints, use_tqdm=False):
        (one,) = output.outputs
        print(one.token_ids, one.finish_reason, one.logprobs, output.prompt_logprobs)
"""


@pytest.mark.slow
def test_a_compiled_wheel_gives_the_same_answers(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTLINE_COMPILE", "1")
    compiled = shutil.copytree(checkout, tmp_path / "compiled", symlinks=True)
    run(*BUILD, "--wheel", "--outdir", "wheels", cwd=compiled)
    (wheel,) = (compiled / "wheels").glob("*.whl")
    python = environment(tmp_path / "env")
    pip_install(python, wheel, cwd=tmp_path)
    modules, *answers = run(python, "-I", "-c", _ANSWERS, cwd=tmp_path).splitlines()
    assert all(module.endswith(".so") for module in modules.split())
    of_sources, *expected = run(sys.executable, "-I", "-c", _ANSWERS, cwd=tmp_path).splitlines()
    assert all(module.endswith(".py") for module in of_sources.split())
    assert answers == expected
    assert len(answers) == 5


@pytest.fixture(scope="module")
def editable(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has the checkout installed in place."""
    python = environment(tmp_path_factory.mktemp("editable") / "env")
    pip_install(python, "--editable", checkout, cwd=checkout)
    return python


@pytest.mark.slow
def test_an_editable_install_is_imported_from_the_checkout(editable: Path, checkout: Path, tmp_path: Path) -> None:
    origin = imported_from(editable, "draftline.engine.params", tmp_path)
    assert origin.resolve() == checkout / "engine" / "params.py"


@pytest.mark.slow
def test_no_layer_is_a_top_level_package_of_an_editable_install(editable: Path, tmp_path: Path) -> None:
    code = f"from importlib.util import find_spec; print([name for name in {LAYERS} if find_spec(name)])"
    assert run(editable, "-I", "-c", code, cwd=tmp_path).strip() == "[]"


def test_the_makefile_installs_the_torch_that_the_package_needs() -> None:
    (in_makefile,) = re.findall(r"^TORCH := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    (in_project,) = [line for line in PROJECT["dependencies"] if Requirement(line).name == "torch"]
    assert Requirement(in_makefile) == Requirement(in_project)


def imports_of(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names - set(sys.stdlib_module_names) - {"draftline"}


def test_every_imported_library_is_a_declared_dependency() -> None:
    extras = PROJECT["optional-dependencies"]
    lines = [
        *PROJECT["dependencies"],
        *extras["gpu"],
        *extras["gateway"],
        *extras["http"],
        *extras["tracing"],
        *extras["bench"],
    ]
    declared = {Requirement(line).name.lower().replace("_", "-") for line in lines}
    providers = importlib.metadata.packages_distributions()
    undeclared = {
        f"{path.relative_to(ROOT)} imports {name}"
        for layer in LAYERS
        for path in (ROOT / layer).rglob("*.py")
        for name in imports_of(path)
        if not declared & {provider.lower().replace("_", "-") for provider in providers.get(name, [name])}
    }
    assert not undeclared


def compiled_modules() -> tuple[str, ...]:
    """The paths in setup.py's ``COMPILED``."""
    (modules,) = [
        ast.literal_eval(node.value)
        for node in ast.parse((ROOT / "setup.py").read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "COMPILED"
    ]
    return tuple(modules)


@pytest.mark.parametrize("path", compiled_modules())
def test_mypyc_can_write_the_signatures_of_a_compiled_module(path: str) -> None:
    # It writes keyword-only parameters as positional ones, of which none without a default may follow one with a default.
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.FunctionDef):
            required = len(node.args.posonlyargs) + len(node.args.args) - len(node.args.defaults)
            optional = [False] * required + [True] * len(node.args.defaults)
            optional += [default is not None for default in node.args.kw_defaults]
            assert optional == sorted(optional), f"{node.name} has a required parameter behind an optional one"
