"""kill -9 wherever a forgetting run leaves something on disk: it ends as if undisturbed."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedsift.unlearning.audit import read_audit
from fedsift.unlearning.process import FOLDER, Orders, forget_in_run, open_ledger
from fedsift.unlearning.scope import Scope
from fedsift.unlearning.verify import verify_run
from tests.test_forget_run import write_run

# A first step that breaks the budget: it is undone before others are accepted.
OPTIONS = {"rounds": 14, "target": 0.71, "local_steps": 1, "first": 100.0, "budget": 0.001}
METHODS: dict[str, dict[str, Any]] = {"fumegs": OPTIONS, "retrain": {}}


class Killer:
    """Kills this process at the ``last``-th event: a change on disk that is to come."""

    def __init__(self, last: int) -> None:
        self.left = last

    def strike(self, _: str = "") -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def before(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(path: Path, *args: Any, **more: Any) -> Any:
            if path.exists():
                self.strike()
            return change(path, *args, **more)

        return changed


def forget(run: Path, method: str, last: int) -> None:
    """Forget a site; die at an event, with 0 at none, and write how many events there were."""
    import torch

    torch.set_num_threads(1)
    killer = Killer(last)
    for owner, name in ((Path, "replace"), (Path, "unlink"), (shutil, "rmtree")):
        setattr(owner, name, killer.before(getattr(owner, name)))
    orders = Orders(method=method, options=METHODS[method], fault=killer.strike)
    forget_in_run(run, Scope(sites=("c",)), orders)
    (run / "events").write_text(str(-killer.left))


@pytest.mark.slow
@pytest.mark.parametrize(
    "every", [pytest.param(5), pytest.param(1, marks=pytest.mark.acceptance_long)]
)
@pytest.mark.parametrize("method", list(METHODS))
def test_killed_at_any_write_it_ends_with_the_same_model_and_one_record(
    tmp_path: Path, method: str, every: int, figure: Any
) -> None:
    """Every write of the ledger, every accepted or undone step, every file put in its place."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.acceptance.test_forget_kills"])
    start = write_run(tmp_path)
    with open_ledger(start) as ledger:
        ledger._put("salt", "00")

    def ended(run: Path, last: int) -> int | None:
        process = context.Process(target=forget, args=(run, method, last))
        process.start()
        process.join()
        return process.exitcode

    calm = tmp_path / "calm"
    shutil.copytree(start, calm)
    assert ended(calm, 0) == 0
    model = (calm / "model.safetensors").read_bytes()
    records = map(json.loads, (calm / "history.jsonl").read_text().splitlines())
    if method == "fumegs":
        steps = [r["kept"] for r in records if r["stage"] == "forget"]
        assert {0.0, 1.0} <= set(steps)
    events = int((calm / "events").read_text())
    assert events > 25
    moments = range(1, events + 1, every)
    for last in moments:
        run = tmp_path / "disturbed"
        shutil.copytree(start, run)
        assert ended(run, last) == -signal.SIGKILL, last
        assert ended(run, 0) == 0, last
        assert (run / "model.safetensors").read_bytes() == model, last
        assert len(read_audit(run / FOLDER / "audit.jsonl")) == 1, last
        assert verify_run(run).holds, last
        left = {f.name for f in (run / FOLDER).iterdir()} - {"ledger.sqlite", "audit.jsonl"}
        assert not left, last
        shutil.rmtree(run)
    figure(f"kill -9 at the writes of forget by {method}: killed, bit-equal", [len(moments)] * 2)
