"""The sizes of shared memory that docs/operations.md quotes are those of the layout."""

import pathlib

from guided_plugin.worker.layout import Shape

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "operations.md"


def mib(rows, vocabulary, drafts=0):
    return f"{Shape(rows, -(-vocabulary // 32), drafts).size / 2**20:.1f}"


def test_shared_memory():
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    table = {line.split(" | ")[0].strip("| ").replace(",", ""): line for line in lines}
    for vocabulary in (32_000, 128_256, 151_646, 262_144):
        sizes = [mib(rows, vocabulary) for rows in (64, 256, 512, 1024)] + [
            mib(256, vocabulary, 7)
        ]
        assert table[str(vocabulary)].strip("| ").split(" | ")[1:] == sizes
