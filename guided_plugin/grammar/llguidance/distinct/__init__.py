"""What a grammar can't remember: that items of an array, or names of an object, are all different.

demands.py    where in a schema that is asked for
values.py     when two JSON texts are the same value
spellings.py  the tokens of a vocabulary by the text that they spell
seen.py       the values of one array so far, and which tokens would repeat one
scanner.py    where in the JSON text an output is, byte by byte
ahead.py      which beginnings can't become anything new
check.py      one request's check, next to its matcher
"""
