"""Command line options made from the fields of pydantic models, so that each option is described in one place.

A command takes whole models (``def serve(engine: EngineConfig, server: ServerConfig)``); `command` gives it an option
for each of their fields, and ``--config`` where one of them is a configuration. What is right is the models' to say.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import typer
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from draftline.engine.cli.config_file import read_config_file
from draftline.engine.cli.errors import reported_errors
from draftline.engine.config import EngineConfig
from draftline.engine.errors import UsageError
from draftline.engine.params import Constraint, SamplingParams, Speculation
from draftline.engine.server.config import ServerConfig
from draftline.engine.validation import violations

CONFIGURATIONS: tuple[type[BaseModel], ...] = (EngineConfig, ServerConfig)
"""What a configuration file can hold: every command takes a file with all of it, and uses what concerns it."""

_PANELS: Mapping[type[BaseModel], str] = {
    EngineConfig: "Engine",
    ServerConfig: "Server",
    SamplingParams: "Sampling",
    Speculation: "Speculation",
    Constraint: "Constraint",
}
_FLAGS: Mapping[tuple[type[BaseModel], str], str] = {
    (Speculation, "enabled"): "speculation",
    (Speculation, "draft_tokens"): "drafts",  # the engine has draft_tokens of its own
    (Constraint, "json_schema"): "schema",
}
"""Options that have another name than their field, which makes no sense outside its model."""

_TEXT_OR_FILE = {"json_schema", "grammar"}
_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below", "multiple_of": "a multiple of"}

_Model = TypeVar("_Model", bound=BaseModel)


def command(function: Callable[..., None]) -> Callable[..., None]:
    """A typer command from a function that takes models: with an option a field, and errors in one line.

    A parameter ``Model | None`` is None unless one of the model's options is given.
    """
    signature = inspect.signature(function, eval_str=True)
    models = {name: model for name, p in signature.parameters.items() if (model := _model(p.annotation))}
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if name in models:
            parameters += [_option(models[name], *field) for field in models[name].model_fields.items()]
        else:
            parameters.append(parameter)
    if any(model in CONFIGURATIONS for model in models.values()):
        about = "YAML file of options under their names; flags win over it"
        parameters.append(_parameter("config", Path, typer.Option(help=about, metavar="FILE")))

    @functools.wraps(function)
    def run(**given: Any) -> None:
        with reported_errors():
            path: Path | None = given.pop("config", None)
            from_file = {} if path is None else read_config_file(path, CONFIGURATIONS)
            for name, model in models.items():
                flags = dict(_given(model, given))
                optional = signature.parameters[name].annotation is not model
                given[name] = None if optional and not flags else _build(model, flags, from_file, path)
            function(**given)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {}  # typer would read the function's, which the signature no longer has
    return run


def _model(annotation: object) -> type[BaseModel] | None:
    """The model in ``Model`` or ``Model | None``, or None for any other annotation."""
    bare = _without_none(annotation)
    return bare if isinstance(bare, type) and issubclass(bare, BaseModel) else None


def _without_none(annotation: object) -> object:
    if get_origin(annotation) in (Union, types.UnionType):
        [annotation] = (part for part in get_args(annotation) if part is not types.NoneType)
    return annotation


def _option(model: type[BaseModel], name: str, field: FieldInfo) -> inspect.Parameter:
    flag = "--" + _flag(model, name).replace("_", "-")
    kind = _cli_type(field.annotation)
    declaration = f"{flag}/--no-{flag[2:]}" if kind is bool else flag
    option = typer.Option(
        declaration,
        help=_help(name, field),
        show_default=False,
        metavar="ID=BIAS" if get_origin(field.annotation) is dict else None,
        rich_help_panel=_PANELS.get(model),
    )
    return _parameter(_flag(model, name), kind, option)


def _flag(model: type[BaseModel], name: str) -> str:
    return _FLAGS.get((model, name), name)


def _parameter(name: str, kind: Any, option: Any) -> inspect.Parameter:
    """A parameter that is None unless given: the file, and then the model, have the defaults."""
    annotation = Annotated[kind | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _cli_type(annotation: object) -> Any:
    """The type of one option for a field: a list where it can be given several times."""
    annotation = _without_none(annotation)
    if get_origin(annotation) is Annotated:
        return _cli_type(get_args(annotation)[0])
    if get_origin(annotation) is tuple:
        return list[_cli_type(get_args(annotation)[0])]  # type: ignore[misc]
    if get_origin(annotation) is dict:
        return list[str]
    return annotation


def _help(name: str, field: FieldInfo) -> str:
    bounds = [
        f"{words} {getattr(mark, bound)}"
        for mark in field.metadata
        for bound, words in _BOUNDS.items()
        if hasattr(mark, bound)
    ]
    parts = [field.description or "", ", ".join(bounds)]
    if field.default not in (None, (), False, PydanticUndefined):
        parts.append(f"default {'on' if field.default is True else field.default}")
    if name in _TEXT_OR_FILE:
        parts.append("or FILE" if name == "json_schema" else "or @FILE")
    if get_origin(_without_none(field.annotation)) in (tuple, dict):
        parts.append("can be given several times")
    return "; ".join(part for part in parts if part)


def _given(model: type[BaseModel], options: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """Take the model's options out of ``options``: those that were given, in the types of their fields."""
    for name, field in model.model_fields.items():
        value = options.pop(_flag(model, name))
        if value is None or value == []:
            continue
        if get_origin(field.annotation) is dict:
            value = dict(_id_and_number(name, text) for text in value)
        elif isinstance(value, list):
            value = tuple(value)
        elif name in _TEXT_OR_FILE and value.startswith("@"):
            value = _file_text(_flag(model, name), Path(value[1:]))
        elif name == "json_schema" and not value.lstrip().startswith(("{", "true", "false")):
            value = _file_text(_flag(model, name), Path(value))
        yield name, value


def _id_and_number(name: str, text: str) -> tuple[int, float]:
    key, _, value = text.partition("=")
    try:
        return int(key), float(value)
    except ValueError:
        raise UsageError(f"--{name.replace('_', '-')}: {text!r} is not ID=BIAS, as in 42=-1.5") from None


def _file_text(name: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--{name.replace('_', '-')}: cannot read {path}: {error}") from error


def _build(
    model: type[_Model], flags: Mapping[str, object], from_file: Mapping[str, object], path: Path | None
) -> _Model:
    values = {name: value for name, value in from_file.items() if name in model.model_fields} | dict(flags)
    try:
        return model.model_validate(values, strict=True)
    except ValidationError as error:
        wrong = [f"{_origin(model, v.field, flags, path)}{v.description}" for v in violations(error)]
        raise UsageError("; ".join(wrong)) from error


def _origin(model: type[BaseModel], field: str, flags: Mapping[str, object], path: Path | None) -> str:
    """Where a wrong value was given; nothing for what concerns the model as a whole."""
    name = field.partition("[")[0].partition(".")[0]
    if not name:
        return ""
    if name not in flags and path is not None:
        return f"{path}: {field}: "
    return f"--{_FLAGS.get((model, name), name).replace('_', '-')}: "
