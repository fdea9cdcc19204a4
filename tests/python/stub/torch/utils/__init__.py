"""Packages that tune_report looks into."""

from torch.utils import data  # noqa: F401
