"""Pictures of the benchmarks: bars of ratios beside a line at the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

BLUE, RED = "#2f6f9f", "#b03a2e"


def bars(
    path: Path,
    title: str,
    unit: str,
    values: Mapping[str, float | None],
    targets: Sequence[float] = (),
) -> None:
    """Draw a bar for every value that was measured, on a logarithmic axis, and save it."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    measured = {name: value for name, value in values.items() if value is not None}
    figure, axes = plt.subplots(figsize=(7, 0.6 + 0.35 * len(measured)), layout="constrained")
    drawn = axes.barh(list(measured), list(measured.values()), color=BLUE, height=0.6)
    axes.bar_label(drawn, fmt="%.3g", padding=3)
    for target in targets:
        axes.axvline(target, color=RED, linestyle="--", linewidth=1)
    axes.invert_yaxis()
    axes.set(xscale="log", title=title, xlabel=unit)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")
    axes.margins(x=0.15)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
