"""Write docs/speed.md and docs/speed.json from the JSON that the benchmarks print.

Run: `python scripts/speed_page.py FILE...`; `make bench-docs` does all of it. Figures of benchmarks
that are not among the files stay as they are in docs/speed.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"
Results = dict[str, Any]

HEAD = """# Speed

Written by `make bench-docs`; do not edit. Each table is from one run of one script in
`benchmarks/`, in which both sides took turns, on one thread (against Flower, which has a process
for every core, a thread for every core). So a ratio says more than a time: times change with the
machine and with what else it does. Rounds are warm ones of runs of 300 rounds, without evaluation;
compiling is not in them.

`train(compile="auto")` compiles when the rounds to come are expected to repay it: a compile takes
20 s and more for a new kind of run, a few seconds where an earlier process left it on disk, so that
a short run of few sites goes uncompiled. The decision, and how many sites of a large model are
worked on at a time (measured before the first round), are kept in the run's `plan`.
"""
LOCAL_STEP = """## The local step of E-FLoPS

Noise, gates, entropy and updates of a linear model under squared loss, batches of 32 rows, each
lane (a seed at a site) with rows of its own, compiled, inside a round. *Products*: the two bare
batched products of the step, by `torch.bmm` or in a compiled kernel, whichever is faster.
*Element-wise*: all but the products in one fused kernel. *JAX*: jit of vmap of the same step with
the same random numbers. Ratios are the step's time over the other's.
"""
ROUNDS = """## What a round costs beside its arithmetic

Participation, noise, messages, aggregation and history around a model of two features, one seed,
compiled and not.
*First round*: from the call of `train`, with start and first evaluation.
"""
SEEDS = """## Thirty seeds in one run

A round of 30 seeds together over 30 rounds of one seed, and over the element-wise work of its steps
in one fused kernel (1000 features, 10 sites, 2 local steps).
"""
PEER = """## Against {name}

The same job with the same arithmetic at the clients and dense messages: seconds of a warm round of
{name} over fedsift's. {jobs}
"""
EFLOPS = "E-FLoPS: 1000 features, 40 rows a site, 2 local steps."
FEDAVG = "FedAvg: a 784-128-10 network, 640 rows a site, 20 local steps. Batches of 32 rows."


def number(value: Any) -> str:
    """Return a figure with three digits that count, or a dash for one that was not measured."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Return a table as lines of Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + " ---: |" * len(head)]
    return [*lines, *("| " + " | ".join(map(number, row)) + " |" for row in rows), ""]


def columns(cases: Sequence[Results], named: dict[str, str]) -> list[str]:
    """Return a table of cases, a column for each name."""
    return table(list(named.values()), [[case.get(key) for key in named] for case in cases])


def local_step(results: Results) -> list[str]:
    """Tell of the local step."""
    names = {
        "lanes": "lanes",
        "d": "features",
        "step_ms": "step, ms",
        "ratio_to_floor": "to products",
        "ratio_to_bmm": "to `torch.bmm`",
        "ratio_to_elementwise_floor": "to element-wise",
        "ratio_to_both_floors": "to both",
        "ratio_to_jax": "to JAX",
    }
    left = [f"{s['lanes']} lanes of {s['d']:,} features" for s in results["skipped"]]
    note = [f"Left out for memory: {', '.join(left)}.", ""] if left else []
    return [LOCAL_STEP, *columns(results["cases"], names), *note]


def rounds(results: Results) -> list[str]:
    """Tell of the overhead."""
    names = {
        "sites": "sites in a round",
        "overhead_ms": "a round, ms",
        "uncompiled_ms": "uncompiled, ms",
        "first_round_seconds": "first round uncompiled, s",
    }
    return [ROUNDS, *columns(results["cases"], names)]


def seeds(results: Results) -> list[str]:
    """Tell of many seeds."""
    names = {
        "ratio_to_separate_runs": "to 30 runs, all compiled",
        "ratio_to_separate_runs_by_default": "to 30 runs as by default",
        "ratio_to_elementwise_floor": "to element-wise work alone",
        "ratio_to_both_floors": "to that and the products",
    }
    return [SEEDS, *columns([results], names)]


def peer(name: str, key: str) -> Callable[[Results], list[str]]:
    """Return what tells of a simulator."""
    jobs = FEDAVG if key == "pfl" else f"{EFLOPS}\n{FEDAVG}"
    names = {
        "model": "method",
        "sites": "sites",
        f"{key}_ms": f"{name}, ms",
        "fedsift_ms": "fedsift, ms",
        "fedsift_first_round_seconds": "fedsift's first round, s",
        "speedup": "times as fast",
        **({"speedup_uncompiled": "uncompiled"} if key == "flower" else {}),
    } | ({"products_ms": "bare products, ms"} if key == "pfl" else {})
    return lambda results: [PEER.format(name=name, jobs=jobs), *columns(results["cases"], names)]


SECTIONS: dict[str, Callable[[Results], list[str]]] = {
    "local_step": local_step,
    "rounds": rounds,
    "seeds": seeds,
    "flower": peer("Flower's simulator", "flower"),
    "pfl": peer("pfl", "pfl"),
}


def where_a_peer_wins(known: dict[str, Results]) -> list[str]:
    """Return the cases in which the other side was faster."""
    lost = [
        f"JAX takes the local step {number(case['ratio_to_jax'])} times as fast: "
        f"{case['lanes']} lanes of {case['d']:,} features."
        for case in known.get("local_step", {}).get("cases", [])
        if (case["ratio_to_jax"] or 0) > 1
    ]
    cases = [
        (name, case) for name in ("flower", "pfl") for case in known.get(name, {}).get("cases", [])
    ]
    lost += [
        f"{name} is {number(1 / case['speedup'])} times as fast: {case['model']}, "
        f"{case['sites']} sites."
        for name, case in cases
        if case["speedup"] < 1
    ]
    if cases:
        lost.append(
            "Clients of Flower and pfl compile nothing and are at full speed from the first round; "
            "fedsift compiles before its first round where it expects to gain over the run."
        )
    return ["## Where a peer wins", "", *(f"* {line}" for line in lost), ""]


def targets(known: dict[str, Results]) -> list[str]:
    """Return the targets of all benchmarks beside what was measured."""
    rows = [
        [name, target["name"], target["target"], target["measured"], target["met"]]
        for name in SECTIONS
        for target in known.get(name, {}).get("targets", [])
    ]
    return ["## Targets", "", *table(("benchmark", "figure", "target", "measured", "met"), rows)]


def conditions(known: dict[str, Results]) -> list[str]:
    """Return machines and versions, each with the benchmarks that had them."""
    lines: dict[str, list[str]] = {}
    for name in SECTIONS:
        if name not in known:
            continue
        machine, versions = known[name]["machine"], known[name]["versions"]
        said = f"{machine['processor']}, {machine['cores']} cores, Python {machine['python']}; "
        said += ", ".join(f"{package} {number(value)}" for package, value in versions.items())
        said += " (quick)" if known[name]["quick"] else ""
        lines.setdefault(said, []).append(name)
    return ["## Measured on", "", *(f"* {', '.join(n)}: {said}" for said, n in lines.items()), ""]


def page(known: dict[str, Results]) -> str:
    """Return the page."""
    lines = [HEAD]
    for name, tell in SECTIONS.items():
        if name in known:
            lines += tell(known[name])
    lines += where_a_peer_wins(known) + targets(known) + conditions(known)
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    """Read the files and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    store = DOCS / "speed.json"
    known = json.loads(store.read_text()) if store.exists() else {}
    for path in parser.parse_args().files:
        results = json.loads(path.read_text())
        known[results["benchmark"]] = results
    store.write_text(json.dumps(known, indent=1) + "\n")
    (DOCS / "speed.md").write_text(page(known))


if __name__ == "__main__":
    main()
