"""The kernels for masks and tokens against plain references, on the CPU and on CUDA
where there is one."""

import functools
import random
import subprocess
import sys
from itertools import accumulate
from math import prod

import pytest
import torch

from guided_plugin.kernels import indexed_kernels, mask_rows
from guided_plugin.step import BROKEN, NEVER, NO_TOKEN, TokenSink
from guided_plugin.worker.device.streamops import register_host, unregister_host
from guided_plugin.worker.layout import TOKEN_DEPTH, Region, Shape
from guided_plugin.worker.words import Counter

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(autouse=True)
def _device(request):
    if request.node.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("no CUDA device")


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.fixture
def kernels(device):
    return indexed_kernels(torch.device(device))


def int32(values, device="cpu"):
    return torch.tensor(
        values,
        dtype=torch.int32,
        device=device,
    )


def filled(count, value, device="cpu"):
    return torch.full(
        (count,),
        value,
        dtype=torch.int32,
        device=device,
    )


def random_words(shape, generator):
    """Masks at random."""
    return torch.randint(
        -(2**31),
        2**31,
        shape,
        generator=generator,
    ).to(torch.int32)


def mask_rows_reference(logits, mask, rows, vocabulary_size):
    """`mask_rows`, bit by bit."""
    for words, row in zip(
        mask.tolist(),
        rows.tolist(),
        strict=False,
    ):
        columns = range(logits.shape[1])
        allowed = [
            column < vocabulary_size and words[column // 32] >> column % 32 & 1
            for column in columns
        ]
        logits[row, ~torch.tensor(allowed, dtype=torch.bool)] = -torch.inf


def bits(tensor):
    return tensor.reshape(-1).clone().view(torch.uint8)


LAYOUTS = {
    "plain": lambda base, width: base[:, :width].contiguous(),
    "columns": lambda base, width: base[:, ::2],
    "transposed": lambda base, width: base[:, :width].T.contiguous().T,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("width", "vocabulary"), [(64, 64), (70, 67), (67, 67), (100, 33), (40, 70), (1, 1)]
)
@pytest.mark.parametrize(
    "layout",
    LAYOUTS.values(),
    ids=LAYOUTS,
)
def test_equals_the_reference(device, dtype, width, vocabulary, layout):
    generator = torch.Generator().manual_seed(width * vocabulary)
    base = torch.randn(
        5,
        2 * width,
        generator=generator,
    ).to(dtype)
    base[0, 0] = torch.nan
    for chosen in ([], [4, 0, 2]):
        mask = random_words((len(chosen), (vocabulary + 31) // 32), generator)
        rows = int32(chosen)
        expected = layout(base, width).clone()
        mask_rows_reference(
            expected,
            mask,
            rows,
            vocabulary,
        )
        found = layout(base.to(device), width)
        mask_rows(
            found,
            mask.to(device),
            rows.to(device),
            vocabulary,
        )
        assert torch.equal(bits(found.cpu()), bits(expected))


@pytest.mark.gpu
@pytest.mark.parametrize("count", [1, 7, 128, 300])
def test_tokens_land_whatever_they_look_like(count):
    """64 bits, 32 and 16; whole tensors and columns of others; rows in order, and some
    in none."""
    from guided_plugin.kernels.rows_triton import write_tokens

    ring = torch.zeros(
        512,
        dtype=torch.int64,
        device="cuda",
    )
    word = filled(1, 0, "cuda")
    sampled = torch.randint(
        -1,
        30_000,
        (512, 3),
        device="cuda",
    )
    step = 2**32 - 3  # steps wrap
    for dtype in (torch.int64, torch.int32, torch.int16):
        columns = sampled.to(dtype)
        shapes = columns[:, 1].contiguous(), columns[:, 2], columns.view(-1)[5:]
        for tokens in shapes:
            for rows in (
                torch.arange(count),
                torch.randperm(512)[:count],
                torch.arange(9, 9 + count),
            ):
                rows = rows.to("cuda", torch.int32)
                ring.fill_(-7)
                step += 1
                write_tokens(
                    tokens,
                    rows,
                    ring.data_ptr(),
                    word.data_ptr(),
                    step,
                )
                expected = tokens.long()[rows.long()].tolist()
                assert ring.tolist() == [*expected, *[-7] * (512 - count)]
                assert int(word) & 0xFFFFFFFF == step & 0xFFFFFFFF


@pytest.mark.parametrize("rows", [1, 5, 33])
@pytest.mark.parametrize("drafts", [None, 0, 2])
@pytest.mark.parametrize(("size", "width"), [(70, 70), (70, 96), (5000, 5100)])
def test_every_row_gets_the_mask_of_its_request_and_position(
    device, kernels, rows, drafts, size, width
):
    generator = torch.Generator().manual_seed(rows)
    normal = functools.partial(torch.randn, generator=generator)
    known = torch.randperm(64, generator=generator)[:rows].tolist()
    guided = [index for at, index in enumerate(known) if at % 3 != 1]
    table = filled(64, -1)
    table[guided] = int32(range(len(guided)))
    most = drafts or 0
    batch = [
        (index, at) for index in known for at in range(1 + most - index % 2 * most)
    ]
    if drafts is not None:
        batch.append((-1, 0))  # of no request
    mask = random_words((len(guided) * (1 + most), (size + 31) // 32), generator)
    logits = normal(len(batch), width)
    expected = logits.clone()
    for row, (index, position) in enumerate(batch):
        if index in guided:
            own = position * len(guided) + guided.index(index)
            mask_rows_reference(
                expected,
                mask[own : own + 1],
                int32([row]),
                size,
            )
    indices, positions = (int32(column, device) for column in zip(*batch, strict=True))
    found = logits.to(device)
    kernels.mask_rows(
        found,
        mask.to(device),
        indices,
        table.to(device),
        size,
        *(() if drafts is None else (positions, len(guided))),
    )
    assert torch.equal(found.cpu(), expected)


def test_a_launch_is_not_taken_for_other_logits(device, kernels):
    """Launches are kept by what logits look like; nothing else may go the same way."""
    generator = torch.Generator().manual_seed(5)
    normal = functools.partial(torch.randn, generator=generator)
    size = 5000
    rows = 6
    table = int32([0, -1, 2, 1, 3, -1], device)
    wide = random_words((4, 320), generator).to(device)
    usual = (torch.float32, 5120, 0, torch.int64, wide[:, :160])
    kinds = [
        usual,
        (torch.bfloat16, *usual[1:]),
        (*usual[:3], torch.int32, usual[4]),
        (usual[0], 5056, *usual[2:]),
        (*usual[:2], 1, *usual[3:]),
        (*usual[:4], usual[4].contiguous()),
    ]
    for repeat in range(3):
        for dtype, width, offset, kind, mask in [*kinds, *reversed(kinds)]:
            for count in (rows, rows - repeat):
                space = normal(count * width + offset).to(device, dtype)
                strided = normal(count, width + 8).to(device, dtype)[:, :width]
                indices = torch.randperm(rows, generator=generator)[:count]
                chosen = table.cpu()[indices]
                guided = (chosen >= 0).nonzero().view(-1)
                masks = mask.cpu()[chosen[guided].long()]
                for one in (space[offset:].view(count, width), strided):
                    expected = one.clone().cpu()
                    mask_rows_reference(
                        expected,
                        masks,
                        guided.int(),
                        size,
                    )
                    there = indices.to(device, kind)
                    kernels.mask_rows(
                        one,
                        mask,
                        there,
                        table,
                        size,
                    )
                    assert torch.equal(one.cpu(), expected)


@pytest.mark.parametrize("count", [1, 7, 200])
def test_tokens_are_those_that_came_since(device, kernels, count):
    """When the kernel is compiled and after; for one order of requests, and for the
    next."""
    generator = torch.Generator().manual_seed(count)
    history = torch.randint(
        0,
        1000,
        (256, 40),
        generator=generator,
        dtype=torch.int32,
    ).to(device)
    ring = torch.zeros(
        256,
        dtype=torch.int64,
        device=device,
    )
    word = filled(1, 0, device)
    step = 2**31 - 3  # steps wrap
    for _ in range(5):
        total = torch.randint(
            1,
            40,
            (256,),
            generator=generator,
            dtype=torch.int32,
        )
        order = torch.randperm(256, generator=generator)[:count]
        lengths = total.clone()
        grown = order[::2]
        never = order[1::4]
        broken = order[3::4]
        lengths[grown] -= 1
        lengths[never] = NEVER
        lengths[broken] += int32([-2, 1]).repeat(64)[: len(broken)]
        expected = [NO_TOKEN] * count
        expected[::2] = history[
            grown.to(device), total[grown].long().to(device) - 1
        ].tolist()
        expected[3::4] = [BROKEN] * len(broken)
        there = lengths.to(device)
        for found in (expected, [NO_TOKEN] * count):  # a second time nothing is new
            step += 1
            ring.fill_(-7)
            sink = TokenSink(
                ring.data_ptr(),
                word.data_ptr(),
                step,
            )
            tokens = kernels.take_tokens(
                order.to(device),
                there,
                total.to(device),
                history,
                sink,
            )
            if device == "cuda":
                assert tokens is None
                assert int(word) & 0xFFFFFFFF == step & 0xFFFFFFFF
                assert ring[count:].tolist() == [-7] * (256 - count)
                tokens = ring[:count]
            assert tokens.tolist() == found
        after = lengths.clone()
        looked_at = torch.cat([grown, broken])
        after[looked_at] = total[looked_at]
        assert torch.equal(there.cpu(), after)


WATCHER = """
import sys
from guided_plugin.worker.layout import TOKEN_DEPTH, Region, Shape
from guided_plugin.worker.words import Counter
fd, count, steps = map(int, sys.argv[1:])
region = Region(fd, Shape(count, 9))
print("ready", flush=True)
seen = looks = 0
while seen < steps:
    landed = region.load(Counter.SAMPLED)
    if landed != seen:
        if not (region.tokens[landed % TOKEN_DEPTH] >= landed).all():
            sys.exit(f"tokens of step {landed} were announced before they were there")
        seen, looks = landed, looks + 1
print(looks)
"""


@pytest.mark.gpu
def test_whoever_sees_the_word_raised_sees_every_token():
    """Another process polls the word, as the grammar worker does, while 4,000 steps go
    by."""
    count = 256
    steps = 4000
    kernels = indexed_kernels(torch.device("cuda"))
    torch.zeros(1, device="cuda")
    region = Region.create(Shape(count, 9))
    base = register_host(region.address, region.shape.size)
    word = base + region.counter_offset(Counter.SAMPLED)
    history = torch.zeros(
        count,
        1,
        dtype=torch.int32,
        device="cuda",
    )
    total = filled(count, 1, "cuda")
    order = torch.randperm(count, device="cuda")
    arguments = [str(region.fd), str(count), str(steps)]
    watcher = subprocess.Popen(
        [sys.executable, "-c", WATCHER, *arguments],
        pass_fds=[region.fd],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert watcher.stdout is not None
        assert watcher.stdout.readline() == "ready\n"
        for step in range(1, steps + 1):
            history.fill_(step)
            place = base + region.shape.places.tokens + step % TOKEN_DEPTH * 8 * count
            sink = TokenSink(
                place,
                word,
                step,
            )
            kernels.take_tokens(
                order,
                torch.zeros_like(total),
                total,
                history,
                sink,
            )
            if step % 500 == 0:
                torch.cuda.synchronize()
        looks, _ = watcher.communicate(timeout=20)
        assert watcher.returncode == 0
        assert int(looks) > 50
    finally:
        watcher.kill()
        watcher.wait()
        torch.cuda.synchronize()
        unregister_host(region.address)
        region.close()


@pytest.mark.parametrize("drafts", [1, 3])
@pytest.mark.parametrize("count", [1, 6, 200])
def test_new_tokens_and_drafts_are_in_blocks(device, kernels, count, drafts):
    chance = random.Random(count)
    history = torch.randint(
        0,
        1000,
        (256, 40),
        dtype=torch.int32,
    )
    total = torch.randint(
        9,
        40,
        (256,),
        dtype=torch.int32,
    )
    order = chance.sample(range(256), count)
    lengths = filled(256, NEVER)
    grown = {
        index: chance.choice([None, 0, 1, drafts, drafts + 1, drafts + 2, -1])
        for index in order
    }
    proposed = {
        index: [chance.randrange(-1, 9) for _ in range(chance.randrange(drafts + 1))]
        for index in order
    }
    unguided = next(index for index in range(256) if index not in order)
    rows = [(-1, 0, 7), (unguided, 0, 7), (unguided, 1, 7)]
    expected = [[NO_TOKEN] * count for _ in range(2 * drafts + 1)]
    for place, index in enumerate(order):
        more = grown[index]
        if more is not None:
            lengths[index] = total[index] - more
            for new in range(min(max(more, 0), drafts + 1)):
                expected[new][place] = int(history[index, total[index] - more + new])
            if not 0 <= more <= drafts + 1:
                expected[0][place] = BROKEN
        rows.append((index, 0, 7))
        for position, draft in enumerate(proposed[index], 1):
            rows.append((index, position, draft))
            if draft >= 0:
                expected[drafts + position][place] = draft
    table = filled(256, -1)
    table[order] = torch.arange(count, dtype=torch.int32)
    columns = [int32(column, device) for column in zip(*rows, strict=True)]
    there = lengths.to(device)
    tables = there, total.to(device), history.to(device), table.to(device)
    known = torch.tensor(order, device=device), *tables
    found = kernels.gather_drafts(
        *known,
        *columns,
        drafts,
    )
    assert found.view(2 * drafts + 1, count).tolist() == expected
    # Drafts in one row for each request, in an order of the batch's own, a part of a
    # wider table, with a row that is not guided; the tokens are known now.
    batch = [*chance.sample(order, count), unguided]
    wide = [
        [*own, *[-1] * (drafts + 1 - len(own)), 7][: drafts + 1]
        for own in (proposed.get(index, [9]) for index in batch)
    ]
    own = torch.tensor(wide, device=device)[:, :drafts]
    nothing = [[NO_TOKEN] * count] * (drafts + 1)
    for given, shown in (
        ((int32(batch, device), None, own), expected[drafts + 1 :]),
        ((None, None, None), nothing[1:]),
    ):
        found = kernels.gather_drafts(
            *known,
            *given,
            drafts,
        )
        assert found.view(2 * drafts + 1, count).tolist() == [*nothing, *shown]
    looked_at = torch.tensor(
        [index for index in order if grown[index] is not None], dtype=torch.long
    )
    lengths[looked_at] = total[looked_at]
    assert torch.equal(there.cpu(), lengths)


@pytest.mark.parametrize("own", [True, False])
def test_offers_stand_in_place_of_guesses_and_what_is_cut_is_rejected(
    device, kernels, own
):
    offers = torch.empty(
        3,
        2,
        2,
        dtype=torch.int32,
        pin_memory=device == "cuda",
    )
    offers[:, :, 0] = torch.tensor([[71, 50], [72, NO_TOKEN], [NO_TOKEN, NO_TOKEN]])
    offers[:, :, 1] = torch.tensor([[0.75, 0.5], [0.25, 0.125], [0.0, torch.nan]]).view(
        torch.int32
    )
    there = offers.data_ptr() if device == "cuda" else offers
    table = filled(
        8,
        -1,
        device,
    )
    table[torch.tensor([6, 2], device=device)] = torch.arange(
        2, dtype=torch.int32, device=device
    )
    indices = int32([2, 4, 6], device)
    drafts = torch.arange(
        1,
        13,
        device=device,
    ).view(3, 4)[:, :3]
    sure = torch.full(
        (8, 3),
        9.0,
        device=device,
    )
    cut = torch.ones(
        8,
        4,
        dtype=torch.int8,
        device=device,
    )
    kernels.take_offers(
        there,
        table,
        indices,
        drafts,
        sure if own else None,
        cut,
        2,
    )
    if own:
        assert drafts.tolist() == [[50, 0, 0], [0, 0, 0], [71, 72, 0]]
        assert sure[[2, 4, 6]].tolist() == [
            [0.5, 0.125, 0.0],
            [0.0] * 3,
            [0.75, 0.25, 0.0],
        ]
        assert (sure[[0, 1, 3, 5, 7]] == 9.0).all()
    else:
        assert drafts.tolist() == [[50, 2, 3], [5, 6, 7], [71, 72, 11]]
        assert (sure == 9.0).all()
    assert cut[[2, 4, 6]].tolist() == [[1, 0, 1, 1], [1, 0, 0, 0], [1, 0, 0, 1]]
    # The first row of a request is no draft.
    rows = [(2, 0), (2, 1), (2, 2), (4, 1), (6, 3), (-1, 1)]
    columns = [int32(column, device) for column in zip(*rows, strict=True)]
    cut[:, 0] = 0
    assert kernels.cut_drafts(cut, *columns).tolist() == [
        False,
        False,
        True,
        False,
        True,
        False,
    ]


@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize(
    ("requests", "rows"), [(1, 0), (1, 1), (6, 4), (300, 300), (300, 170)]
)
def test_the_likeliest_drafts_are_placed(device, kernels, requests, rows, equal):
    rng = random.Random(rows)
    sure = [
        [rng.choice([0.5, 1.0]) if equal else rng.random() for _ in range(7)]
        for _ in range(requests)
    ]
    indices = rng.sample(range(requests), rows)
    asked = rng.choices(range(8), k=rows)
    others = [3] * rows
    for most in (0, sum(asked) // 3, sum(asked)):
        places = [(row, place) for row in range(rows) for place in range(asked[row])]
        places.sort(key=lambda at: -prod(sure[indices[at[0]]][: at[1] + 1]))
        placed = [sum(row == one for one, _ in places[:most]) for row in range(rows)]
        ends = [
            filled(
                count + 1,
                -7,
                device,
            )
            for count in (rows, requests)
        ]
        there = [
            torch.tensor(
                each,
                dtype=torch.int64,
                device=device,
            )
            for each in (indices, asked + others)
        ]
        kernels.place_drafts(
            torch.tensor(sure, device=device),
            *there,
            most,
            1,
            *ends,
        )
        assert ends[0].tolist() == [0, *accumulate(each + 1 for each in placed)]
        tokens = list(accumulate([0, *(each + 3 for each in placed)]))
        assert ends[1].tolist() == tokens + tokens[-1:] * (requests - rows)
