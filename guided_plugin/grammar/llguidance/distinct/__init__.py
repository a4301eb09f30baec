"""Checks of what a grammar can't remember: that the scalars in an array are all
different.

spellings.py  the tokens of a vocabulary by the text that they spell
seen.py       the items of one array so far, and the texts from which only these can come
track.py      where in such arrays an output is, byte by byte
check.py      one request's check, next to its matcher

A request is followed with a second matcher, over bytes, of the same grammar with
*marks*: special tokens that may stand where an item begins which must differ from those
before it. They are never taken. That one is allowed tells where such an array is, in
any alternative of a schema and any part of a structural tag.
"""
