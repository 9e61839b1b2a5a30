"""What is taken out of text that others wrote: secrets, and on its way to a terminal what would command it.

Secrets never reach the run directory: what looks like one is replaced before anything is written.

What follows a secret-looking name is a secret wherever it stands: `learn` notes the values of such arguments and
environment variables, and of those in URLs, and every text is then searched for them, too.
"""

from __future__ import annotations

import base64
import functools
import html
import json
import os
import re
import shlex
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote, quote_plus, unquote

MASK = "<redacted>"

_SECRET_WORD = (
    r"(?:passw(?:or)?d|passphrase|passw(?![a-z])|(?<![a-z])pwd?|secret|credential|(?<![a-z])(?:cred|jwt)"
    r"|(?:api|access|private|auth|account|signing|session|encryption)[-_]?key)s?(?![a-z])"
)
_TOKEN_WORD = r"(?<!pad_)(?<!eos_)(?<!bos_)(?<!unk_)(?<!cls_)(?<!sep_)(?<!mask_)token(?![a-z])"  # not `tokenizer`
_SECRET_NAME = re.compile(f"(?i){_SECRET_WORD}|{_TOKEN_WORD}")
# Of several values; with `token`, of a count.
_PLURAL = re.compile(f"(?i)(?:{_SECRET_WORD})(?<=s)$")
# A list of tokens is secret where they look so: others are counts, or words of a vocabulary.
_TOKENS = re.compile(r"(?i)tokens$")
_TOKEN = re.compile(r"(?=[^/]*\d)(?=.*[A-Za-z])[\w.~+=-][\w.~+/=-]{7,}")
_SHORT_OPTION = re.compile(r"-?p")
# As clients of databases take it; `-precision16` has no capitals.
_GLUED = re.compile(r"-p(?P<value>(?=\S*\d)(?=\S*[a-z])(?=\S*[A-Z])[^\s=]{6,})")
# Such names have other meanings, too: only what looks like a secret is one there.
_MAYBE_NAME = re.compile(r"(?i)(?:^|[-_.])(?:key|auth|sig|signature|sas|cookie|authorization|pass|bearer|webhook)$")
# What follows a user's name.
_USER_NAME = re.compile(r"(?i)(?:^|[-_.])(?:u|user|login|auth|authorization|creds?|proxy|proxy-user)$")
_AFTER_USER = re.compile(r"[^\s:/@]+:(?!//)([^\s@]+)(?:@\S*)?")
_SECRET_VARIABLE = re.compile(
    r"(?i)TOKEN(?!IZ)|KEY(?!BOARD|MAP)|SECRET|PASSW|PASSPHRASE|CREDENTIAL|WEBHOOK"
    r"|(?:^|_)(?:PASS|PWD|CREDS?|JWT|PAT|AUTH|AUTHORIZATION|COOKIE|SIGNATURE)$|^(?:SSH|PG)PASS$"
)
_OUR_VARIABLE = "DPDOCTOR_"

_SECRET_VALUE = re.compile(
    r"\b(sk-[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|AKIA[0-9A-Z]{16}"
    r"|xox[abpr]-[A-Za-z0-9-]{10,}|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{5,}|(?i:bearer)\s+\S{8,}"
    r"|hooks\.slack\.com/services/[\w/-]+|discord(?:app)?\.com/api/webhooks/[\w/-]+)"
)
_URL_USER = re.compile(r"(?<=://)[^/\s]+(?=@)")
# A value without quotes ends there, and is a secret only with a letter and a digit; a path is none.
_BARE = r"""[^\s"'()\[\]{}<>,;&#\\]"""
_LIKELY = rf"(?![/~.])(?={_BARE}{{0,200}}\d)(?={_BARE}{{0,200}}[A-Za-z]){_BARE}"
# Within a string that is quoted itself there are backslashes before quotes.
_IS = r"""\\{0,8}["']?\s{0,3}[:=]\s{0,3}"""
_QUOTED = r""".{1,4096}?(?=(?P=q))"""
_Q = r"""(?P<q>\\{0,8}["'])"""
_PART = r"[\w.-]{0,40}"
_NAME = rf"{_PART}(?i:{_SECRET_WORD}|{_TOKEN_WORD}){_PART}"
# What each finds stands in its group `value`. Lengths are bounded, so that no text takes long.
_SHAPES = (
    # `?token=x` in a URL, `HF_TOKEN=x` in front of a command; not `pad_token=x`, which is Python.
    rf"""(?<=[?&#;])(?:{_NAME}|(?i:sig|key|auth|{_PART}signature))=(?P<value>[^\s&#"']+)""",
    r"""\b\w{0,40}(?:PASSWORD|PASSWD|SECRET|TOKEN|_KEY|APIKEY)[A-Z0-9_]{0,40}=(?P<value>[^\s&#"']+)""",
    # `{"token": "x"}`, in JSON or as Python prints it.
    rf"""["']{_PART}(?i:{_TOKEN_WORD}){_PART}["']\s*:\s*(?P<q>["'])(?P<value>{_QUOTED})""",
    # `{"name": "password", "value": "x"}`
    rf"""(?i)["']name["']\s*:\s*["']{_NAME}["']\s*,\s*["']value["']\s*:\s*(?P<q>["'])(?P<value>{_QUOTED})""",
    # `password='x'`, `"api_key": "x"`, also within another string, `password: x`, `Pwd=x;`
    rf"(?i){_SECRET_WORD}{_PART}{_IS}{_Q}?(?P<value>(?(q){_QUOTED}|{_LIKELY}{{4,}}))",
    rf"(?i){_TOKEN_WORD}{_PART}{_IS}{_Q}?(?P<value>{_LIKELY}{{8,}})",
    # `--password x`
    rf"""(?<![^\s"'])--?{_NAME}\s(?P<value>{_LIKELY}{{4,}})""",
    r"""(?i)authorization["']?\s*[:=]\s*["']?(?:(?:basic|bearer|token|digest|apikey)\s+)?(?P<value>[^\s"',;]+)""",
    r"""(?i)cookie["']?\s*[:=]\s*["']?[\w.-]{1,64}=(?P<value>[^\s"',;]+)""",
    # As GitHub's and others' headers have it; not `token embeddings`.
    r"\b[Tt]oken\s+(?P<value>(?=[\w.~+/=-]*\d)(?=[\w.~+/=-]*[A-Za-z])[\w.~+/=-]{8,})",
)
_PEM = re.compile(r"(?s)-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----(?P<value>.{1,20000}?)(?=-----END )")
# What is in every text that any of these would change.
_HINT = re.compile(
    r"(?i)://|token|secret|cred|jwt|passw|passphrase|pw|key|sig|auth|bearer|cookie|sk-|hf_|gh[pousr]_|github_pat_|akia"
    r"|xox|eyj|hooks|discord"
)


@functools.cache
def _shapes() -> tuple[re.Pattern[str], ...]:
    """Compile what finds secrets: not at import, as it takes long and most texts have no hint of one."""
    return (_PEM, *map(re.compile, _SHAPES))


# Shorter ones are in too many words; those below LONG count as whole words only.
_SHORTEST, _LONG = 4, 8
_ORDINARY = frozenset(("true", "false", "none", "null", "auto", "default", "yes", "test", "main", "root"))
_PLAIN = re.compile(r"[a-z][a-z_-]*")
_NUMBER = re.compile(r"[\d.,+-]*")
_JSON_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"(\s*:)?')
# Words of ours, such as names of fields and stages.
_WORD = re.compile(r"[a-z_0-9]{1,32}")

# ECMA-48's: of colours and moves of the cursor, with what they are.
_CONTROL_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_UNQUOTED = re.compile(r"""["'\\]+""")

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
    _parts = tuple({max(_UNQUOTED.split(form), key=len).encode(errors="surrogateescape") for form in variants})


def forget() -> None:
    """Know no secrets, as at the beginning."""
    _known.clear()
    learn()


def _repr_of_bytes(value: str) -> str:
    return repr(value.encode(errors="surrogateescape"))[1:]


_ESCAPES = (json.dumps, functools.partial(json.dumps, ensure_ascii=False), repr, ascii, _repr_of_bytes)


def _forms(value: str) -> set[str]:
    """Return how a value may be written: as it is, in a URL, JSON or HTML, quoted by Python or a shell, encoded."""
    data = value.encode(errors="surrogateescape")
    escaped = {each(value)[1:-1] for each in _ESCAPES}
    percent = {quote(value, safe=""), quote(value), quote_plus(value)}
    percent |= {re.sub("%..", lambda match: match[0].lower(), form) for form in percent}
    plain = {value, unquote(value), shlex.quote(value), html.escape(value)}
    return plain | escaped | percent | {data.hex()} | _base64(data)


def _base64(data: bytes) -> set[str]:
    """Return what base64 makes of it wherever it stands in what is encoded, but for what its neighbours decide, too."""
    found = set()
    for before in range(3):
        begin, end = -(-8 * before // 6), 8 * (before + len(data)) // 6
        found.add(base64.b64encode(bytes(before) + data).decode()[begin:end])
    return {form for form in found if len(form) >= _LONG}


def _searched(form: str) -> str:
    """Return what finds a form, also in a string within a string, which has more backslashes."""
    escaped = "".join(r"\\*" + each if each in "\"'" else r"\\+" if each == "\\" else re.escape(each) for each in form)
    if len(form) >= _LONG and not _NUMBER.fullmatch(form):
        return escaped
    return rf"(?<![A-Za-z0-9]){escaped}(?![A-Za-z0-9])"


def _in_arguments(argv: list[str]) -> Iterator[str]:
    option = ""
    for argument in argv:
        name, equals, value = argument.partition("=")
        if equals:
            yield from _in_value(name, value)
        elif not argument.startswith("-"):
            yield from _in_value(option, argument)
        elif glued := _GLUED.fullmatch(argument):
            yield glued["value"]
        yield from _in_text(argument)
        option = _option(argument, option)


def _in_value(name: str, value: str) -> Iterator[str]:
    """Yield what is secret of the value of an option."""
    if _is_secret(name, value):
        yield from (value, *_words(value))
    if found := _after_user(name, value):
        yield found


def _words(value: str) -> list[str]:
    """Return what is a secret without the words and lines around it: `Basic x`, a key of many lines."""
    return [word for word in value.split() if len(word) >= _LONG and _looks_secret(word)]


def _after_user(name: str, value: str) -> str:
    """Return the password in `user:password`, perhaps with a host, where a name lets one expect it."""
    found = _AFTER_USER.fullmatch(value) if _USER_NAME.search(name.lstrip("-")) else None
    return found[1] if found and not _NUMBER.fullmatch(found[1]) else ""


def _option(argument: str, before: str) -> str:
    """Return the option whose value may follow this argument, which itself may be a value of the one before."""
    if argument.startswith("-"):
        return "" if "=" in argument else argument
    return before if _PLURAL.search(before) or _TOKENS.search(before) else ""


def _in_text(text: str) -> Iterator[str]:
    """Yield the secrets that a text shows by their form."""
    if not _HINT.search(text):
        return
    yield from (match["value"] for shape in _shapes() for match in shape.finditer(text))
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
            yield from (value, *_words(value))
            if found := _after_user("user", value):
                yield found
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
    for shape in _shapes():
        value = shape.sub(_masked, value)
    return _URL_USER.sub(MASK, _SECRET_VALUE.sub(MASK, value))


def _masked(match: re.Match[str]) -> str:
    begin, end = (place - match.start() for place in match.span("value"))
    return f"{match[0][:begin]}{MASK}{match[0][end:]}"


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
    whole = _PEM.sub(_masked, shown)  # the one secret of many lines
    return "".join(map(text, whole.splitlines(keepends=True))).encode(errors="surrogateescape")


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
        elif _GLUED.fullmatch(argument):
            redacted.append(f"-p{MASK}")
        elif found := _after_user(name if equals else option, value if equals else argument):
            redacted.append(text(argument.replace(found, MASK)))
        else:
            redacted.append(text(argument))
        option = _option(argument, option)
    return redacted


def _is_secret(name: str, value: str) -> bool:
    found = _SECRET_NAME.search(name)
    if found is not None:
        return not (found[0].lower() == "token" and _NUMBER.fullmatch(value))
    if _TOKENS.search(name):
        return bool(_TOKEN.fullmatch(value)) and _looks_secret(value)
    if _SHORT_OPTION.fullmatch(name):
        return _looks_secret(value, plain=True)
    return bool(_MAYBE_NAME.search(name)) and _looks_secret(value)


def printable(value: str) -> str:
    """Return text without the characters that command a terminal or turn the direction of what follows them.

    Each becomes a replacement character, so that it is seen that there was one. New lines and tabs stay; colours and
    moves of the cursor are left out whole.
    """
    if value.isprintable():
        return value
    shown = _CONTROL_SEQUENCE.sub("", value)
    return "".join(c if _is_shown(c) else "\N{REPLACEMENT CHARACTER}" for c in shown)


def _is_shown(character: str) -> bool:
    return character.isprintable() or character in "\n\t" or unicodedata.category(character) == "Zs"
