"""fedsift: find the few parameters that matter, with data that stay at their sites."""

__version__ = "0.1.0"
