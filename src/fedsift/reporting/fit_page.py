"""The page of a fit: what it found, how sure that is, and what nobody checked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedsift.data.errors import counted
from fedsift.findings import Feature
from fedsift.methods import METHODS
from fedsift.reporting import fit_figures as figures
from fedsift.reporting.commands import changed_settings, fit_command
from fedsift.reporting.intervals import TITLES, intervals_figure
from fedsift.reporting.limits import limits
from fedsift.reporting.page import Block, Code, Figures, Page, Points, Section, Table, Words
from fedsift.reporting.readable import readable
from fedsift.reporting.rich_tables import blocks as table_blocks
from fedsift.reporting.rich_tables import plain_table, searches
from fedsift.reporting.tables import (
    MOST_LABELS,
    alternatives_text,
    caution,
    control_text,
    covariate_table,
    direction,
    group_table,
    headline,
    held_out_table,
    label_table,
    score_table,
    sentence,
    size,
    target_words,
    traffic,
    weights_by_label,
)
from fedsift.runs import Run
from fedsift.unlearning.audit import read_audit
from fedsift.unlearning.membership import wilson
from fedsift.unlearning.process import AUDIT, FOLDER

MOST_FEATURES = 200  # in the table; features.csv has all
MOST_PROFILES = 8
ROUNDED = "Not kept: with counts told in multiples (--round-counts) groups are not counted exactly."


def fit_page(run: Run) -> Page:
    """Return the page of a finished fit in a folder."""
    history = run.history()
    forgotten = _forgotten(run)
    run = readable(run)
    sections = [
        _features(run),
        _intervals(run),
        _values(run),
        _stability(run),
        _prediction(run),
        _sites(run),
        _training(run, history),
        _traffic(run, history),
        forgotten,
        Section("limits", "What was not checked", [Points(limits(run))]),
        _again(run),
    ]
    warning = caution(run)
    return Page(
        title=f"What predicts {target_words(run.facts['data'])}",
        subtitle=f"fedsift report of a fit with {run.settings.method}",
        summary=sentence(run).plain,
        facts=_facts(run),
        cautions=[warning] if warning else [],
        sections=[section for section in sections if section is not None and section.blocks],
    )


def _facts(run: Run) -> list[tuple[str, str, str]]:
    data, results = run.facts["data"], run.results
    samples = "not told" if data["samples"] is None else f"{data['samples']}"
    found = [
        ("Features kept", f"{len(run.features)}", f"of {data['features']}"),
        ("Samples", samples, f"at {counted(len(data['sites']), 'site')}"),
    ]
    score = headline(results)
    if score is not None:
        name, value, interval = score
        found.append((f"Held-out {name}", value, interval))
    if METHODS[run.settings.method].rows == "federated":
        sent = results["bytes_up"] + results["bytes_down"]
        found.append(("Sent in all", size(sent), f"{size(results['bytes_per_seed'])} a seed"))
    if "privacy" in run.facts:
        promise = run.facts["privacy"]
        found.append(("Privacy", f"ε = {promise['epsilon']:.3g}", f"δ = {promise['delta']:g}"))
    return found


def _features(run: Run) -> Section:
    how = [Words(control_text(run.results["error_control"]))] if run.settings.controlled else []
    if not run.features:
        return Section("features", "Chosen features", [Words("No feature was chosen."), *how])
    splits = any(f.split_frequency is not None for f in run.features)
    labels = _labels(run)
    head = [
        "feature",
        "chosen by seeds",
        "95 % interval",
        *(["chosen in splits"] if splits else []),
        *(labels or ("more of it speaks for", "coefficient", "95 % interval")),
    ]
    rows = [_feature_row(run, feature, splits=splits) for feature in run.features[:MOST_FEATURES]]
    numbers = frozenset({1, 2, *({3} if splits else ()), *range(len(head) - 2, len(head))})
    numbers |= frozenset(range(len(head) - len(labels), len(head)))
    caption = "Chosen features, most often chosen first"
    if len(run.features) > MOST_FEATURES:
        caption += f"; {len(run.features) - MOST_FEATURES} more in features.csv"
    blocks: list[Block] = [*how, Table(caption, head, rows, numbers)]
    runs = f"{counted(run.settings.lanes, 'run')} with other random numbers, on the same samples,"
    if run.settings.pfer is not None:
        runs = f"{searches(run.settings)}, halves of the samples of each site,"
    blocks.append(
        Words(
            f"Chosen by seeds: the share of {runs} that chose the feature."
            + (" Chosen in splits: the same with other samples left out." if splits else "")
            + " Coefficients are per standard unit, of the chosen features refitted together; "
            + (
                "each label has its own."
                if labels
                else "their intervals are over the seeds that chose the feature."
            )
        )
    )
    if run.facts["candidates"]:
        chart = figures.inclusion(run.facts["candidates"], run.settings.lanes)
        blocks.append(Figures([chart]))
    if run.settings.groups is not None:
        blocks += table_blocks(group_table(run), "Chosen groups")
    text = alternatives_text(run.results)
    if text:
        blocks.append(Words(text))
    if run.effects:
        blocks += table_blocks(covariate_table(run), "Covariates")
    return Section("features", "Chosen features", blocks)


def _intervals(run: Run) -> Section | None:
    told = run.results.get("intervals")
    if told is None:
        return None
    title = TITLES[told["how"]]
    if told["reason"] is not None:
        return Section("intervals", title, [Words(f"There are none: {told['reason']}.")])
    return Section("intervals", title, [Figures([intervals_figure(run)])])


def _feature_row(run: Run, feature: Feature, *, splits: bool) -> list[str]:
    share, seeds = feature.inclusion_probability, run.settings.lanes
    _, low, high = wilson(round(share * seeds), seeds)
    often = feature.split_frequency
    ends: tuple[float | None, float | None] = (feature.weight_low, feature.weight_high)
    known = all(end is not None and not math.isnan(end) for end in ends)
    weights = [
        direction(run, feature),
        f"{feature.weight:+.2f}",
        f"{ends[0]:+.2f} to {ends[1]:+.2f}" if known else "–",
    ]
    if _labels(run):
        weights = [f"{weight:+.2f}" for weight in weights_by_label(run, feature).values()]
    return [
        f"{feature.name}  {feature.description}".strip(),
        f"{share:.0%}",
        f"{low:.0%} to {high:.0%}",
        *([] if not splits else ["–" if often is None else f"{often:.0%}"]),
        *weights,
    ]


def _values(run: Run) -> Section:
    found = run.facts.get("profiles") or []
    least = max(3, run.settings.min_cell)
    by_name = {feature.name: feature for feature in run.features}
    shown = [p for p in found if p["name"] in by_name][:MOST_PROFILES]
    kinds = "label" if _labels(run) else "class"
    title = f"Values by {kinds} and site" if run.facts["data"]["classes"] else "Values by site"
    if not shown:
        why = _why_no_values(run)
        return Section("values", title, [Words(why)] if why else [])
    classes = run.facts["data"]["classes"]
    charts = [figures.profiles(p, by_name[p["name"]], classes) for p in shown]
    text = (
        f"Groups of fewer than {least} samples are left out, and so is the line of all sites where "
        "they could be worked out from it."
    )
    if len(run.features) > len(shown):
        text = f"The first {len(shown)} of {len(run.features)} features. {text}"
    return Section("values", title, [Words(text), Figures(charts)])


def _why_no_values(run: Run) -> str:
    if "privacy" in run.facts:
        return "Not shown: means of the samples would not be covered by the privacy of the run."
    if run.facts["plan"].get("engine") == "flower":
        return "Not shown: the samples stayed at their sites, which were not asked for means."
    if run.settings.round_counts > 1:
        return ROUNDED
    if run.features:
        return "Not kept: there are too many sites or classes, or the run is of an earlier release."
    return ""


def _stability(run: Run) -> Section | None:
    points = run.facts.get("agreement") or []
    if not run.features:
        return None
    if not points:
        text = "One seed says nothing about stability; fit with more (--seeds)."
        return Section("stability", "How stable the choice is", [Words(text)])
    parts = []
    for name, over in (("stability_seeds", "seeds"), ("stability_splits", "splits")):
        value = run.results.get(name, {}).get("nogueira")
        if value is not None and not math.isnan(value):
            parts.append(f"over {over} {value:.2f}")
    text = (
        f"Stability {', '.join(parts)}: 1 where always the same features are chosen, 0 for chance "
        "(Nogueira, Sechidis and Brown, 2018)."
        if parts
        else ""
    )
    blocks: list[Block] = [Words(text)] if text else []
    if len(points) > 1:
        blocks.append(Figures([figures.agreement(points)]))
    else:
        shared = f"{points[0]['shared']:.0%}"
        blocks.append(
            Words(
                f"Two seeds have {shared} of their features in common, on the mean; with 4 seeds or"
                " more a chart shows groups of them."
            )
        )
    return Section("stability", "How stable the choice is", blocks)


def _prediction(run: Run) -> Section:
    title, table = "How well it predicts", score_table(run)
    if table is None:
        text = "No sample was held out, so nothing is known of how well the model predicts."
        return Section("prediction", title, [Words(text, caution=True)])
    blocks: list[Block] = [plain_table("Scores on samples held out", table)]
    if "labels" in run.results:
        blocks += table_blocks(label_table(run), "Scores by label")
    found = run.facts.get("held_out")
    if found is None:
        blocks.append(Words(_why_no_groups(run)))
        return Section("prediction", title, blocks)
    groups = {name: rows for name, rows in found["groups"].items() if rows}
    charts = []
    if "auc" in found and any(len(rows) > 1 for rows in groups.values()):
        charts.append(figures.roc(groups, found["auc"]))
    if groups:
        charts.append(figures.calibration(groups, classes="auc" in found))
    text = (
        f"{counted(found['rows'], 'different sample')} held out, each counted once: by the model "
        "of the first split that held it out."
    )
    blocks += [Words(text), *([Figures(charts)] if charts else [])]
    if not charts:
        blocks.append(Words("Too few samples were held out to draw groups of them."))
    if "confusion" in found:
        blocks.append(_confusion(found["confusion"], run.facts["data"]["classes"]))
    return Section("prediction", title, blocks)


def _labels(run: Run) -> list[str]:
    """Return the labels that are shown one by one, none of other outcomes."""
    data = run.facts["data"]
    return data["classes"][:MOST_LABELS] if data["outcome"] == "multilabel" else []


def _timed(run: Run) -> bool:
    return bool(run.facts["data"]["outcome"] == "survival")


def _why_no_groups(run: Run) -> str:
    if run.facts["plan"].get("engine") == "flower":
        return "Curves are not shown: sites told sums of loss and score, and nothing of the kind."
    if "held_out" in run.facts and _is_changed(run):
        return "Curves are not kept once samples were forgotten: they counted those, too."
    if run.settings.round_counts > 1:
        return ROUNDED
    if _timed(run):
        return "There are no curves: a risk is no time, and times are not to be told."
    return "Curves are not kept: there are too many classes, or the run is of an earlier release."


def _confusion(counts: Sequence[Sequence[int | None]], classes: Sequence[str]) -> Table:
    rows, shades = [], []
    for name, row in zip(classes, counts, strict=True):
        total = sum(n or 0 for n in row)
        rows.append([name, *("few" if n is None else f"{n}" for n in row)])
        shades.append([None, *(None if n is None or not total else n / total for n in row)])
    return Table(
        "What the samples are (rows) and what the model said (columns)",
        ["truly", *(f"said {name}" for name in classes)],
        rows,
        frozenset(range(1, len(classes) + 1)),
        shades,
    )


def _sites(run: Run) -> Section:
    found = (run.facts.get("held_out") or {}).get("by_site", {})
    blocks: list[Block] = []
    if found:
        measure = "accuracy" if "accuracy" in next(iter(found.values())) else "rmse"
        overall = run.results["test_accuracy"]["mean"] if measure == "accuracy" else None
        blocks.append(Figures([figures.by_site(found, overall, measure)]))
    if "sites_held_out" in run.results:
        blocks += table_blocks(held_out_table(run), "Sites that the model was fitted without")
    data, few = run.facts["data"], f"fewer than {run.settings.min_cell}"
    counted_at = {"samples": data["sites"]} | ({"events": data["events"]} if _timed(run) else {})
    rows = [
        (site, *(few if at[site] is None else f"{at[site]}" for at in counted_at.values()))
        for site in list(data["sites"])[:MOST_FEATURES]
    ]
    if "privacy" not in run.facts:
        caption = f"{' and '.join(counted_at).capitalize()} at each site"
        numbers = frozenset(range(1, len(counted_at) + 1))
        blocks.append(Table(caption, ("site", *counted_at), rows, numbers))
    if len(data["sites"]) > 1 and not (found or _timed(run) or "privacy" in run.facts):
        text = "Scores by site are not shown: no site has enough samples held out."
        blocks.insert(0, Words(text))
    return Section("sites", "Differences between sites", blocks)


def _training(run: Run, history: Sequence[dict[str, Any]]) -> Section | None:
    total = run.settings.columns * run.facts["data"]["features"]
    if run.settings.groups is not None:
        total = run.facts["groups"]["gates"]
    charts = figures.training(history, run.settings.kept(total) / total)
    return Section("training", "How the training went", [Figures(charts)]) if charts else None


def _traffic(run: Run, history: Sequence[dict[str, Any]]) -> Section | None:
    if METHODS[run.settings.method].rows != "federated":
        text = "Nothing was sent in rounds: this method has all rows in one place."
        return Section("traffic", "What was sent", [Words(text)])
    told = [record for record in history if record.get("bytes_up") is not None]
    blocks: list[Block] = [Words(traffic(run.results, searches(run.settings)))]
    if told:
        blocks.append(Figures([figures.traffic(told)]))
    return Section("traffic", "What was sent", blocks)


def _again(run: Run) -> Section:
    facts = run.facts
    command = fit_command(facts)
    blocks: list[Block] = []
    planned = facts.get("analysis_plan")
    if planned is not None:
        blocks.append(Words(_planned(planned)))
    if command is not None:
        blocks.append(Words("The command, in the folder of the site files:"))
        blocks.append(Code(command))
        if "privacy" not in facts:
            blocks.append(
                Words("With the run's folder, where RUN stands: the same again, and a comparison.")
            )
            blocks.append(Code("fedsift rerun RUN"))
    else:
        text = "The run was started from Python or at its sites, and is repeated there."
        blocks.append(Words(text))
    versions = ", ".join(f"{name} {value}" for name, value in facts["versions"].items())
    plan = ", ".join(f"{k} {v}" for k, v in facts["plan"].items() if v not in {None, False})
    rows = [
        ("versions", versions),
        ("how it was computed", plan),
        ("fingerprint of the data", facts["data"]["fingerprint"] or "not told"),
        ("fingerprint of the model", facts["files"]["model.safetensors"]),
        *([("fingerprint of the plan", planned["fingerprint"])] if planned else []),
        *changed_settings(facts).items(),
    ]
    blocks.append(Table("Versions, fingerprints and settings", ("what", "value"), rows))
    return Section("again", "How to reproduce it", blocks)


def _planned(plan: Mapping[str, Any]) -> str:
    """Say which analysis plan was followed, and who signed it."""
    title = f" “{plan['title']}”" if plan["title"] else ""
    names = [
        f"{one['site']} ({one['signed_by']}, {one['signed_at'][:10]}"
        + (f", key {one['key'][:12]})" if "key" in one else ")")
        for one in plan["signed"]
    ]
    signed = f" Signed off by {', '.join(names)}." if names else ""
    return f"The run followed an analysis plan{title}, whose fingerprint is below.{signed}"


def _forgotten(run: Run) -> Section | None:
    """Return what the audit record says, if something was forgotten."""
    records = [] if run.path is None else read_audit(run.path / FOLDER / AUDIT)
    if not records:
        return None
    rows = [
        (f"{r['number']}", r["method"], r["status"].replace("_", " "), f"{r['rows_forgotten']}",
         r["guarantee"])
        for r in records
    ]  # fmt: skip
    head = ("record", "method", "status", "samples", "guarantee")
    table = Table("Requests to forget that were carried out", head, rows, frozenset({3}))
    text = (
        "Samples were taken out of this model after it was fitted. Scores above are those of the "
        "model before; fedsift verify RUN checks the record."
    )
    return Section("forgotten", "What was forgotten", [Words(text), table])


def _is_changed(run: Run) -> bool:
    return any("were forgotten" in note for note in run.facts["data"]["notes"])
