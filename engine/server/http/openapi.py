"""The OpenAPI description of the HTTP face, from the models of its bodies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from draftline import __version__
from draftline.engine.server.http.body import Body

_ERRORS = {
    "400": "A field is wrong, unknown or not supported; param names it.",
    "401": "The token is missing or unknown.",
    "403": "The host or the origin is not allowed.",
    "404": "There is no such model.",
    "408": "The body arrives too slowly.",
    "413": "The body is too large.",
    "415": "The body has another type than application/json, or is compressed.",
    "429": "There is no room for the request, or the token's limit is reached; see Retry-After.",
    "431": "The headers are too large.",
    "500": "A fault of the server; its log has the cause.",
    "503": "The model loads, or the server shuts down.",
    "504": "The request timed out.",
    "505": "The request line names HTTP/2.0.",
}


@dataclass(frozen=True, slots=True)
class Described:
    """An endpoint with a body.

    Attributes:
        path: its path.
        about: a sentence for its description.
        body: its body.
    """

    path: str
    about: str
    body: type[Body]


def describe(endpoints: Iterable[Described]) -> dict[str, Any]:
    """The OpenAPI document of the endpoints with a body."""
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        schema = endpoint.body.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= schema.pop("$defs", {})
        name = endpoint.body.__name__
        schemas[name] = schema
        content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
        responses = {"200": {"description": "The answer."}}
        responses |= {status: {"description": meaning} for status, meaning in _ERRORS.items()}
        paths[endpoint.path] = {
            "post": {
                "summary": endpoint.about,
                "requestBody": {"required": True, "content": content},
                "responses": responses,
            }
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Draftline", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"bearer": []}, {}],
    }
