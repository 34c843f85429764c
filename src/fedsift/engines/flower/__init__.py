"""The engine for real machines: the same functions inside a Flower ServerApp and ClientApp.

Importing this needs nothing of Flower; `wire` and `apps` do (``pip install 'fedsift[flower]'``).
"""

from __future__ import annotations

from fedsift.engines.flower.engine import FlowerEngine
from fedsift.engines.flower.link import GridLink, Policy, SitesError
from fedsift.engines.flower.site import Site

__all__ = ["FlowerEngine", "GridLink", "Policy", "Site", "SitesError"]
