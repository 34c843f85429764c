"""What site files hold, before anything is fitted: counts and statistics, never a row's values."""

from fedsift.inspection.facts import inspect_files

__all__ = ["inspect_files"]
