"""The processes that train together: one, or one a GPU under ``torchrun``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class World:
    """This process's place among those that train together, and its device."""

    rank: int
    size: int
    device: torch.device
    #: A group over the CPU, for the clock; None for a single process.
    clock_group: Any = None

    @staticmethod
    def local_rank() -> int:
        return int(os.environ.get("LOCAL_RANK", "0"))

    @staticmethod
    def join(device: str) -> World:
        """Join the others that ``torchrun`` started (none: a world of one)."""
        size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
        on_gpu = device == "cuda"
        place = torch.device("cuda", World.local_rank()) if on_gpu else torch.device("cpu")
        if on_gpu:
            torch.cuda.set_device(place)
        if size == 1:
            return World(0, 1, place)
        dist.init_process_group("nccl" if on_gpu else "gloo")
        return World(rank, size, place, dist.new_group(backend="gloo"))

    def average(self, tensor: Tensor) -> None:
        """Replace a tensor by its mean over all processes."""
        if self.size > 1:
            dist.all_reduce(tensor)
            tensor.div_(self.size)

    def agree(self, value: float) -> float:
        """The first process's value, on all of them."""
        if self.size == 1:
            return value
        shared = torch.tensor([value], dtype=torch.float64)
        dist.broadcast(shared, 0, group=self.clock_group)
        return float(shared)

    def leave(self) -> None:
        if self.size > 1:
            dist.barrier()
            dist.destroy_process_group()
