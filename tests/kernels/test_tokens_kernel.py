"""Sampled tokens into the worker's memory, by one kernel."""

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("count", [1, 7, 128, 300])
def test_tokens_land_whatever_they_look_like(count):
    """64 bits, 32 and 16; whole tensors and columns of others; rows in order, and some in none."""
    from guided_plugin.kernels.tokens_triton import write_tokens

    ring = torch.zeros(512, dtype=torch.int64, device="cuda")
    word = torch.zeros(1, dtype=torch.int32, device="cuda")
    sampled = torch.randint(-1, 30_000, (512, 3), device="cuda")
    step = 2**32 - 3  # steps wrap
    for dtype in (torch.int64, torch.int32, torch.int16):
        columns = sampled.to(dtype)
        shapes = columns[:, 1].contiguous(), columns[:, 2], columns.view(-1)[5:]
        for tokens in shapes:
            for rows in (torch.arange(count), torch.randperm(512)[:count], torch.arange(9, 9 + count)):
                rows = rows.to("cuda", torch.int32)
                ring.fill_(-7)
                step += 1
                write_tokens(tokens, rows, ring.data_ptr(), word.data_ptr(), step)
                expected = tokens.long()[rows.long()].tolist()
                assert ring.tolist() == [*expected, *[-7] * (512 - count)]
                assert int(word) & 0xFFFFFFFF == step & 0xFFFFFFFF
