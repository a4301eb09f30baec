"""What the enforced string formats mean, read from their RFCs by hand: the oracle's side of formats.

Written without the package's regular expressions, and as wide as each RFC goes, so that a text which
the package allows and this refuses is wrong, while the other way round it may be a stricter reading.
"""

from __future__ import annotations

import calendar
import string
from collections.abc import Callable

__all__ = ["FORMATS", "SAMPLES"]

_LETTERS = set(string.ascii_letters)
_DIGITS = set(string.digits)
_HEX = set(string.hexdigits)
_UNRESERVED = _LETTERS | _DIGITS | set("-._~")
_SUB_DELIMITERS = set("!$&'()*+,;=")
_ATOM = _LETTERS | _DIGITS | set("!#$%&'*+-/=?^_`{|}~")


def _number(text: str, digits: int, low: int, high: int) -> bool:
    return len(text) == digits and set(text) <= _DIGITS and low <= int(text) <= high


def is_date(text: str) -> bool:
    """RFC 3339: full-date."""
    year, month, day = text[:4], text[5:7], text[8:]
    if text[4:5] != "-" or text[7:8] != "-" or not _number(year, 4, 0, 9999) or not _number(month, 2, 1, 12):
        return False
    # The proleptic Gregorian calendar has a leap year 0, which Python's calendar doesn't count.
    days = calendar.monthrange(int(year) or 400, int(month))[1]
    return _number(day, 2, 1, days)


def is_time(text: str) -> bool:
    """RFC 3339: full-time, with leap seconds where UTC has them."""
    clock, offset = text, "+00:00"
    if text[-1:] in ("Z", "z"):
        clock = text[:-1]
    elif text[-6:-5] in ("+", "-"):
        clock, offset = text[:-6], text[-6:]
    else:
        return False
    whole, dot, fraction = clock.partition(".")
    if dot and not (fraction and set(fraction) <= _DIGITS):
        return False
    parts = whole.split(":")
    if len(parts) != 3 or not (_number(parts[0], 2, 0, 23) and _number(parts[1], 2, 0, 59)):
        return False
    if offset[3] != ":" or not (_number(offset[1:3], 2, 0, 23) and _number(offset[4:], 2, 0, 59)):
        return False
    if not _number(parts[2], 2, 0, 60):
        return False
    if int(parts[2]) < 60:
        return True
    shift = (int(offset[1:3]) * 60 + int(offset[4:])) * (-1 if offset[0] == "-" else 1)
    return (int(parts[0]) * 60 + int(parts[1]) - shift) % 1440 == 23 * 60 + 59


def is_date_time(text: str) -> bool:
    """RFC 3339: date-time."""
    return is_date(text[:10]) and text[10:11] in ("T", "t") and is_time(text[11:])


def is_duration(text: str) -> bool:
    """RFC 3339, appendix A: units come in order, and without gaps."""
    if text[:1] != "P":
        return False
    date, mark, clock = text[1:].partition("T")
    if date.endswith("W"):
        return not mark and bool(date[:-1]) and set(date[:-1]) <= _DIGITS
    if mark and not clock:
        return False
    return bool(date or mark) and _units(date, "YMD") and _units(clock, "HMS")


def _units(text: str, order: str) -> bool:
    if not text:
        return True
    seen, digits = "", ""
    for char in text:
        if char in _DIGITS:
            digits += char
        elif char in order and digits:
            seen, digits = seen + char, ""
        else:
            return False
    return not digits and seen in order


def is_hostname(text: str) -> bool:
    """RFC 1123: labels of letters, digits and inner hyphens, of any length in all."""
    return all(map(_is_label, text.split(".")))


def _is_label(label: str) -> bool:
    # RFC 5891 keeps `--` in the third and fourth place for encoded names, which need a decoder.
    if label[2:4] == "--" and label[:2].lower() != "xn":
        return False
    inner = set(label) <= _LETTERS | _DIGITS | {"-"}
    return 0 < len(label) <= 63 and inner and label[0] != "-" and label[-1] != "-"


def is_ipv4(text: str) -> bool:
    """RFC 2673: four decimal numbers, without zeros in front."""
    parts = text.split(".")
    return len(parts) == 4 and all(
        part != "" and set(part) <= _DIGITS and str(int(part)) == part and int(part) < 256 for part in parts
    )


def is_ipv6(text: str) -> bool:
    """RFC 4291: eight groups, `::` for some of them, an IPv4 address for the last two."""
    if text.count("::") > 1 or ":::" in text:
        return False
    head, gap, tail = text.partition("::")
    groups = [part for half in (head, tail) if half for part in half.split(":")]
    length = len(groups)
    if groups and "." in groups[-1]:
        if not is_ipv4(groups.pop()) or text.endswith("::"):
            return False
        length += 1
    if not all(0 < len(group) <= 4 and set(group) <= _HEX for group in groups):
        return False
    return length <= 7 if gap else length == 8


def is_email(text: str) -> bool:
    """RFC 5321: a mailbox, with quoted local parts and address literals, of any length."""
    local, at, domain = text.rpartition("@")
    if not at or not local:
        return False
    if local[0] == '"':
        if len(local) < 2 or local[-1] != '"' or not _is_quoted(local[1:-1]):
            return False
    elif not all(atom and set(atom) <= _ATOM for atom in local.split(".")):
        return False
    if domain[:1] == "[" and domain[-1:] == "]":
        literal = domain[1:-1]
        return is_ipv4(literal) or (literal[:5].lower() == "ipv6:" and is_ipv6(literal[5:]))
    return is_hostname(domain)


def _is_quoted(text: str) -> bool:
    escaped = False
    for char in text:
        if not " " <= char <= "~":
            return False
        if not escaped and char == '"':
            return False
        escaped = not escaped and char == "\\"
    return not escaped


def is_uuid(text: str) -> bool:
    """RFC 4122: hexadecimal digits in five groups."""
    parts = text.split("-")
    return [len(part) for part in parts] == [8, 4, 4, 4, 12] and all(set(part) <= _HEX for part in parts)


def is_uri(text: str) -> bool:
    """RFC 3986: a URI with its scheme."""
    scheme, colon, rest = text.partition(":")
    if not colon or not scheme or scheme[0] not in _LETTERS:
        return False
    if not set(scheme) <= _LETTERS | _DIGITS | set("+-."):
        return False
    rest, _, fragment = rest.partition("#")
    rest, _, query = rest.partition("?")
    if not (_spelt(fragment, "/?:@") and _spelt(query, "/?:@")):
        return False
    if rest.startswith("//"):
        authority, _, path = rest[2:].partition("/")
        return _is_authority(authority) and _spelt(path, "/:@")
    return _spelt(rest, "/:@")


def _is_authority(text: str) -> bool:
    user, at, address = text.rpartition("@")
    if at and not _spelt(user, ":"):
        return False
    if address.startswith("["):
        literal, bracket, port = address[1:].partition("]")
        future = literal[:1] in ("v", "V") and _is_future(literal[1:])
        if not bracket or not (future or is_ipv6(literal)):
            return False
        return port == "" or (port[0] == ":" and set(port[1:]) <= _DIGITS)
    host, _, port = address.partition(":")
    return _spelt(host, "") and set(port) <= _DIGITS


def _is_future(text: str) -> bool:
    version, dot, rest = text.partition(".")
    allowed = _UNRESERVED | _SUB_DELIMITERS | {":"}
    return bool(dot and version and rest) and set(version) <= _HEX and set(rest) <= allowed


def _spelt(text: str, more: str) -> bool:
    """Whether a part of a URI holds its characters only, and what escapes there are are whole."""
    pieces = text.split("%")
    if any(len(piece) < 2 or not set(piece[:2]) <= _HEX for piece in pieces[1:]):
        return False
    return set("".join(pieces)) <= _UNRESERVED | _SUB_DELIMITERS | set(more)


FORMATS: dict[str, Callable[[str], bool]] = {
    "date-time": is_date_time,
    "date": is_date,
    "time": is_time,
    "duration": is_duration,
    "email": is_email,
    "hostname": is_hostname,
    "ipv4": is_ipv4,
    "ipv6": is_ipv6,
    "uuid": is_uuid,
    "uri": is_uri,
}

_DATES = ["2024-02-29", "2023-02-28", "2000-02-29", "1999-12-31", "0001-01-01", "9999-11-30"]
_TIMES = ["00:00:00Z", "23:59:59.999+23:59", "12:30:45.5-00:30", "08:00:00+02:00"]

SAMPLES: dict[str, list[str]] = {
    "date-time": [f"{date}T{time}" for date in _DATES for time in _TIMES],
    "date": _DATES,
    "time": _TIMES,
    "duration": ["P1Y2M3D", "P1Y", "P2M10D", "P3W", "PT1H2M3S", "PT20M", "P1DT1H", "PT5S", "P4Y2MT3H"],
    "email": ["a@b.c", "a.b+c@d-e.example", "x@[127.0.0.1]", "o'hara@example.com", "!#$%&@a"],
    "hostname": ["a", "example.com", "a-b.c1.d", "A" * 63, "1.2.3", ".".join(["a" * 40] * 6)],
    "ipv4": ["0.0.0.0", "255.255.255.255", "192.168.1.10", "9.99.199.249"],
    "ipv6": [
        *("::", "::1", "1::", "1:2:3:4:5:6:7:8", "fe80::A0b1", "1::3:4:5:6:7:8", "1:2:3:4:5:6:7::"),
        *("::ffff:1.2.3.4", "1:2:3:4:5:6:7.8.9.10", "1::5:1.2.3.4", "::2:3:4:5:6:7:8"),
    ],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000", "ABCDEF00-0000-0000-0000-0000000000ff"],
    "uri": [
        *("http://a", "https://user:pw@ex.com:80/a/b;c?q=1&r#frag", "urn:isbn:12", "mailto:a@b.c", "a:"),
        *("file:///etc/hosts", "x://[::1]:8/", "a:/b", "a:b//c", "http://%41/%7e", "s://h?#", "a+b-c.d:/"),
    ],
}
"""Some texts of each format, to start mutations from."""
