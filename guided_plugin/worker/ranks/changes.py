"""What goes from rank 0 to another machine for a step: its slots, and the masks that are not there yet.

Most masks of a step were there in one of the steps before, at one row or another. So both sides keep a table
of masks, and rank 0, which alone decides what is in it, sends the place of each mask and those that are new.

    head     int64               as `Head`; then the slots, then the place of each mask
    masks    [new, words] int32  to be put at the places that are written as ~place, in this order
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from guided_plugin.grammar.base import MaskArray
from guided_plugin.worker.layout import Shape

ENDED = -1
"""In place of a step: no more steps come."""
IDLE = -2
"""In place of a step: rank 0 is there, and had nothing to say for a while."""

_DEEP = 4
"""Masks of how many full steps the table holds."""


class Head(IntEnum):
    """The first numbers of a message."""

    STEP = 0
    MASKS = 1
    SLOTS = 2
    NEW = 3
    REST = 4


class _Table:
    """What both sides have: the table, and memory for a message."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.most = shape.max_slots * shape.positions
        self.masks: MaskArray = np.zeros((_DEEP * self.most, shape.words), np.int32)
        self.head: NDArray[np.int64] = np.zeros(Head.REST + shape.max_slots + self.most, np.int64)
        self.head_tensor = torch.from_numpy(self.head)

    def places(self) -> NDArray[np.int64]:
        """Of the masks of the message."""
        first = Head.REST + self.shape.max_slots
        return self.head[first : first + int(self.head[Head.MASKS])]

    def slots(self) -> NDArray[np.int64]:
        """Of the message."""
        return self.head[Head.REST : Head.REST + int(self.head[Head.SLOTS])]


class Outgoing(_Table):
    """Rank 0's side."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        # A key says where a mask may be; whether it is the same is compared.
        self._weights = np.random.default_rng(1).integers(1, 2**32, shape.words, dtype=np.uint32)
        self._found: dict[int, int] = {}
        self._keys = [-1] * len(self.masks)
        self._used = [-1] * len(self.masks)
        self._next = 0

    def write(self, step: int, slots: NDArray[np.uint32], masks: MaskArray) -> Tensor:
        """Put a step into the head; returns the masks that go with it."""
        self.head[: Head.REST] = step, len(masks), len(slots), 0
        self.slots()[:] = slots.view(np.int32)
        keys: list[int] = (masks.view(np.uint32) @ self._weights).tolist()
        new = []
        for row, key in enumerate(keys):
            place = self._found.get(key, -1)
            if place < 0 or not np.array_equal(self.masks[place], masks[row]):
                place = self._put(key, masks[row], step)
                new.append(place)
                self.places()[row] = ~place
            else:
                self.places()[row] = place
            self._used[place] = step
        self.head[Head.NEW] = len(new)
        return torch.from_numpy(self.masks[new])

    def _put(self, key: int, mask: MaskArray, step: int) -> int:
        """A place that no mask of this step uses: there are more places than masks of a step."""
        while self._used[self._next] == step:
            self._next = (self._next + 1) % len(self.masks)
        place, self._next = self._next, (self._next + 1) % len(self.masks)
        if self._found.get(self._keys[place]) == place:
            del self._found[self._keys[place]]
        self._found[key] = place
        self._keys[place] = key
        self.masks[place] = mask
        return place


class Incoming(_Table):
    """The side of the other machine."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self._new: MaskArray = np.zeros((self.most, shape.words), np.int32)

    def new(self) -> Tensor:
        """Where the masks of the message go that has come in."""
        return torch.from_numpy(self._new[: int(self.head[Head.NEW])])

    def read(self, masks: MaskArray) -> None:
        """Write the masks of the step, from the table and the new ones."""
        places = self.places()
        new = places < 0
        places[new] = ~places[new]
        self.masks[places[new]] = self._new[: int(self.head[Head.NEW])]
        np.take(self.masks, places, axis=0, out=masks)
