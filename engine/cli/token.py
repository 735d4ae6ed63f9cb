"""``draftline token``: make a bearer token, and the entry of its hash in a server's token file."""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import Annotated

import typer

from draftline.engine.cli.errors import standard_input

_BYTES = 24
"""Random bytes of a token: 192 bits."""


def token(
    name: Annotated[str, typer.Argument(help="the name of the token's owner, for logs and metrics")],
    from_stdin: Annotated[
        bool, typer.Option("--stdin", help="hash the token on standard input, and make none")
    ] = False,
) -> None:
    """Make a bearer token, and hash it for a server's --tokens file.

    The entry for the file goes to standard output. The token goes to standard error: it is shown once, and stored
    nowhere.

    **Examples**

    - `draftline token extraction >> tokens.yaml`, in a file that begins with `tokens:`
    - `printf %s "$TOKEN" | draftline token extraction --stdin`
    """
    value = standard_input().read().strip() if from_stdin else secrets.token_urlsafe(_BYTES)
    if not re.fullmatch(r"[\w.-]{1,64}", name):
        raise typer.BadParameter("use letters, digits, '_', '.' and '-', at most 64", param_hint="NAME")
    if len(value) < 16:
        raise typer.BadParameter("the token on standard input has fewer than 16 characters", param_hint="--stdin")
    try:
        digest = hashlib.sha256(value.encode()).hexdigest()
    except UnicodeEncodeError:
        raise typer.BadParameter("the token on standard input is not UTF-8 text", param_hint="--stdin") from None
    if not from_stdin:
        typer.echo(f"token: {value}", err=True)
    # Quoted: without quotes, 123 and true are no texts in YAML.
    typer.echo(f'  - {{name: "{name}", sha256: "{digest}"}}')
