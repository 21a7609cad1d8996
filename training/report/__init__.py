"""`hyperpod-rl report`: runs as one HTML page that needs nothing else, no network and no script."""

from training.report.page import page

__all__ = ["page"]
