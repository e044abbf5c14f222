"""Adjacent injection in Triton, where only the anchor's code is known.

Three launches a layer: the readout, a plain matrix product; `_gate_kernel`, all between the readout and the messages;
`_write_kernel`, the last product and the sum. A row's norm scales what a product made of it, so that nothing
normalised is stored; the anchor's code stands in for its feature, and the shift to the predecessor is an address.

Floor: the weights once, bytes (R H + 3 M R + H M) * 2 in bf16, 18.9 MB a layer at 27B dimensions and 15.7 MB at 8B, of
which the 3 M R are the same for all layers; plus 3 reads and 1 write of `[num_blocks, block_size, H]`. Five layers at
8B: 79 MB, 18 us at 4.3 TB/s.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from dspine_kernels.aot_spec import AotSpec
from dspine_kernels.injection.reference import InjectionWeights


@triton.jit
def gate_tile(
    receivers,
    predecessors,
    is_code,
    is_row,
    columns,
    receiver_gate,
    predecessor_gate,
    message,
    bias,
    RANK: tl.constexpr,
    MESSAGE: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """gate * message of a tile of rows, fp32 [rows, columns].

    `receivers` and `predecessors` point to vectors of RANK entries before normalisation, `is_code` marks predecessors
    that have length 1 already.
    """
    is_column = columns < MESSAGE
    received = tl.zeros((receivers.shape[0], columns.shape[0]), tl.float32)
    preceded = tl.zeros((receivers.shape[0], columns.shape[0]), tl.float32)
    messages = tl.zeros((receivers.shape[0], columns.shape[0]), tl.float32)
    receiver_squares = tl.zeros((receivers.shape[0],), tl.float32)
    predecessor_squares = tl.zeros((receivers.shape[0],), tl.float32)
    for start in range(0, RANK, BLOCK_R):
        r = start + tl.arange(0, BLOCK_R)
        in_rows = is_row[:, None] & (r < RANK)[None, :]
        in_weights = (r < RANK)[:, None] & is_column[None, :]
        weights = columns[None, :] * RANK + r[:, None]
        receiver = tl.load(receivers[:, None] + r[None, :], mask=in_rows, other=0.0)
        predecessor = tl.load(predecessors[:, None] + r[None, :], mask=in_rows, other=0.0)
        receiver_weight = tl.load(receiver_gate + weights, mask=in_weights, other=0.0)
        predecessor_weight = tl.load(predecessor_gate + weights, mask=in_weights, other=0.0)
        message_weight = tl.load(message + weights, mask=in_weights, other=0.0)
        received = tl.dot(receiver, receiver_weight, received, input_precision="ieee")
        preceded = tl.dot(predecessor, predecessor_weight, preceded, input_precision="ieee")
        messages = tl.dot(predecessor, message_weight, messages, input_precision="ieee")
        wide_receiver = receiver.to(tl.float32)
        wide_predecessor = predecessor.to(tl.float32)
        receiver_squares += tl.sum(wide_receiver * wide_receiver, 1)
        predecessor_squares += tl.sum(wide_predecessor * wide_predecessor, 1)
    root = tl.sqrt(RANK * 1.0)
    receiver_scale = root / tl.maximum(tl.sqrt(receiver_squares), 1e-12)
    predecessor_scale = root / tl.where(is_code, 1.0, tl.maximum(tl.sqrt(predecessor_squares), 1e-12))
    bias_row = tl.load(bias + columns, mask=is_column, other=0.0).to(tl.float32)
    gates = received * receiver_scale[:, None] + preceded * predecessor_scale[:, None] + bias_row[None, :]
    return tl.sigmoid(gates) * messages * predecessor_scale[:, None]


@triton.jit
def _gate_kernel(
    hidden,
    projected,
    anchors,
    codes,
    receiver_gate,
    predecessor_gate,
    message,
    bias,
    gated,
    scales,
    num_rows,
    BLOCK_SIZE: tl.constexpr,
    HIDDEN: tl.constexpr,
    RANK: tl.constexpr,
    MESSAGE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """Programs (row tile, column tile); after the last column tile one program a row takes its norm."""
    first = tl.program_id(0) * BLOCK_ROWS
    tile = tl.program_id(1)
    num_tiles = tl.cdiv(MESSAGE, BLOCK_M)
    if tile < num_tiles:
        rows = first + tl.arange(0, BLOCK_ROWS)
        columns = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        in_block = rows % BLOCK_SIZE
        is_proposal = (rows < num_rows) & (in_block > 0)
        is_code = in_block == 1
        anchor = tl.load(anchors + rows // BLOCK_SIZE, mask=is_proposal & is_code, other=0).to(tl.int64)
        before = tl.where(is_proposal, rows - 1, 0)
        predecessors = tl.where(is_code, codes + anchor * RANK, projected + before * RANK)
        values = gate_tile(
            projected + tl.where(is_proposal, rows, 0) * RANK,
            predecessors,
            is_code,
            is_proposal,
            columns,
            receiver_gate,
            predecessor_gate,
            message,
            bias,
            RANK,
            MESSAGE,
            BLOCK_R,
        )
        # An anchor receives nothing.
        values = tl.where(is_proposal[:, None], values, 0.0)
        is_stored = (rows < num_rows)[:, None] & (columns < MESSAGE)[None, :]
        pointers = gated + rows[:, None] * MESSAGE + columns[None, :]
        tl.store(pointers, values.to(gated.dtype.element_ty), mask=is_stored)
    else:
        row = first + tile - num_tiles
        if row < num_rows:
            squares = tl.zeros((BLOCK_H,), tl.float32)
            for start in range(0, HIDDEN, BLOCK_H):
                h = start + tl.arange(0, BLOCK_H)
                state = tl.load(hidden + row * HIDDEN + h, mask=h < HIDDEN, other=0.0).to(tl.float32)
                squares += state * state
            tl.store(scales + row, tl.sqrt(tl.sum(squares, 0) / HIDDEN))


@triton.jit
def _write_kernel(
    hidden,
    scales,
    gated,
    write,
    out,
    num_rows,
    HIDDEN: tl.constexpr,
    MESSAGE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """out = hidden + scale * write(gated); programs (row tile, tile of the hidden size)."""
    rows = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    columns = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    is_row = rows < num_rows
    is_column = columns < HIDDEN
    written = tl.zeros((BLOCK_ROWS, BLOCK_H), tl.float32)
    for start in range(0, MESSAGE, BLOCK_M):
        m = start + tl.arange(0, BLOCK_M)
        is_message = m < MESSAGE
        values = tl.load(
            gated + rows[:, None] * MESSAGE + m[None, :],
            mask=is_row[:, None] & is_message[None, :],
            other=0.0,
        )
        weight = tl.load(
            write + columns[None, :] * MESSAGE + m[:, None],
            mask=is_message[:, None] & is_column[None, :],
            other=0.0,
        )
        written = tl.dot(values, weight, written, input_precision="ieee")
    offsets = rows[:, None] * HIDDEN + columns[None, :]
    is_place = is_row[:, None] & is_column[None, :]
    state = tl.load(hidden + offsets, mask=is_place, other=0.0).to(tl.float32)
    scale = tl.load(scales + rows, mask=is_row, other=0.0)
    tl.store(out + offsets, (state + scale[:, None] * written).to(out.dtype.element_ty), mask=is_place)


def _tiles(num_rows: int) -> tuple[dict[str, int], dict[str, int]]:
    """Tiles of both kernels: narrow for few rows, where the weights must come through as many programs as can be."""
    if num_rows <= 64:
        rows, message_columns, rank_step, hidden_columns = 16, 16, 128, 32
    else:
        rows, message_columns, rank_step, hidden_columns = 64, 32, 64, 64
    return (
        {"BLOCK_ROWS": rows, "BLOCK_M": message_columns, "BLOCK_R": rank_step, "BLOCK_H": 1024},
        {"BLOCK_ROWS": rows, "BLOCK_M": 128, "BLOCK_H": hidden_columns},
    )


_OPTIONS = {"num_warps": 4, "num_stages": 3}


def inject_after_anchors(hidden: Tensor, anchors: Tensor, codes: Tensor, weights: InjectionWeights) -> Tensor:
    """See `dspine_kernels.injection.inject_after_anchors`; `hidden` contiguous, all of one dtype."""
    num_blocks, block_size, hidden_size = hidden.shape
    message_size, rank = weights.message.shape
    num_rows = num_blocks * block_size
    assert hidden.is_contiguous()
    out = torch.empty_like(hidden)
    if num_rows == 0:
        return out
    projected = F.linear(hidden, weights.readout)  # [num_blocks, block_size, transfer_rank]
    gated = hidden.new_empty(num_rows, message_size)
    scales = hidden.new_empty(num_rows, dtype=torch.float32)
    gate_tiles, write_tiles = _tiles(num_rows)
    block_rows = gate_tiles["BLOCK_ROWS"]
    row_tiles = triton.cdiv(num_rows, block_rows)
    _gate_kernel[(row_tiles, triton.cdiv(message_size, gate_tiles["BLOCK_M"]) + block_rows)](
        hidden,
        projected,
        anchors,
        codes,
        weights.receiver_gate,
        weights.predecessor_gate,
        weights.message,
        weights.bias,
        gated,
        scales,
        num_rows,
        BLOCK_SIZE=block_size,
        HIDDEN=hidden_size,
        RANK=rank,
        MESSAGE=message_size,
        **gate_tiles,
        **_OPTIONS,
    )
    _write_kernel[(row_tiles, triton.cdiv(hidden_size, write_tiles["BLOCK_H"]))](
        hidden,
        scales,
        gated,
        weights.write,
        out,
        num_rows,
        HIDDEN=hidden_size,
        MESSAGE=message_size,
        **write_tiles,
        **_OPTIONS,
    )
    return out


def aot_specs() -> list[AotSpec]:
    """One block and many, at both drafters' dimensions."""
    return [
        spec
        for model, hidden_size in (("27B", 5120), ("8B", 4096))
        for num_rows in (16, 512)
        for spec in _specs(f"{model}, {num_rows} rows", hidden_size, num_rows)
    ]


def _specs(name: str, hidden_size: int, num_rows: int) -> list[AotSpec]:
    sizes = {"HIDDEN": hidden_size, "MESSAGE": 512}
    gate_tiles, write_tiles = _tiles(num_rows)
    states = ("hidden", "projected", "codes", "receiver_gate", "predecessor_gate", "message", "bias", "gated")
    gate = {**dict.fromkeys(states, "*bf16"), "anchors": "*i64", "scales": "*fp32", "num_rows": "i32"}
    write = {
        **dict.fromkeys(("hidden", "gated", "write", "out"), "*bf16"),
        "scales": "*fp32",
        "num_rows": "i32",
    }
    return [
        AotSpec(
            name=f"injection.gate {name}",
            kernel=_gate_kernel,
            signature=gate,
            constexprs={**sizes, **gate_tiles, "BLOCK_SIZE": 16, "RANK": 1024},
            divisible_by_16=("num_rows",),
            **_OPTIONS,
        ),
        AotSpec(
            name=f"injection.write {name}",
            kernel=_write_kernel,
            signature=write,
            constexprs={**sizes, **write_tiles},
            divisible_by_16=("num_rows",),
            **_OPTIONS,
        ),
    ]
