"""The string formats that are enforced, as regular expressions of whole texts. Depends
on nothing.

Where a standard leaves room, `FORMATS` takes the stricter reading: whatever one of
these allows is valid under the other readings too. `WIDE` takes the widest one, for
what must not have a format: whatever that refuses is invalid under every reading. All
other formats are annotations, as the JSON Schema standard says.
"""

from __future__ import annotations

_YEAR = r"(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
# Of the years that end in 00, only every fourth is a leap year.
_LEAP_YEAR = (
    r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
)
_DAY = (
    r"(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = rf"(?:{_YEAR}-{_DAY}|{_LEAP_YEAR}-02-29)"
_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_FRACTION = r"(?:\.[0-9]+)?"
# The last second of a UTC day may be a sixtieth; with other offsets none is in use.
_LEAP_SECOND = rf"23:59:60{_FRACTION}(?:[Zz]|[+-]00:00)"
_TIME = rf"(?:{_CLOCK}:[0-5][0-9]{_FRACTION}(?:Z|z|[+-]{_CLOCK})|{_LEAP_SECOND})"

_DURATION_TIME = r"T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_DURATION_DATE = r"(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"

_ALPHANUMERIC = "[A-Za-z0-9]"
_HYPHENATED = "[A-Za-z0-9-]"
# At most 63 characters; `--` in the third and fourth place is kept for encoded names.
_LABEL = (
    rf"{_ALPHANUMERIC}(?:{_HYPHENATED}{{0,2}}{_ALPHANUMERIC}"
    rf"|{_HYPHENATED}(?:{_HYPHENATED}{_ALPHANUMERIC}|{_ALPHANUMERIC}-){_HYPHENATED}{{0,58}}{_ALPHANUMERIC})?"
)
_HOSTNAME = rf"{_LABEL}(?:\.{_LABEL})*"

_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_H = "[0-9A-Fa-f]{1,4}"


def _ipv6(ipv4: str) -> str:
    """IPv6 addresses, of which the last two groups may be an IPv4 address."""
    options = [f"(?:{_H}:){{7}}{_H}", f"(?:{_H}:){{6}}{ipv4}"]
    # `::` stands for what the groups before and after it leave out of eight.
    for before in range(8):
        head = f"(?:{_H}:){{{before - 1}}}{_H}::" if before else "::"
        options.append(
            head + (f"(?:(?:{_H}:){{0,{6 - before}}}{_H})?" if before < 7 else "")
        )
        if before < 6:
            options.append(f"{head}(?:{_H}:){{0,{5 - before}}}{ipv4}")
    return f"(?:{'|'.join(options)})"


_IPV6 = _ipv6(_IPV4)

_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_EMAIL = rf"{_ATOM}(?:\.{_ATOM})*@(?:{_HOSTNAME}|\[(?:{_IPV4}|[Ii][Pp][Vv]6:{_IPV6})\])"

_ESCAPED = "%[0-9A-Fa-f]{2}"
_PCHAR = rf"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|{_ESCAPED})"
_QUERY = rf"(?:{_PCHAR}|[/?])*"


def _uri(address: str) -> str:
    """URIs; `address`: what a host in brackets may be."""
    host = rf"(?:\[{address}\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|{_ESCAPED})*)"
    authority = rf"(?:(?:[A-Za-z0-9._~!$&'()*+,;=:-]|{_ESCAPED})*@)?{host}(?::[0-9]*)?"
    return (
        rf"[A-Za-z][A-Za-z0-9+.-]*:(?://{authority}(?:/{_PCHAR}*)*|/(?:{_PCHAR}+(?:/{_PCHAR}*)*)?"
        rf"|{_PCHAR}+(?:/{_PCHAR}*)*|)(?:\?{_QUERY})?(?:#{_QUERY})?"
    )


FORMATS: dict[str, str] = {
    "date-time": f"{_DATE}(?:T|t){_TIME}",
    "date": _DATE,
    "time": _TIME,
    "duration": rf"P(?:[0-9]+W|{_DURATION_DATE}(?:{_DURATION_TIME})?|{_DURATION_TIME})",
    "email": _EMAIL,
    "hostname": _HOSTNAME,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uuid": "[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}",
    "uri": _uri(_IPV6),
}
"""By name; alternatives at the top are in no group, so put them into one."""

LENGTHS: dict[str, str] = {"hostname": ".{1,253}", "email": "[^@]{1,64}@.{1,253}"}
"""The bounds on the length of a format's texts, which hold besides."""

_WIDE_DATE = rf"(?:[0-9]{{4}}-{_DAY}|(?:{_LEAP_YEAR}|0000)-02-29)"
# Leap seconds at any time: no reading of an offset rules out one that another allows.
_WIDE_TIME = rf"{_CLOCK}:(?:[0-5][0-9]|60){_FRACTION}(?:[Zz]|[+-]{_CLOCK})"
# ISO 8601 lets units be left out, takes fractions, and from 2019 on signs.
_COUNT = r"[+-]?[0-9]+(?:[.,][0-9]+)?"


def _units(letters: str) -> str:
    return "".join(f"(?:{_COUNT}{letter})?" for letter in letters)


_WIDE_LABEL = rf"{_ALPHANUMERIC}(?:{_HYPHENATED}{{0,61}}{_ALPHANUMERIC})?"
# RFC 2673 counts digits only: there may be zeros in front.
_WIDE_OCTET = "(?:25[0-5]|2[0-4][0-9]|[01]?[0-9]{1,2})"
_WIDE_IPV4 = rf"{_WIDE_OCTET}(?:\.{_WIDE_OCTET}){{3}}"
_WIDE_IPV6 = _ipv6(_WIDE_IPV4)
# RFC 6874 adds zones.
_ZONE = rf"(?:%25(?:[A-Za-z0-9._~-]|{_ESCAPED})+)?"
_FUTURE = r"[Vv][0-9A-Fa-f]+\.[A-Za-z0-9._~!$&'()*+,;=:-]+"

WIDE: dict[str, str] = {
    name: f"^(?:{body})$"
    for name, body in {
        # RFC 3339 mentions a space for the T.
        "date-time": f"{_WIDE_DATE}[Tt ]{_WIDE_TIME}",
        "date": _WIDE_DATE,
        "time": _WIDE_TIME,
        "duration": f"[+-]?P(?!T?$){_units('YMWD')}(?:T{_units('HMS')})?",
        # With comments, quotes and other alphabets: some checkers ask for no more than
        # this.
        "email": "[^]*@[^]*",
        "hostname": rf"(?=.{{1,255}}$){_WIDE_LABEL}(?:\.{_WIDE_LABEL})*\.?",
        "ipv4": _WIDE_IPV4,
        "ipv6": _WIDE_IPV6,
        "uuid": FORMATS["uuid"],
        "uri": _uri(f"(?:{_WIDE_IPV6}{_ZONE}|{_FUTURE})"),
    }.items()
}
"""By name, the patterns of JSON Schema that every text matches which some reading calls
valid."""
