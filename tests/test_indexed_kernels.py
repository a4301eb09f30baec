"""Masks and tokens through tables of a host's requests, on the CPU and on CUDA where there is one."""

import pytest
import torch

from guided_plugin.kernels.indexed import NEVER, gather_tokens, mask_indexed_rows
from guided_plugin.kernels.reference import mask_rows_reference
from guided_plugin.step import NO_TOKEN

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=DEVICES)
def device(request):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return request.param


@pytest.mark.parametrize("rows", [1, 5, 33])
@pytest.mark.parametrize(("size", "width"), [(70, 70), (70, 96), (5000, 5100)])
def test_every_row_gets_the_mask_of_its_request(device, rows, size, width):
    generator = torch.Generator().manual_seed(rows)
    words = (size + 31) // 32
    count = min(rows, 40)
    mask = torch.randint(-(2**31), 2**31 - 1, (count, words), generator=generator, dtype=torch.int64).int()
    table = torch.full((64,), -1, dtype=torch.int32)
    indices = torch.randperm(64, generator=generator)[:rows]
    guided = [row for row in range(rows) if row % 3 != 1]
    for at, row in enumerate(guided):
        table[indices[row]] = at
    logits = torch.randn(rows, width, generator=generator)
    expected = logits.clone()
    chosen = torch.tensor(guided, dtype=torch.int32)
    mask_rows_reference(expected, mask, chosen, size)
    found = logits.to(device)
    mask_indexed_rows(found, mask.to(device), indices.to(device), table.to(device), size)
    assert torch.equal(found.cpu(), expected)


def test_a_row_of_no_request_is_left_alone(device):
    logits = torch.zeros(2, 64, device=device)
    mask = torch.zeros(1, 2, dtype=torch.int32, device=device)
    table = torch.zeros(4, dtype=torch.int32, device=device)
    mask_indexed_rows(logits, mask, torch.tensor([-1, 2], device=device), table, 64)
    assert logits[0].isfinite().all()
    assert not logits[1].isfinite().any()


@pytest.mark.parametrize("count", [1, 7, 200])
def test_tokens_are_those_that_came_since(device, count):
    generator = torch.Generator().manual_seed(count)
    history = torch.randint(0, 1000, (256, 40), generator=generator, dtype=torch.int32)
    total = torch.randint(1, 40, (256,), generator=generator, dtype=torch.int32)
    order = torch.randperm(256, generator=generator)[:count]
    lengths = total.clone()
    grown, never = order[::2], order[1::4]
    lengths[grown] -= 1
    lengths[never] = NEVER
    expected = [
        int(history[index, total[index] - 1]) if index in grown.tolist() else NO_TOKEN
        for index in order.tolist()
    ]
    there = lengths.to(device)
    tokens = gather_tokens(order.to(device), there, total.to(device), history.to(device))
    assert tokens.tolist() == expected
    after = lengths.clone()
    after[grown] = total[grown]
    assert torch.equal(there.cpu(), after)
    again = gather_tokens(order.to(device), there, total.to(device), history.to(device))
    assert set(again.tolist()) == {NO_TOKEN}
