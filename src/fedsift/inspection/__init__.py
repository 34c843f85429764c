"""What site files hold, before anything is fitted: counts and statistics, never a row's values."""

from fedsift.inspection.facts import inspect_files
from fedsift.inspection.planned import check_file

__all__ = ["check_file", "inspect_files"]
