"""What is wrong with bytes that do not decode, and where: the end of the file, a bare NaN, or something worse."""

from __future__ import annotations

import re

import msgspec

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
CUT_SHORT = "the file is cut short"
_PLACE = re.compile(r" \(byte (\d+)\)")
# Not JSON, but what C++ and Python print. The decoder notices a few bytes after it begins.
_NOT_A_NUMBER = re.compile(rb"[-+]?(?:nan|inf(?:inity)?)\b", re.IGNORECASE)
_NOTICED_WITHIN = 4
_LONGEST = 9  # len("-Infinity")


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong.

    Attributes:
        offset: of the byte where it is wrong, in the bytes that were decoded.
        is_damage: what comes before it can be trusted: the file was cut short, or holds a bare NaN.
    """

    offset: int
    reason: str
    is_damage: bool


def fault(text: bytes, error: Exception, *, is_cut: bool) -> Fault:
    """Return why decoding `text` raised this error, one of UNDECODABLE; `is_cut`: nothing comes after `text`."""
    if isinstance(error, msgspec.ValidationError):
        return Fault(offset=0, reason=str(error).replace("$[0]", "event"), is_damage=False)
    if isinstance(error, UnicodeDecodeError):
        return Fault(offset=0, reason="text that is not UTF-8", is_damage=False)
    if isinstance(error, RecursionError):
        return Fault(offset=0, reason="nested too deeply", is_damage=False)
    named = _PLACE.search(str(error))
    offset = int(named[1]) if named else len(text)
    if is_cut and offset >= len(text):
        return Fault(offset=len(text), reason=CUT_SHORT, is_damage=True)
    begin = max(offset - _NOTICED_WITHIN, 0)
    number = _NOT_A_NUMBER.search(text, begin, offset + _LONGEST)
    if number is not None and number.start() <= offset:
        return Fault(offset=number.start(), reason=f"{number[0].decode()} is not JSON", is_damage=True)
    return Fault(offset=offset, reason=_PLACE.sub("", str(error)), is_damage=False)
