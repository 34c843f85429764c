"""These tests need Flower (the extra ``flower``, a part of ``dev``)."""

import importlib.util

collect_ignore_glob = ["test_*.py"] if importlib.util.find_spec("flwr") is None else []
