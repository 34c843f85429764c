"""Time and memory of a round against the number of sites, features and samples.

Data lie in memory-mapped folders; 100 sites take part a round (`--participants`). Every size runs
in a process of its own on one thread; memory is the peak of its anonymous resident pages
(`RssAnon`), which leaves out pages of files. Prints JSON:

* `memory_ratio`: peak at the most sites over that at the fewest, with the same data a round;
* `time_ratio`: the same for the median time of a round, of rounds done in turns;
  `time_ratio_mean` for the mean, evaluations included. The step is given, so that a round is the
  same work for any number of sites. `..._measured_step`: each site's curvature is measured on its
  first visit, which few sites soon have behind them, and many do not;
* `time_exponent_sites`, `_features`, `_samples`: slope of a log-log fit of the time of a round
  against sites, features, and rows of a site; `memory_exponent_...` the same for the peak;
* `sizes`: every measurement.

Run: `python benchmarks/scaling.py [--quick]`. In full it writes 4 GB to `TMPDIR`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch

from fedsift.algorithms import EFLoPS
from fedsift.channels import TopM
from fedsift.data import MappedWriter, open_mapped
from fedsift.linear_problems import linear_problem
from fedsift.training import train

# Sites, features, and rows of a site; the first of each is the size of the other two series.
Sizes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
SIZES: Sizes = ((1000, 10_000, 100_000), (1000, 4000, 16_000), (8, 32, 128))
QUICK: Sizes = ((100, 10_000), (100, 1600), (4, 64))
GIVEN_STEP = ("--learning-rate", "0.002")  # so that no site's curvature is measured


def write(folder: Path, sites: int, features: int, rows: int) -> None:
    """Write sites of standard normal rows whose target follows ten features."""
    generator = np.random.default_rng(0)
    with MappedWriter(folder, outcome="regression") as writer:
        for site in range(sites):
            x = generator.standard_normal((rows, features), dtype=np.float32)
            y = x[:, :10].sum(1) + generator.standard_normal(rows, dtype=np.float32)
            writer.add(f"site_{site}", x, y)


class Peak:
    """Follows the anonymous resident pages of this process."""

    def __init__(self) -> None:
        self.highest, self._done = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    @staticmethod
    def now() -> float:
        """Return MB."""
        status = Path("/proc/self/status").read_text(encoding="ascii")
        line = next(line for line in status.splitlines() if line.startswith("RssAnon"))
        return int(line.split()[1]) / 1024

    def _follow(self) -> None:
        while not self._done.wait(0.002):
            self.highest = max(self.highest, self.now())

    def stop(self) -> float:
        """Return the peak in MB."""
        self._done.set()
        self._thread.join()
        return max(self.highest, self.now())


def work(folder: str, participants: int, rounds: int, learning_rate: float | None) -> None:
    """Train, one round whenever a line comes in, and print the figures at the end."""
    torch.set_num_threads(1)
    peak, begun = Peak(), [0.0]
    before, times = Peak.now(), list[float]()

    def wait() -> None:
        print(json.dumps({"round": len(times)}), flush=True)
        sys.stdin.readline()
        begun.append(time.perf_counter())

    def done(_: object) -> None:
        times.append(time.perf_counter() - begun[-1])
        if len(times) < rounds:
            wait()

    wait()
    data = open_mapped(folder)
    train(
        linear_problem(data),
        data,
        EFLoPS(density=10 / data.n_features, learning_rate=learning_rate),
        rounds=rounds,
        participation=participants,
        channel=TopM(max(1, data.n_features // 20)),
        compile=False,
        callback=done,
    )
    figures = {
        "sites": data.n_sites,
        "features": data.n_features,
        "samples": data.n_samples // data.n_sites,
        "step": "measured" if learning_rate is None else "given",
        "start_seconds": times[0],  # opens, evaluates, and does round 1
        "round_ms": 1e3 * statistics.median(times[1:]),
        "round_ms_mean": 1e3 * statistics.mean(times[1:]),  # evaluations included
        "memory_mb": peak.stop(),
        "memory_imports_mb": before,  # of it, before the data were opened
    }
    print(json.dumps(figures), flush=True)


def measure(folders: list[Path], options: list[str]) -> list[dict[str, float]]:
    """Return the figures of data sets whose rounds were done in turns, a process each."""
    command = [sys.executable, __file__, *options, "--folder"]
    processes = [
        subprocess.Popen(
            [*command, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for folder in folders
    ]
    said = [_answer(process) for process in processes]
    while "round" in said[0]:
        for number, process in enumerate(processes):
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            said[number] = _answer(process)
    for process in processes:
        process.communicate()
    return said


def _answer(process: subprocess.Popen[str]) -> dict[str, float]:
    assert process.stdout is not None
    answer: dict[str, float] = json.loads(process.stdout.readline())
    return answer


def slope(sizes: list[dict[str, float]], along: str, figure: str) -> float:
    """Return the slope of a straight line through the logarithms."""
    x, y = (np.log([size[name] for size in sizes]) for name in (along, figure))
    return float(np.polyfit(x, y, 1)[0])


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--participants", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--folder", help="measure this data set only; used by the script itself")
    arguments = parser.parse_args()
    if arguments.folder:
        work(arguments.folder, arguments.participants, arguments.rounds, arguments.learning_rate)
        return
    (sites, features, samples), rounds, few = SIZES, arguments.rounds, arguments.participants
    if arguments.quick:
        (sites, features, samples), rounds, few = QUICK, 10, 20
    options = ["--participants", str(few), "--rounds", str(rounds)]
    result: dict[str, object] = {"participants": few, "rounds": rounds}
    sizes: list[dict[str, float]] = []
    scratch = Path(tempfile.mkdtemp(prefix="fedsift-scaling-"))
    try:
        along = {
            "sites": [(n, features[0], samples[0]) for n in sites],
            "features": [(sites[0], d, samples[0]) for d in features],
            "samples": [(sites[0], features[0], n) for n in samples],
        }
        for name, shapes in along.items():
            folders = [scratch / "-".join(map(str, shape)) for shape in shapes]
            for folder, shape in zip(folders, shapes, strict=True):
                if not folder.exists():
                    write(folder, *shape)
            found = measure(folders, [*options, *(GIVEN_STEP if name == "sites" else ())])
            sizes += found
            result[f"time_exponent_{name}"] = slope(found, name, "round_ms")
            result[f"memory_exponent_{name}"] = slope(found, name, "memory_mb")
            if name == "sites":
                steps = {"": found, "_measured_step": measure(folders, options)}
                sizes += steps["_measured_step"]
                for step, (first, *_, last) in steps.items():
                    result[f"memory_ratio{step}"] = last["memory_mb"] / first["memory_mb"]
                    result[f"time_ratio{step}"] = last["round_ms"] / first["round_ms"]
                    result[f"time_ratio_mean{step}"] = (
                        last["round_ms_mean"] / first["round_ms_mean"]
                    )
    finally:
        shutil.rmtree(scratch)
    print(json.dumps({**result, "sizes": sizes}, indent=1))


if __name__ == "__main__":
    main()
