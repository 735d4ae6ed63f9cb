"""The documentation against the repository: paths, modules, commands, options, links and the README's length."""

from __future__ import annotations

import ast
import re
import runpy
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer
import typer.main
import yaml

import draftline
from draftline.engine.cli import app

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("engine", "spec", "structured", "models", "quant", "kernels")
FOLDERS = (*PACKAGES, "proto", "src", "tests", "benchmarks", "docs", "deploy", "examples", ".ci", ".github")
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in (".", "docs", "examples", ".github", "models/drafts/smollm2")
    for path in (ROOT / folder).glob("*.md")
)
SOURCES = (*PACKAGES, "proto", "tests", "benchmarks", "examples")

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)|``([^`\n]+)``")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
PATH = re.compile(rf"(?:{'|'.join(map(re.escape, FOLDERS))})/[\w./*-]*|[\w./-]*\w\.(?:py|md|proto|jsonl?|toml|svg)")
MODULE = re.compile(r"draftline(?:\.\w+)+")
FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*")

OTHER_PROGRAMS = frozenset(
    {
        *("cat", "curl", "docker", "git", "grpcurl", "mypy", "npm", "openssl"),
        *("pip", "pre-commit", "printf", "protoc", "pytest", "ruff", "smg"),
    }
)
"""Their options are theirs."""

ELSEWHERE = frozenset(
    {
        *("config.json", "tokenizer.json", "generation_config.json", "model.safetensors.index.json"),
        *("person.json", "address.json", "whole.json"),
        *(
            "trace.json",
            "results.json",
            "curve.jsonl",
            "curve.svg",
            "question.jsonl",
            "/openapi.json",
            "in.jsonl",
            "out.jsonl",
            "prompts.jsonl",
            "load.svg",
            "turns.svg",
            "ablation.svg",
            "memory.svg",
            "sharegpt.json",
            "report.html",
            "results.jsonl",
            "before.jsonl",
            "after.jsonl",
            "address.json",
            "whole.json",
            "google/rpc/status.proto",
            "tests/draft2020-12",
        ),
    }
)
"""Files that documentation names and that are not the repository's: a checkpoint's, and the reader's own."""


@cache
def endings() -> frozenset[str]:
    """The paths of the repository's files, each from any of its folders on: readers shorten them."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    parts = [path.relative_to(ROOT).parts for path in [*found, *ROOT.glob("*.*"), ROOT / "Makefile"]]
    return frozenset("/".join(each[begin:]) for each in parts for begin in range(len(each)))


@cache
def exists(path: str) -> bool:
    """Whether a path names something: from the root, or the end of a file's path, as readers shorten them."""
    path = path.rstrip("/")
    return path in ELSEWHERE or path in endings() or any(ROOT.glob(path))


@cache
def is_module(name: str) -> bool:
    """Whether ``draftline.a.b.c`` is a module, or a name in one, or in the protocol."""
    if name.startswith("draftline.v1."):
        protos = "".join(path.read_text() for path in (ROOT / "proto").rglob("*.proto"))
        generated = (ROOT / "src/draftline/v1" / f"{name.split('.')[2]}.py").exists()
        return generated or re.search(rf"\b{name.split('.')[2]}\b", protos) is not None
    parts = name.split(".")[1:]
    for length in range(len(parts), -1, -1):
        base = ROOT.joinpath("src/draftline", *parts[:length])
        source = base.with_suffix(".py") if length and base.with_suffix(".py").is_file() else base / "__init__.py"
        if source.is_file():
            rest = parts[length:]
            return not rest or re.search(rf"\b{rest[0]}\b", source.read_text()) is not None
    return False


def wrong_names(text: str) -> list[str]:
    """The paths and modules in a piece of code that do not exist."""
    wrong = [name for name in MODULE.findall(text) if not is_module(name) and not exists(name)]
    rest = re.sub(r"\w+://\S+", "", MODULE.sub("", text))
    return wrong + [path for path in PATH.findall(rest) if not exists(path)]


def pieces_of_code(page: str) -> Iterator[str]:
    """What a page sets as code: spans, and commands."""
    text = (ROOT / page).read_text()
    yield from (command for command in commands(page))
    for one, two in CODE.findall(FENCE.sub("", text)):
        yield one or two


def commands(page: str) -> Iterator[str]:
    """The commands in a page's console blocks, each as one line without its prompt."""
    for kind, block in FENCE.findall((ROOT / page).read_text()):
        if kind == "console":
            for line in block.replace("\\\n", " ").splitlines():
                if line.startswith("$ "):
                    yield re.sub(r"\s+# .*", "", line[2:])


def simple_commands(line: str) -> Iterator[list[str]]:
    """The words of each command in a line, without comments, assignments and redirections."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if word and set(word) <= set("|&;<>"):
            while words and re.match(r"^[A-Za-z_]+=", words[0]):
                del words[0]
            if words:
                yield words
            words = []
        else:
            words.append(word)


@cache
def cli() -> dict[str, typer.core.TyperCommand]:
    """The subcommands of ``draftline``, those of a group as ``group name``."""
    found: dict[str, typer.core.TyperCommand] = {}
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        found[name] = command
        found |= {f"{name} {inner}": each for inner, each in getattr(command, "commands", {}).items()}
    return found


def flags_of(command: typer.core.TyperCommand) -> set[str]:
    return {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)} | {"--help"}


@cache
def benchmark_flags(script: str) -> frozenset[str]:
    """The options of a benchmark: those that it and the packages which it imports add."""
    sources = [ROOT / script]
    for package in re.findall(r"^\s*from (\w+)(?:\.\w+)* import", sources[0].read_text(), re.MULTILINE):
        sources += (ROOT / "benchmarks" / package).glob("*.py")
    added = (re.findall(r"add_argument\(\s*\"(--[\w-]+)\"", source.read_text()) for source in sources)
    return frozenset({"--help"}.union(*added))


@cache
def known_flags() -> frozenset[str]:
    """Every option of the command line, of the benchmarks, of the proto's script and of the ahead-of-time compiler."""
    benchmarks = [f"benchmarks/{path.name}" for path in (ROOT / "benchmarks").glob("*.py")]
    benchmarks += ["proto/generate.py", "kernels/triton/compile/aot.py"]
    return frozenset(
        {"--version"}.union(*map(flags_of, cli().values()), *(benchmark_flags(script) for script in benchmarks))
    )


def wrong_command(words: list[str]) -> str | None:
    """What is wrong with a command, as far as it is one of the project's."""
    program, *arguments = words
    name = program.removeprefix(".venv/bin/")
    if name == "make":
        makefile = (ROOT / "Makefile").read_text()
        for argument in arguments:
            variable, assigned, _ = argument.partition("=")
            known = rf"^{re.escape(variable)}\s*\??:?=" if assigned else rf"^{re.escape(argument)}:.*##"
            if not re.search(known, makefile, re.MULTILINE):
                return f"make has no {argument}"
        return None
    if name == "draftline":
        if not arguments or arguments[0].startswith("--"):
            return None if set(arguments) <= {"--help", "--version"} else f"draftline has no {arguments[0]}"
        grouped = " ".join(arguments[:2])
        words, rest = (1, arguments[1:]) if grouped not in cli() else (2, arguments[2:])
        command = cli().get(" ".join(arguments[:words]))
        if command is None:
            return f"draftline has no command {arguments[0]}"
        if hasattr(command, "commands") and rest:
            return f"draftline {arguments[0]} has no command {rest[0]}"
        if hasattr(command, "commands"):
            return None
        try:
            command.make_context(arguments[0], [word for word in rest if word != "--help"])
        except typer.TyperException as error:
            problem = error.format_message()
            return None if problem.startswith("Missing argument") else problem  # documentation may name a command alone
        return None
    if name == "python" and arguments and arguments[0].startswith("benchmarks/"):
        flags = {word.partition("=")[0] for word in arguments if word.startswith("--")}
        unknown = flags - benchmark_flags(arguments[0])
        return f"{arguments[0]} has no {', '.join(sorted(unknown))}" if unknown else None
    return None


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.MULTILINE)}


def test_there_is_documentation_to_check() -> None:
    assert {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/reading.md", "docs/architecture.md"} <= set(PAGES)


def test_the_checks_find_faults() -> None:
    assert wrong_names("see engine/no_such_file.py")
    assert wrong_names("draftline.engine.outputs.NoSuchName")
    assert wrong_command(["draftline", "serve", "--no-such-option"])
    assert wrong_command(["draftline", "generate", "x", "--drafter", "no-such-drafter"])
    assert wrong_command(["draftline", "bench", "no-such-command"])
    assert wrong_command(["draftline", "bench", "serve", "--no-such-option"])
    assert wrong_command(["make", "no-such-task"])
    assert wrong_command(["python", "benchmarks/host.py", "--no-such-option"])
    assert slug("N-gram table, *real* questions") == "n-gram-table-real-questions"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 160


@pytest.mark.parametrize("page", PAGES)
def test_named_files_and_modules_exist(page: str) -> None:
    assert [name for code in pieces_of_code(page) for name in wrong_names(code)] == []


def test_the_architecture_names_every_room() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    rooms = {path.parent for path in (ROOT / "engine").glob("*/__init__.py")}
    assert [room.name for room in sorted(rooms) if f"`engine/{room.name}/`" not in page] == []


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    broken = []
    for link in LINK.findall(FENCE.sub("", (ROOT / page).read_text())):
        if re.match(r"^(https?|mailto):", link):
            continue
        file, _, anchor = link.partition("#")
        target = (ROOT / page).parent / file if file else ROOT / page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_options_exist(page: str) -> None:
    wrong = []
    for line in commands(page):
        for words in simple_commands(line):
            wrong.append(wrong_command(words))
    for code in pieces_of_code(page):
        program = code.split()[0].removeprefix(".venv/bin/") if code.split() else ""
        if program in OTHER_PROGRAMS:
            continue
        wrong += [f"no option {flag}" for flag in FLAG.findall(code) if flag not in known_flags()]
        if program in ("draftline", "make") and " " in code and "$" not in code and "…" not in code and "|" not in code:
            wrong += [wrong_command(words) for words in simple_commands(code)]
    assert [problem for problem in wrong if problem] == []


def wrong_names_in(text: str) -> list[str]:
    """The paths and modules that do not exist and that a text sets as code."""
    return [name for one, two in CODE.findall(text) for name in wrong_names(one or two)]


@pytest.mark.parametrize("folder", SOURCES)
def test_docstrings_name_what_exists(folder: str) -> None:
    wrong = []
    for source in sorted((ROOT / folder).rglob("*.py")):
        text = source.read_text()
        if not wrong_names_in(text):  # nor in its docstrings; to parse all sources takes seconds
            continue
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                names = wrong_names_in(node.value.value)
                wrong += [f"{source.relative_to(ROOT)}:{node.lineno}: {name}" for name in names]
    assert wrong == []


@pytest.mark.parametrize("folder", PACKAGES)
def test_a_module_has_what_its_docstring_begins_with(folder: str) -> None:
    wrong = []
    for source in sorted((ROOT / folder).rglob("*.py")):
        text = source.read_text()
        if not text.startswith('"""``'):
            continue
        module = ast.parse(text)
        begins = re.match(r"``(\w+)``(?: and ``(\w+)``)?:", ast.get_docstring(module) or "")
        top = {name for node in module.body for name in top_names(node)}
        wrong += [
            f"{source.relative_to(ROOT)}: {name}"
            for name in (begins.groups() if begins else ())
            if name and name not in top
        ]
    assert wrong == []


def top_names(node: ast.stmt) -> Iterator[str]:
    """The names that a statement of a module defines or imports."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Assign(targets=targets):
            yield from (name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name
        case ast.ImportFrom(names=names):
            yield from (name.asname or name.name for name in names)


@pytest.mark.usefixtures("few_layers")
def test_the_examples_in_the_pages_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They print the errors that their comments say. Those of README have a test of their own."""
    pages = [page for page in PAGES if page != "README.md"]
    blocks = [block for page in pages for kind, block in FENCE.findall((ROOT / page).read_text()) if kind == "python"]
    assert blocks
    for block in blocks:
        script = tmp_path / "example.py"
        script.write_text(block)
        runpy.run_path(str(script))
        printed = capsys.readouterr().out
        for error in re.findall(r"print\(.*error\)  # (.*)$", block, re.MULTILINE):
            assert error.partition("…")[0].strip() in printed


def test_the_workflow_runs_what_ci_runs() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert [step["run"] for step in steps if "run" in step] == [".ci/run"]
    assert (ROOT / ".ci/run").is_file()


def test_the_changelog_has_this_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = re.findall(
        r"^## \[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert versions
    assert versions[0] == draftline.__version__ == project["version"]
