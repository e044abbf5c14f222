"""Muon for matrices, AdamW for the rest, over processes that hold the same gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

_QUINTIC = (3.4445, -4.7750, 2.0315)
_SMALLEST_MATRIX = 16
"""Matrices with a side below this go to AdamW."""


def orthogonalised(matrices: Tensor, steps: int = 5) -> Tensor:
    """Nearly the orthogonal factor of each matrix `[n, rows, columns]`, by quintic Newton-Schulz iterations.

    Source: Jordan et al., Muon (2024); coefficients from there.
    """
    a, b, c = _QUINTIC
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x: Tensor = matrices.mT if is_tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if is_tall else x


class Muon:
    """Momentum of 0.95 (Nesterov), then the orthogonal factor, scaled by sqrt(max(1, rows / columns)).

    Matrices of one shape are stacked. With several processes each orthogonalises its share of a stack and the shares
    are summed, so every process ends with the same weights.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        self.lr = self.base_lr = lr
        self.momentum = momentum
        by_shape: dict[torch.Size, list[nn.Parameter]] = {}
        for parameter in parameters:
            by_shape.setdefault(parameter.shape, []).append(parameter)
        self.stacks = list(by_shape.values())
        self.buffers = [torch.zeros(len(stack), *stack[0].shape) for stack in self.stacks]

    @torch.no_grad()
    def step(self) -> None:
        """Update from `.grad`."""
        updates = [
            self._update(stack, buffer) for stack, buffer in zip(self.stacks, self.buffers, strict=True)
        ]
        if _num_processes() > 1:
            flat = torch.cat([u.flatten() for u in updates])
            dist.all_reduce(flat)
            parts = torch.split(flat, [u.numel() for u in updates])
            updates = [part.view_as(u) for part, u in zip(parts, updates, strict=True)]
        for stack, update in zip(self.stacks, updates, strict=True):
            rows, columns = stack[0].shape
            for parameter, change in zip(stack, update, strict=True):
                parameter.add_(change, alpha=-self.lr * max(1.0, rows / columns) ** 0.5)

    def _update(self, stack: list[nn.Parameter], buffer: Tensor) -> Tensor:
        gradient = torch.stack([_gradient(p) for p in stack])
        buffer.lerp_(gradient, 1 - self.momentum)
        wanted = gradient.lerp(buffer, self.momentum)
        update = torch.zeros_like(wanted)
        size = -(-len(stack) // _num_processes())
        start = _process() * size
        if start < len(stack):
            update[start : start + size] = orthogonalised(wanted[start : start + size])
        return update

    def state_dict(self) -> dict[str, Any]:
        return {"buffers": self.buffers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for buffer, saved in zip(self.buffers, state["buffers"], strict=True):
            buffer.copy_(saved)


class MuonAdamW:
    """Both optimisers behind one `step`; embeddings have a learning rate of their own."""

    def __init__(self, model: nn.Module, *, matrix_lr: float, embedding_lr: float, other_lr: float) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        matrices, embeddings, others = [], [], []
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue
            if "embed_tokens" in name:
                embeddings.append(parameter)
            elif parameter.ndim == 2 and min(parameter.shape) >= _SMALLEST_MATRIX and "lm_head" not in name:
                matrices.append(parameter)
            else:
                others.append(parameter)
        self.muon = Muon(matrices, matrix_lr)
        groups = [{"params": g, "lr": lr} for g, lr in ((embeddings, embedding_lr), (others, other_lr)) if g]
        self.adamw = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
        self._base_lrs = [group["lr"] for group in self.adamw.param_groups]

    def step(self, lr_scale: float, max_norm: float = 1.0) -> float:
        """Average gradients over the processes, clip them, update, clear; returns the norm before clipping."""
        if _num_processes() > 1:
            flat = torch.cat([_gradient(p).flatten() for p in self.parameters]) / _num_processes()
            dist.all_reduce(flat)
            parts = torch.split(flat, [p.numel() for p in self.parameters])
            for parameter, part in zip(self.parameters, parts, strict=True):
                parameter.grad = part.view_as(parameter)
        norm = float(nn.utils.clip_grad_norm_(self.parameters, max_norm))
        self.muon.lr = self.muon.base_lr * lr_scale
        for group, lr in zip(self.adamw.param_groups, self._base_lrs, strict=True):
            group["lr"] = lr * lr_scale
        self.muon.step()
        self.adamw.step()
        for parameter in self.parameters:
            parameter.grad = None
        return norm

    def state_dict(self) -> dict[str, Any]:
        return {"muon": self.muon.state_dict(), "adamw": self.adamw.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.muon.load_state_dict(state["muon"])
        self.adamw.load_state_dict(state["adamw"])


def lr_scale(step: int, steps: int, warmup_steps: int, decay_share: float) -> float:
    """Linear warm-up, constant, then linear to zero over the last `decay_share` of the steps."""
    decay = (steps - step) / max(1.0, steps * decay_share)
    return min(1.0, (step + 1) / max(1, warmup_steps), decay)


def _gradient(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _num_processes() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _process() -> int:
    return dist.get_rank() if dist.is_initialized() else 0
