"""Secrets never reach the run directory: what looks like one is replaced before anything is written."""

from __future__ import annotations

import re
from collections.abc import Iterable

MASK = "<redacted>"

_SECRET_WORD = r"(?:pass(?:word|wd|phrase)?|secret|credential|(?:api|access|private|auth)[-_]?key)s?(?![a-z])"
_TOKEN_WORD = r"token(?![a-z])"  # not `tokens`, `tokenizer`
_SECRET_NAME = re.compile(f"(?i){_SECRET_WORD}|{_TOKEN_WORD}")
_SECRET_VALUE = re.compile(
    r"\b(sk-[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|AKIA[0-9A-Z]{16}"
    r"|xox[abpr]-[A-Za-z0-9-]{10,}|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{5,}|(?i:bearer)\s+\S{8,})"
)
_URL_USER = re.compile(r"(?<=://)[^/\s]*:[^/\s]+(?=@)")
# `?token=x` in a URL, `HF_TOKEN=x` in front of a command; not `pad_token=x`, which is Python.
_ASSIGNMENT = re.compile(
    rf"((?<=[?&])[\w.-]*(?i:{_SECRET_WORD}|{_TOKEN_WORD})[\w.-]*"
    r"|\b[A-Z0-9_]*(?:PASSWORD|SECRET|TOKEN|_KEY|APIKEY)[A-Z0-9_]*)=[^\s&#]+"
)


def text(value: str) -> str:
    """Return `value` with well-known token shapes, URL passwords and assigned secrets replaced by the mask."""
    value = _ASSIGNMENT.sub(rf"\1={MASK}", value)
    return _URL_USER.sub(MASK, _SECRET_VALUE.sub(MASK, value))


def arguments(argv: Iterable[str]) -> list[str]:
    """Return a command line with the value of each secret-looking option replaced.

    Understands `--token X`, `--token=X` and `token=X`; a count like `--max-token 512` is no secret. A value that
    begins with a dash is taken for the next option, as argparse does.
    """
    redacted: list[str] = []
    option = ""
    for argument in argv:
        name, equals, value = argument.partition("=")
        if equals and _is_secret(name, value):
            redacted.append(f"{text(name)}={MASK}")
        elif not argument.startswith("-") and _is_secret(option, argument):
            redacted.append(MASK)
        else:
            redacted.append(text(argument))
        option = argument if argument.startswith("-") and not equals else ""
    return redacted


def _is_secret(name: str, value: str) -> bool:
    found = _SECRET_NAME.search(name)
    return found is not None and not (found[0].lower() == "token" and value.isdigit())
