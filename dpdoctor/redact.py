"""What is taken out of text that others wrote: secrets, and on its way to a terminal what would command it.

Secrets never reach the run directory: what looks like one is replaced before anything is written.

What follows a secret-looking name is a secret wherever it stands: `learn` notes the values of such arguments and
environment variables, and of those in URLs, and every text is then searched for them, too.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote, quote_plus, unquote

MASK = "<redacted>"

_SECRET_WORD = (
    r"(?:passw(?:or)?d|passphrase|passw(?![a-z])|(?<![a-z])pwd?|secret|credential"
    r"|(?:api|access|private|auth|account|signing|session)[-_]?key)s?(?![a-z])"
)
_TOKEN_WORD = r"(?<!pad_)(?<!eos_)(?<!bos_)(?<!unk_)(?<!cls_)(?<!sep_)(?<!mask_)token(?![a-z])"  # not `tokenizer`
_SECRET_NAME = re.compile(f"(?i){_SECRET_WORD}|{_TOKEN_WORD}")
_SHORT_OPTION = re.compile(r"-?p")
# Such names have other meanings, too: only what looks like a secret is one there.
_MAYBE_NAME = re.compile(r"(?i)(?:^|[-_.])(?:key|auth|sig|signature|sas|cookie|authorization)$")
_SECRET_VARIABLE = re.compile(r"(?i)TOKEN(?!IZ)|KEY(?!BOARD|MAP)|SECRET|PASSW|CREDENTIAL")
_OUR_VARIABLE = "DPDOCTOR_"

_SECRET_VALUE = re.compile(
    r"\b(sk-[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|AKIA[0-9A-Z]{16}"
    r"|xox[abpr]-[A-Za-z0-9-]{10,}|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{5,}|(?i:bearer)\s+\S{8,})"
)
_URL_USER = re.compile(r"(?<=://)[^/\s]+(?=@)")
# `?token=x` in a URL, `HF_TOKEN=x` in front of a command; not `pad_token=x`, which is Python.
_ASSIGNMENT = re.compile(
    rf"((?<=[?&])[\w.-]*(?i:{_SECRET_WORD}|{_TOKEN_WORD})[\w.-]*|(?<=[?&])(?i:sig|key|auth|[\w-]*signature)"
    r"|\b[A-Z0-9_]*(?:PASSWORD|PASSWD|SECRET|TOKEN|_KEY|APIKEY)[A-Z0-9_]*)=([^\s&#\"']+)"
)
# `{"api_key": "x"}`, in JSON or as Python prints it.
_QUOTED = re.compile(
    rf"""(?P<before>(?P<q>["'])[\w.-]*(?i:{_SECRET_WORD}|{_TOKEN_WORD})[\w.-]*(?P=q)\s*:\s*)(?P<v>["'])(?P<value>.*?)(?P=v)"""
)
_HEADER = re.compile(
    r"""((?i:authorization)["']?\s*[:=]\s*["']?)(?:(?i:basic|bearer|token|digest|apikey)\s+)?([^\s"',;]+)"""
)
# As GitHub's and others' headers have it; not `token embeddings`.
_AFTER_TOKEN = re.compile(r"\b([Tt]oken\s+)((?=[\w.~+/=-]*\d)(?=[\w.~+/=-]*[A-Za-z])[\w.~+/=-]{8,})")
_SHAPES = (_ASSIGNMENT, _QUOTED, _HEADER, _AFTER_TOKEN)
# What is in every text that any of these would change.
_HINT = re.compile(
    r"(?i)://|token|secret|credential|passw|passphrase|pw|key|sig|auth|bearer|sk-|hf_|gh[pousr]_|github_pat_|akia|xox|eyj"
)

# Shorter ones are in too many words; those below LONG count as whole words only.
_SHORTEST, _LONG = 4, 8
_ORDINARY = frozenset(("true", "false", "none", "null", "auto", "default", "yes", "test", "main", "root"))
_PLAIN = re.compile(r"[a-z][a-z_-]*")
_NUMBER = re.compile(r"[\d.,+-]*")
_JSON_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"(\s*:)?')
# Words of ours, such as names of fields and stages.
_WORD = re.compile(r"[a-z_0-9]{1,32}")

_known: set[str] = set()
_pattern: re.Pattern[str] | None = None
_parts: tuple[bytes, ...] = ()


def learn(argv: Iterable[str] = (), environment: Mapping[str, str] | None = None) -> None:
    """Note the secrets of a command line and of an environment: they are replaced in every text from now on."""
    global _pattern, _parts  # noqa: PLW0603 - one process has one set of secrets
    found = {*_in_arguments(list(argv)), *_in_environment(environment or {})}
    _known.update(value for value in found if len(value) >= _SHORTEST and value.lower() not in _ORDINARY)
    variants = sorted({form for value in _known for form in _forms(value)}, key=len, reverse=True)
    _pattern = re.compile("|".join(map(_searched, variants))) if variants else None
    _parts = tuple({form.encode(errors="surrogateescape") for form in variants})


def forget() -> None:
    """Know no secrets, as at the beginning."""
    _known.clear()
    learn()


def _forms(value: str) -> set[str]:
    """Return how a value may be written: as it is, in a URL, in JSON, as Python or a shell quote it."""
    escaped = (json.dumps(value), json.dumps(value, ensure_ascii=False), repr(value))
    quoted = (quote(value, safe=""), quote(value), quote_plus(value), unquote(value), shlex.quote(value))
    return {value, *quoted, *(text[1:-1] for text in escaped)}


def _searched(form: str) -> str:
    if len(form) >= _LONG and not _NUMBER.fullmatch(form):
        return re.escape(form)
    return rf"(?<![A-Za-z0-9]){re.escape(form)}(?![A-Za-z0-9])"


def _in_arguments(argv: list[str]) -> Iterator[str]:
    option = ""
    for argument in argv:
        name, equals, value = argument.partition("=")
        if equals and _is_secret(name, value):
            yield value
        elif not argument.startswith("-") and _is_secret(option, argument):
            yield argument
        yield from _in_text(argument)
        option = argument if argument.startswith("-") and not equals else ""


def _in_text(text: str) -> Iterator[str]:
    """Yield the secrets that a text shows by their form."""
    for match in (match for shape in _SHAPES for match in shape.finditer(text)):
        yield match["value"] if match.re is _QUOTED else match[2]
    yield from (match[0].split()[-1] for match in _SECRET_VALUE.finditer(text))
    for match in _URL_USER.finditer(text):
        user, colon, password = match[0].partition(":")
        # A user's name is no secret; what stands alone may be a token, `git` is none.
        yield from (password,) if colon else (user,) if _looks_secret(user) else ()


def _in_environment(environment: Mapping[str, str]) -> Iterator[str]:
    for name, value in environment.items():
        if name.startswith(_OUR_VARIABLE):
            continue
        if _SECRET_VARIABLE.search(name) and _looks_secret(value, plain="PASSW" in name.upper()):
            yield value
            yield from (line for line in value.splitlines() if len(line) >= 2 * _LONG)
        yield from _in_text(value)


def _looks_secret(value: str, *, plain: bool = False) -> bool:
    """Return whether a value is neither a number, nor a path, nor, unless `plain`, a plain word."""
    if _NUMBER.fullmatch(value) or not (plain or not _PLAIN.fullmatch(value)):
        return False
    return not (value.startswith(("/", "./", "../", "~")) or (len(value) < 256 and os.path.exists(value)))  # noqa: PTH110


def text(value: str) -> str:
    """Return `value` with known secrets, token shapes, URL passwords and assigned secrets replaced by the mask."""
    if _pattern is not None:
        value = _pattern.sub(MASK, value)
    if not _HINT.search(value):
        return value
    value = _ASSIGNMENT.sub(rf"\1={MASK}", value)
    value = _QUOTED.sub(rf"\g<before>\g<v>{MASK}\g<v>", value)
    value = _AFTER_TOKEN.sub(rf"\1{MASK}", _HEADER.sub(rf"\1{MASK}", value))
    return _URL_USER.sub(MASK, _SECRET_VALUE.sub(MASK, value))


def knows_any() -> bool:
    """Return whether there are known secrets."""
    return bool(_parts)


def knows(data: bytes) -> bool:
    """Return whether a known secret may be in these bytes."""
    return any(part in data for part in _parts)


def json_text(data: bytes) -> bytes:
    """Return JSON with secrets in its strings replaced. Names of fields and plain words are left: they are ours."""

    def replaced(match: re.Match[str]) -> str:
        content, is_name = match[1], match[2]
        if _is_ours(content) or not (
            "\\" in content or _HINT.search(content) or (_pattern and _pattern.search(content))
        ):
            return match[0]
        shown: str = json.loads(f'"{content}"')
        masked = text(shown)
        return match[0] if masked == shown else json.dumps(masked, ensure_ascii=False) + (is_name or "")

    return _JSON_STRING.sub(replaced, data.decode()).encode()


def _is_ours(content: str) -> bool:
    return bool(_WORD.fullmatch(content)) and not (content in _known and any(map(str.isdigit, content)))


def lines(data: bytes) -> bytes:
    """Return what a process printed, in any encoding, with secrets replaced."""
    shown = data.decode(errors="surrogateescape")
    if not (_HINT.search(shown) or knows(data)):
        return data
    return "".join(map(text, shown.splitlines(keepends=True))).encode(errors="surrogateescape")


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
    if found is not None:
        return not (found[0].lower() == "token" and _NUMBER.fullmatch(value))
    if _SHORT_OPTION.fullmatch(name):
        return _looks_secret(value, plain=True)
    return bool(_MAYBE_NAME.search(name)) and _looks_secret(value)


def printable(value: str) -> str:
    """Return text without the characters that command a terminal or turn the direction of what follows them.

    Each becomes a replacement character, so that it is seen that there was one. New lines and tabs stay.
    """
    if value.isprintable():
        return value
    return "".join(c if _is_shown(c) else "\N{REPLACEMENT CHARACTER}" for c in value)


def _is_shown(character: str) -> bool:
    return character.isprintable() or character in "\n\t" or unicodedata.category(character) == "Zs"
