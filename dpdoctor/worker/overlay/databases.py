"""Databases of sqlite, which opens their files itself: they get other names, wherever they are named."""

from __future__ import annotations

import functools
import os
import re
import sqlite3
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, unquote

from dpdoctor.worker.base.patches import Patches
from dpdoctor.worker.overlay.diverted import Diverted

# Where sqlite3.connect takes the class of what it returns, after the database.
_FACTORY = 5
_ATTACH = re.compile(
    r"""(?P<before>(?:^|;)\s*attach\s+(?:database\s+)?)(?P<name>'(?:[^']|'')*'|"[^"]*"|\?|[:@$]\w+)(?=\s+as\b)""", re.I
)


def divert(patches: Patches, diverted: Diverted) -> None:
    """Let databases that the script opens, or attaches to an open one, be copies."""
    place = functools.partial(_placed, diverted)
    connect, connection = sqlite3.connect, _connection(place)

    @functools.wraps(connect)
    def connect_to_copy(database: Any, *args: Any, **options: Any) -> Any:
        if len(args) < _FACTORY:
            options.setdefault("factory", connection)
        return connect(place(database), *args, **options)

    for module in (sqlite3, sqlite3.dbapi2):
        patches.replace(module, "connect", connect_to_copy)
        patches.replace(module, "Connection", connection)


def _placed(diverted: Diverted, name: Any) -> Any:
    """Return where sqlite finds the copy of a database; those in memory have no file."""
    if isinstance(name, str) and name.startswith("file:"):
        path, mark, query = name.removeprefix("file:").partition("?")
        if not path or "mode=memory" in query or path.startswith(":"):
            return name
        find = diverted.to_read if re.search(r"\b(mode=ro|immutable=1)\b", query) else _to_change(diverted)
        found = os.fsdecode(find(unquote(path.removeprefix("//"))))
        return f"file:{quote(found)}{mark}{query}"
    return name if isinstance(name, str) and (not name or name.startswith(":")) else _to_change(diverted)(name)


def _to_change(diverted: Diverted) -> Callable[[Any], Any]:
    return functools.partial(diverted.to_write, flags=os.O_RDWR | os.O_CREAT)


def _connection(place: Callable[[Any], Any]) -> type[sqlite3.Connection]:
    """Return the class of connections to copies. What is asked for the place of a copy gives that very place."""

    class Cursor(sqlite3.Cursor):
        def execute(self, sql: str, parameters: Any = (), /) -> Any:
            return super().execute(*_attaching(sql, parameters, place))

        def executescript(self, sql_script: str, /) -> Any:
            return super().executescript(_attaching(sql_script, (), place)[0])

    class Connection(sqlite3.Connection):
        def __init__(self, database: Any, *args: Any, **options: Any) -> None:
            super().__init__(place(database), *args, **options)

        def cursor(self, factory: Any = Cursor) -> Any:
            return super().cursor(factory)

        def execute(self, sql: str, parameters: Any = (), /) -> Any:
            return super().execute(*_attaching(sql, parameters, place))

        def executescript(self, sql_script: str, /) -> Any:
            return super().executescript(_attaching(sql_script, (), place)[0])

    for kind in (Cursor, Connection):
        kind.__module__, kind.__qualname__ = "sqlite3", kind.__name__
    return Connection


def _attaching(sql: str, parameters: Any, place: Callable[[Any], Any]) -> tuple[str, Any]:
    """Return a statement and its parameters with other names for the databases that it attaches."""
    given = parameters

    def renamed(match: re.Match[str]) -> str:
        nonlocal given
        name = match["name"]
        if name == "?":
            given = (place(given[0]), *given[1:])
        elif name[0] in ":@$":
            given = {**given, name[1:]: place(given[name[1:]])}
        else:
            quoted = place(name[1:-1].replace(name[0] * 2, name[0])).replace("'", "''")
            return f"{match['before']}'{quoted}'"
        return match[0]

    return _ATTACH.sub(renamed, sql) if "ttach" in sql or "TTACH" in sql else sql, given
