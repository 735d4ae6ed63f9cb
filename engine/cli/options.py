"""Command line options made from the fields of option models, so that each option is described in one place.

A command takes whole models (``def serve(engine: EngineConfig, server: ServerConfig)``). `command` gives it an option
for each of their fields, and ``--config`` where one of them is a configuration. The models validate the values.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Container, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from draftline.engine.cli.config_file import read_config_file
from draftline.engine.cli.errors import reported_errors
from draftline.engine.cli.topics import topic, value_name
from draftline.engine.config import EngineConfig
from draftline.engine.errors import UsageError, unreadable
from draftline.engine.options import Options, bounds, choices, flag, has_default, number, without_none
from draftline.engine.params import Constraint, Reasoning, Speculation
from draftline.engine.server.config import ServerConfig
from draftline.engine.validation import violations

CONFIGURATIONS: tuple[type[Options], ...] = (EngineConfig, ServerConfig)
"""The models of a configuration file. Every command accepts a file with options of all of them, and uses its own."""

_FLAGS: Mapping[tuple[type[Options], str], str] = {
    (Speculation, "enabled"): "speculation",
    (Speculation, "draft_tokens"): "drafts",  # the engine has draft_tokens of its own
    (Constraint, "json_schema"): "schema",
    (Reasoning, "begin"): "reasoning_begin",
    (Reasoning, "end"): "reasoning_end",
    (Reasoning, "max_tokens"): "reasoning_max_tokens",
    (Reasoning, "required"): "reasoning_required",
}
"""Options with another name than their field, whose name says too little outside its model."""

_JSON = {"json_schema", "structural_tag"}
_TEXT_OR_FILE = {"json_schema", "grammar", "structural_tag"}

_Model = TypeVar("_Model", bound=Options)


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Make a typer command from a function that takes models: one option per field, and errors in one line.

    A parameter ``Model | None`` is None unless one of the model's options is given.
    """
    signature = inspect.signature(function, eval_str=True)
    models = {name: model for name, p in signature.parameters.items() if (model := _model(p.annotation))}
    taken = {name for model in models.values() for name in model.model_fields}
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if name in models:
            parameters += _options(models[name])
            parameters += [_alias(models[name], other) for other in models[name].aliases if other not in taken]
        else:
            parameters.append(parameter)
    if any(model in CONFIGURATIONS for model in models.values()):
        meaning = "YAML file of the engine's and the server's options by name; flags override it, and --no-NAME turns a switch off"
        parameters.append(_parameter("config", list[Path], typer.Option(help=meaning, metavar="FILE")))

    @functools.wraps(function)
    def run(**given: Any) -> None:
        with reported_errors():
            path = _only_file(given.pop("config", None) or [])
            from_file = {} if path is None else read_config_file(path, CONFIGURATIONS, given)
            for name, model in models.items():
                flags = dict(_given(model, given))
                optional = signature.parameters[name].annotation is not model
                given[name] = None if optional and not flags else _build(model, flags, from_file, path)
            function(**given)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {}  # typer would read the function's, which the signature no longer has
    return run


def _only_file(paths: list[Path]) -> Path | None:
    """The configuration file; None without one. A second file would replace the first one as a whole."""
    if len(paths) > 1:
        raise UsageError("--config: is given more than once (" + ", ".join(map(str, paths)) + "); give one file")
    return paths[0] if paths else None


def _model(annotation: object) -> type[Options] | None:
    """The model in ``Model`` or ``Model | None``, or None for any other annotation."""
    bare = without_none(annotation)
    return bare if isinstance(bare, type) and issubclass(bare, Options) else None


def _options(model: type[Options]) -> Iterator[inspect.Parameter]:
    """The options of a model, and of the models in it."""
    for name, field in model.model_fields.items():
        inner = _model(field.annotation)
        if inner is None:
            yield _option(model, name, field)
        else:
            yield from _options(inner)


def _option(model: type[Options], name: str, field: FieldInfo) -> inspect.Parameter:
    shown = flag(_flag(model, name))
    kind = _cli_type(field.annotation)
    option = typer.Option(
        _declaration(shown, kind),
        help=_help(name, shown, field),
        show_default=False,
        metavar=value_name(name, field),
        rich_help_panel=topic(model, name),
    )
    return _parameter(_flag(model, name), kind, option)


def _alias(model: type[Options], other: str) -> inspect.Parameter:
    """The option of a field under another engine's name, which ``--help`` does not show."""
    kind = _cli_type(model.model_fields[model.aliases[other]].annotation)
    return _parameter(other, kind, typer.Option(_declaration(flag(other), kind), hidden=True))


def _declaration(flag: str, kind: Any) -> str:
    return f"{flag}/--no-{flag[2:]}" if kind is bool else flag


def _flag(model: type[Options], name: str) -> str:
    return _FLAGS.get((model, name), name)


def _parameter(name: str, kind: Any, option: Any) -> inspect.Parameter:
    """A parameter that is None unless it is given: defaults come from the file, then from the model."""
    annotation = Annotated[kind | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _cli_type(annotation: object) -> Any:
    """The type of a field's option: a list where the option can be repeated."""
    annotation = without_none(annotation)
    if get_origin(annotation) is Annotated:
        return _cli_type(get_args(annotation)[0])
    if get_origin(annotation) is tuple:
        return list[_cli_type(get_args(annotation)[0])]  # type: ignore[misc]
    if get_origin(annotation) is dict:
        return list[str]
    return annotation


def _help(name: str, flag: str, field: FieldInfo) -> str:
    """A field's description, then notes in brackets: its values and bounds, its default, whether it can be repeated."""
    notes = [", ".join(choices(field.annotation)), bounds(field)]
    if without_none(field.annotation) is bool:
        notes.append(_switch_note(flag, field))
    elif has_default(field):
        default = field.default
        notes.append(f"default: {number(default) if isinstance(default, int | float) else default}")
    if get_origin(without_none(field.annotation)) in (tuple, dict):
        notes.append("can be repeated")
    shown = "; ".join(note for note in notes if note)
    return f"{field.description} [{shown}]" if shown else f"{field.description}"


def _switch_note(flag: str, field: FieldInfo) -> str:
    if field.default is False:
        return ""
    off = f"--no-{flag[2:]} turns it off"
    return f"on by default; {off}" if field.default else off


def _given(model: type[Options], options: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """Remove the model's options from ``options``; yield those that were given, in the types of their fields."""
    for name, field in model.model_fields.items():
        inner = _model(field.annotation)
        if inner is not None:
            if values := dict(_given(inner, options)):
                yield name, _build(inner, values, {}, None)
            continue
        ways = [
            _flag(model, name),
            *(other for other, own in model.aliases.items() if own == name and other in options),
        ]
        given = [(way, value) for way in ways if (value := options.pop(way)) not in (None, [])]
        if len(given) > 1:
            raise UsageError(" and ".join(flag(way) for way, _ in given) + ": set one of them")
        if not given:
            continue
        [(_, value)] = given
        if get_origin(field.annotation) is dict:
            value = dict(_id_and_number(name, text) for text in value)
        elif isinstance(value, list):
            value = tuple(value)
        elif name in _TEXT_OR_FILE and value.startswith("@"):
            value = _file_text(_flag(model, name), Path(value[1:]))
        elif name in _JSON and not value.lstrip().startswith(("{", "true", "false")):
            value = _file_text(_flag(model, name), Path(value))
        yield name, value


def _id_and_number(name: str, text: str) -> tuple[int, float]:
    key, _, value = text.partition("=")
    try:
        return int(key), float(value)
    except ValueError:
        raise UsageError(f"{flag(name)}: {text!r} is not ID=BIAS, as in 42=-1.5") from None


def _file_text(name: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{flag(name)}: cannot read {path}: {unreadable(error)}") from error


def _build(
    model: type[_Model], flags: Mapping[str, object], from_file: Mapping[str, object], path: Path | None
) -> _Model:
    values = {name: value for name, value in from_file.items() if name in model.model_fields} | dict(flags)
    try:
        return model.model_validate(values, strict=True)
    except ValidationError as error:
        wrong = [
            _origin(model, v.field, flags, path)
            + (v.description if _name(v.field) else _with_origins(model, v.description, values.keys() - flags, path))
            for v in violations(error)
        ]
        raise UsageError("; ".join(wrong)) from error


def given_flags(options: Options) -> list[str]:
    """The flags of the options that were given, in the command or in its file."""
    return [flag(_flag(type(options), name)) for name in options.model_fields_set]


def _name(field: str) -> str:
    return field.partition("[")[0].partition(".")[0]


def _with_origins(model: type[Options], problem: str, in_file: Container[str], path: Path | None) -> str:
    """The description of a problem of a whole model, with the model's options as flags, or as names in the file."""
    names = "|".join(model.model_fields)

    def with_origin(found: re.Match[str]) -> str:
        name = found[0]
        if name in in_file:
            return f"{name} in {path}"
        ending = "" if _model(model.model_fields[name].annotation) is None else "-* options"  # such as reasoning
        return flag(_flag(model, name)) + ending

    # Not in quotes, which are values, nor in "draft model".
    return re.sub(rf"(?<!')(?<!draft )\b({names})\b", with_origin, problem)


def _origin(model: type[Options], field: str, flags: Mapping[str, object], path: Path | None) -> str:
    """The source of a wrong value: a flag or the file; empty for an error of the model as a whole."""
    name = _name(field)
    if not name:
        return ""
    if name not in flags and path is not None:
        return f"{path}: {field}: "
    return f"{flag(_flag(model, name))}: "
