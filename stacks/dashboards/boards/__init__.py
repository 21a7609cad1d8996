"""The dashboards, one a file."""

from __future__ import annotations

from stacks.dashboards.boards import file_system, gpu, ray_core, ray_data, ray_serve, ray_train, training
from stacks.dashboards.panel import Board

BOARDS: tuple[Board, ...] = (
    training.BOARD, ray_core.BOARD, ray_data.BOARD, ray_train.BOARD, ray_serve.BOARD, gpu.BOARD, file_system.BOARD,
)  # fmt: skip
