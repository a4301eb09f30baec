"""The mask kernels against a plain reference; on CUDA too where there is one."""

import pytest
import torch

from guided_plugin.kernels import mask_rows
from guided_plugin.kernels.mask_reference import mask_rows_reference

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.gpu),
]


@pytest.fixture(autouse=True)
def _device(request):
    if request.node.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("no CUDA device")


def bits(tensor):
    return tensor.reshape(-1).clone().view(torch.uint8)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("width", "vocabulary"), [(64, 64), (70, 67), (67, 67), (100, 33), (40, 70), (1, 1)])
@pytest.mark.parametrize("layout", ["plain", "columns", "transposed"])
def test_equals_the_reference(device, dtype, width, vocabulary, layout):
    generator = torch.Generator().manual_seed(width * vocabulary)
    base = torch.randn(5, 2 * width, generator=generator).to(dtype)
    base[0, 0] = torch.nan
    logits = {
        "plain": base[:, :width].contiguous(),
        "columns": base[:, ::2],
        "transposed": base[:, :width].T.contiguous().T,
    }[layout]
    words = (vocabulary + 31) // 32
    mask = torch.randint(-(2**31), 2**31, (3, words), generator=generator).to(torch.int32)
    rows = torch.tensor([4, 0, 2], dtype=torch.int32)
    expected = logits.clone()
    mask_rows_reference(expected, mask, rows, vocabulary)
    there = logits.to(device) if layout == "plain" else base.to(device)
    if layout == "columns":
        there = there[:, ::2]
    elif layout == "transposed":
        there = there[:, :width].T.contiguous().T
    mask_rows(there, mask.to(device), rows.to(device), vocabulary)
    assert torch.equal(bits(there.cpu()), bits(expected))


@pytest.mark.parametrize("device", DEVICES)
def test_no_rows_is_nothing(device):
    logits = torch.randn(2, 40, device=device)
    before = logits.clone()
    empty = torch.zeros(0, dtype=torch.int32, device=device)
    mask_rows(logits, torch.zeros(0, 2, dtype=torch.int32, device=device), empty, 40)
    assert torch.equal(logits, before)


@pytest.mark.gpu
def test_a_real_vocabulary_at_256_rows():
    vocabulary, width = 151_646, 151_936
    logits = torch.randn(300, width, device="cuda", dtype=torch.bfloat16)
    mask = torch.randint(-(2**31), 2**31, (256, (vocabulary + 31) // 32), device="cuda").to(torch.int32)
    rows = torch.randperm(300, device="cuda")[:256].to(torch.int32)
    expected = logits.clone()
    columns = torch.arange(vocabulary, device="cuda")
    allowed = (mask[:, columns // 32] >> (columns % 32)) & 1
    guided = expected[rows.long()]
    guided[:, :vocabulary].masked_fill_(allowed == 0, -torch.inf)
    guided[:, vocabulary:] = -torch.inf
    expected[rows.long()] = guided
    mask_rows(logits, mask, rows, vocabulary)
    assert torch.equal(bits(logits), bits(expected))
