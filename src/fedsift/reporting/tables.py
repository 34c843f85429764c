"""Results as tables and sentences for people, on a terminal or in a text file."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedsift.data.errors import counted
from fedsift.findings import Feature
from fedsift.methods import METHODS
from fedsift.reporting.intervals import intervals_table
from fedsift.reporting.readable import readable
from fedsift.reporting.rich_tables import searches, simple_table
from fedsift.runs import Run
from fedsift.visible import all_visible

WIDTH = 100
_WEIGHTS = "Weights are per standard unit, of the features refitted together."
_UNSCORED = "Nothing was scored: predict rows that are public to see what the model is worth."
MOST_SITES = 10  # sites that are shown one by one
MOST_LABELS = 6  # labels whose weights are shown one by one
MEASURES = {
    "test_accuracy": "accuracy",
    "test_r2": "R²",
    "test_deviance_explained": "deviance explained",
    "test_concordance": "concordance",
}


def to_text(content: RenderableType, width: int = WIDTH) -> str:
    """Return content as plain text."""
    console = Console(
        file=io.StringIO(), width=width, no_color=True, highlight=False, force_jupyter=False
    )  # a notebook would show it, too
    console.print(content)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def fit_report(run: Run) -> RenderableType:
    """Return what a fit found, for a reader who never saw the method."""
    run = readable(run)
    parts: list[RenderableType] = [sentence(run)]
    parts += _what_is_chosen(run)
    if "intervals" in run.results:
        parts += [Text(), intervals_table(run)]
    scores = score_table(run)
    if scores is not None:
        parts += [Text(), scores]
    if "labels" in run.results:
        parts += [Text(), label_table(run)]
    if "sites_held_out" in run.results:
        parts += [Text(), held_out_table(run)]
    warning = caution(run)
    if warning:
        parts += [Text(warning)]
    if "privacy" in run.facts:
        parts += [Text(), Text(f"Private: {promise_text(run.facts['privacy'])}. {_UNSCORED}")]
    if METHODS[run.settings.method].rows == "federated":
        parts += [Text(), Text(traffic(run.results, searches(run.settings)))]
    return Group(*parts)


def _what_is_chosen(run: Run) -> list[RenderableType]:
    """Return features, groups, alternatives and covariates, and how their number was decided."""
    parts: list[RenderableType] = []
    if run.settings.controlled:
        parts += [Text(), Text(control_text(run.results["error_control"]))]
    if run.features:
        parts += [Text(), feature_table(run), Text(_WEIGHTS)]
    if run.settings.groups is not None:
        parts += [Text(), group_table(run)]
    swapped = alternatives_text(run.results)
    if swapped:
        parts += [Text(swapped)]
    if run.effects:
        parts += [Text(), covariate_table(run)]
    return parts


def control_text(control: Mapping[str, Any]) -> str:
    """Return how the number of features was decided, and what is known of the errors."""
    rule, level = control["rule"], f"{control['level']:g}"
    if rule == "complementary pairs":
        how = (
            f"A feature is chosen if {control['threshold']:.0%} of {2 * control['pairs']}"
            f" half-samples chose it, {control['chosen_by_a_half']} each (complementary pairs)"
        )
        known = (
            f"expected false features: {control['expected_false']:.2g} at most"
            f" (assumption {control['assumption']}; asked {level})"
        )
    else:
        how = f"Chosen against {control['decoys']} decoys by the rule {rule}"
        share = control["estimated_fdp"]
        known = f"asked for a share of false features of {level}"
        if share is not None:
            known = f"estimated share of false features {share:.2f}, {known}"
    text = f"{how}; {known}."
    return text if control["reason"] is None else f"{text} None is chosen: {control['reason']}."


def promise_text(promise: Mapping[str, Any]) -> str:
    """Return what privacy promises, without a full stop."""
    what = "all of a site" if promise["level"] == "site" else "a row"
    return (
        f"ε = {promise['epsilon']:.3g}, δ = {promise['delta']:.0e} for {what}, "
        f"{promise['releases']} releases with noise {promise['noise']:.3g} x clip"
        f" {promise['clip']:g}"
    )


def next_steps(run: Run) -> str:
    """Return where the run lies and what to do with it."""
    if run.path is None:
        return ""
    path = run.path
    return (
        f"The run is in {path}. Next:\n"
        f"  fedsift predict {path} NEW.csv    predict new samples\n"
        f"  fedsift report {path}             this text, the page and the pictures again\n"
        f"  fedsift export {path} --to coefficients.csv"
    )


def sentence(run: Run) -> Text:
    """Return what was found, in a sentence or two."""
    data, results = run.facts["data"], run.results
    what = (
        f"{data['target']} ({' or '.join(data['classes'])})" if data["classes"] else data["target"]
    )
    if data["outcome"] == "survival":
        what = f"the time to {data['target']}"
    elif data["outcome"] == "multilabel":
        what = target_words(data)
    samples = "" if data["samples"] is None else f"{counted(data['samples'], 'sample')} at "
    text = (
        f"{counted(len(run.features), 'feature')} of {data['features']} chosen to predict {what},"
        f" from {samples}{counted(len(data['sites']), 'site')}."
    )
    measure = _measure(results)
    if measure == "test_accuracy":
        majority = _majority(data, results)
        text += f" On samples held out, {_percent(results[measure])} of the predictions are right"
        text += f"; always guessing {majority[0]} gives {majority[1]:.0%}." if majority else "."
    elif measure == "test_r2":
        text += (
            f" On samples held out it explains R² = {_interval(results[measure])} of the variation."
        )
    elif measure == "test_concordance":
        text += (
            " Of two held-out samples of a site, the one at higher risk comes first in"
            f" {_percent(results[measure])} of the cases (chance: 50%)."
        )
    elif measure:
        text += f" On samples held out it explains {_interval(results[measure])} of the deviance."
    if "support_recovery" in results:
        found = results["ensemble_support_recovery"]
        text += f" Of the features that truly matter it found {_percent(found)}."
        text += " The table shows the last data set."
    return Text(text)


def target_words(data: Mapping[str, Any]) -> str:
    """Return the name of the target, of labels "a, b and c"."""
    if data["outcome"] != "multilabel" or len(data["classes"]) < 2:
        return str(data["target"])
    *first, last = data["classes"]
    return f"{', '.join(first)} and {last}"


def weights_by_label(run: Run, feature: Feature) -> dict[str, float]:
    """Return the weights of a feature for the first `MOST_LABELS` labels."""
    column = run.standardiser.features.index(feature.name)
    weights = run.params["weight"][:MOST_LABELS, column].tolist()
    return dict(zip(run.facts["data"]["classes"], weights, strict=False))


def label_table(run: Run) -> Group:
    """Return what is known of each label, and how well it is predicted."""
    data, told = run.facts["data"], run.results["labels"]
    areas = any(figures.get("test_auc") for figures in told.values())
    unknown = any(data["unknown"].values())
    counts = {"samples\nwith it": data["class_counts"]}
    counts |= {"not known": data["unknown"]} if unknown else {}
    table = simple_table()
    table.add_column("label")
    head = [*(counts if data["class_counts"] else {}), "accuracy", "guessing"]
    for name in (*head, *(["AUC"] if areas else []), "cross-entropy"):
        table.add_column(name, justify="right", no_wrap=True)
    for label, figures in told.items():
        row = [_few(counts[name][label]) for name in head if name in counts]
        row += [_share(figures["test_accuracy"]), f"{figures['guessing_accuracy']:.0%}"]
        row += [_figure(figures["test_auc"])] if areas else []
        table.add_row(Text(label, style="bold"), *row, _figure(figures["test_cross_entropy"]))
    mean = f", AUC {_figure(run.results['test_auc'])}" if areas else ""
    text = (
        f"Means over labels: accuracy {_share(run.results['test_accuracy'])}{mean}, cross-entropy"
        f" {_figure(run.results['test_cross_entropy'])} nats. Hamming loss"
        f" {_figure(run.results['test_hamming_loss'])}; all labels of a sample right in"
        f" {_share(run.results['test_subset_accuracy'])}."
    )
    return Group(table, Text(text))


def _few(count: int | None) -> str:
    return "few" if count is None else str(count)


def _share(figure: Mapping[str, Any] | None) -> str:
    return "-" if figure is None else f"{figure['mean']:.0%}"


def _figure(figure: Mapping[str, Any] | None) -> str:
    return "-" if figure is None else f"{figure['mean']:.3f}"


def feature_table(run: Run, most: int = 30) -> Table:
    """Return the chosen features, most often chosen first."""
    labels = run.facts["data"]["classes"] if run.facts["data"]["outcome"] == "multilabel" else []
    over_splits = any(f.split_frequency is not None for f in run.features)
    table = simple_table()
    table.add_column("feature")
    table.add_column(f"chosen by\n{searches(run.settings)}", justify="right", no_wrap=True)
    if over_splits:
        table.add_column(
            f"chosen in\n{counted(run.settings.splits, 'split')}", justify="right", no_wrap=True
        )
    for name in labels[:MOST_LABELS]:
        table.add_column(f"weight for\n{name}", justify="right", no_wrap=True)
    if not labels:
        table.add_column("more of it\nspeaks for", no_wrap=True)
        table.add_column("weight", justify="right", no_wrap=True)
    for feature in run.features[:most]:
        text = Text(feature.name, style="bold")
        if feature.description:
            text.append(f"\n{_short(feature.description)}", style="not bold dim")
        row: list[RenderableType] = [text, f"{feature.inclusion_probability:.0%}"]
        if over_splits:
            often = feature.split_frequency
            row.append("-" if often is None else f"{often:.0%}")
        if labels:
            row += [f"{weight:+.2f}" for weight in weights_by_label(run, feature).values()]
        else:
            row += [direction(run, feature), f"{feature.weight:+.2f}"]
        table.add_row(*row)
    if len(run.features) > most:
        table.caption = f"and {len(run.features) - most} more in features.csv"
    return table


def group_table(run: Run, most: int = 12) -> Group:
    """Return the chosen groups with the weights of their features."""
    told, weights = run.facts["groups"], {f.name: f.weight for f in run.features}
    table = simple_table()
    table.add_column("group")
    table.add_column(f"chosen by\n{searches(run.settings)}", justify="right", no_wrap=True)
    table.add_column("its features, and their weights")
    inside: set[str] = set()
    for group in run.results["groups"]:
        members = [row["name"] for row in group["features"] if row["name"] in weights]
        inside |= set(members)
        shown = [f"{name} {weights[name]:+.2f}" for name in members[:most]]
        rest = len(members) - len(shown)
        shown += [f"and {rest} more"] if rest else []
        share = f"{group['inclusion_probability']:.0%}"
        table.add_row(Text(group["name"], style="bold"), share, Text(", ".join(shown)))
    single = sum(name not in inside for name in weights)
    text = (
        f"Chosen: {len(run.results['groups'])} of {counted(told['groups'], 'group')}, and {single}"
        f" of {counted(told['single'], 'feature')} in no group; --features and --density count"
        " groups and such features alike."
    )
    for what, absent in (("feature", told["unknown"]), ("group", told["empty"])):
        if absent["count"]:
            more = ", ..." if absent["count"] > len(absent["first"]) else ""
            text += (
                f" Left out, not being in the data: {counted(absent['count'], what)}"
                f" ({', '.join(absent['first'])}{more})."
            )
    return Group(table, Text(text))


def alternatives_text(results: Mapping[str, Any], most: int = 5) -> str:
    """Return which features took the place of chosen ones in other seeds; empty if none did."""
    found: Mapping[str, Any] = results.get("alternatives", {})
    if not found:
        return ""
    lines = [
        f"{name}: " + ", ".join(f"{o['name']} ({o['seeds']} of {o['without']})" for o in others)
        for name, others in list(found.items())[:most]
    ]
    more = "" if len(found) <= most else f"; {len(found) - most} more in run.json"
    return f"Alternatives, in the runs that did not choose a feature: {'; '.join(lines)}{more}."


def covariate_table(run: Run) -> Group:
    """Return the covariates, which stay in the model whatever is chosen."""
    data = run.facts["data"]
    labels = data["outcome"] == "multilabel"
    several = len(data["classes"]) > 1 + (not labels)
    table = simple_table()
    table.add_column("covariate")
    table.add_column("level")
    if several:
        table.add_column("for")
    table.add_column("coefficient", justify="right", no_wrap=True)
    for effect in run.effects:
        level = "per unit" if effect.level is None else f"{effect.level}, not {effect.reference}"
        row = [Text(effect.covariate, style="bold"), Text(level)]
        row += [Text(str(effect.output))] if several else []
        table.add_row(*row, f"{effect.coefficient:+.3g}")
    unit = "scores" if several else data["target"]
    if labels:
        unit = "log-odds of the label"
    elif len(data["classes"]) == 2:
        unit = f"log-odds of {data['classes'][1]}"
    return Group(table, Text(f"Covariates stay in whatever is chosen; coefficients are in {unit}."))


def held_out_table(run: Run) -> Group:
    """Return the score at each site of a model that was fitted without it."""
    told = run.results["sites_held_out"]
    percent = told["measure"] == "accuracy"
    table = simple_table()
    table.add_column("site held out")
    table.add_column(MEASURES[f"test_{told['measure']}"], justify="right", no_wrap=True)
    table.add_column("extra loss", justify="right", no_wrap=True)
    for name, site in told["sites"].items():
        score, extra = site["score"], site["extra_loss"]
        shown = "-" if score is None else f"{score:.0%}" if percent else f"{score:.3f}"
        cost = "-" if extra is None else f"{extra['mean']:+.3g}"
        if extra is not None and _spread(extra):
            cost += f" ({extra['low']:+.3g} to {extra['high']:+.3g})"
        table.add_row(Text(name), shown, cost)
    return Group(table, Text(_on_shift(told)))


def _on_shift(told: Mapping[str, Any]) -> str:
    """Return which sites stand apart from the others."""
    if all(site["shifted"] is None for site in told["sites"].values()):
        return "Too few sites or splits to tell whether a site stands apart."
    rule = "its rows lose more by its absence than those of other sites by theirs (95 %)"
    if not told["shifted"]:
        return f"No site stands apart: of none it holds that {rule}."
    lines = [f"{name} stands apart: {_apart(told, name)}." for name in told["shifted"]]
    return "\n".join([*lines, f"A site is named if {rule}."])


def _apart(told: Mapping[str, Any], name: str) -> str:
    """Return the score at a site that stands apart, beside the mean of the others'."""
    scores = {site: found["score"] for site, found in told["sites"].items()}
    own = scores.pop(name)
    known = [score for score in scores.values() if score is not None]
    shown = "{:.0%}" if told["measure"] == "accuracy" else "{:.2f}"
    there, elsewhere = shown.format(own), shown.format(sum(known) / len(known))
    what = MEASURES[f"test_{told['measure']}"]
    return f"{what} {there} there, {elsewhere} at the others, held out in turn"


def direction(run: Run, feature: Feature) -> str:
    """Return what a larger value of a feature speaks for, all other chosen features equal."""
    data = run.facts["data"]
    if data["outcome"] == "survival":
        return f"{'earlier' if feature.weight > 0 else 'later'} {data['target']}"
    if not data["classes"]:
        return f"{'more' if feature.weight > 0 else 'less'} {data['target']}"
    if len(data["classes"]) == 2 and data["outcome"] != "multilabel":
        return str(data["classes"][int(feature.weight > 0)])
    column = run.standardiser.features.index(feature.name)
    output = int(run.params["weight"][:, column].abs().argmax())
    against = "" if feature.weight > 0 else "not "
    return f"{against}{data['classes'][output]}"


def score_table(run: Run) -> Table | None:
    """Return the held-out score beside those of one seed, of each site alone and of pooled data."""
    results = run.results
    measure = _measure(results)
    if measure is None:
        return None
    single = measure.replace("test_", "single_seed_")
    show = _percent if measure == "test_accuracy" else _interval
    method = run.settings.method
    cases = results[measure]["n"]
    over = "data set" if "support_recovery" in results else "split"
    table = simple_table()
    table.add_column(
        f"held-out {MEASURES[measure]}, mean of {counted(cases, over)} (95 % interval)"
    )
    table.add_column(justify="right", no_wrap=True)
    table.add_row(
        f"this model ({method}, {searches(run.settings)} together)",
        show(results[measure]),
    )
    alone = "one seed" if run.settings.pfer is None else "what one half-sample chose,"
    table.add_row(f"{alone} on its own", show(results[single]))
    names = {"local": "each site on its own", "central": "all data in one place"}
    for name, figures in results.get("beside", {}).items():
        seeds = counted(figures["seeds"], "seed")
        table.add_row(f"{names.get(name, name)} ({name}, {seeds})", show(figures[measure]))
        by_site = figures.get(f"{measure}_by_site", {})
        if len(by_site) <= MOST_SITES:
            for site, figure in by_site.items():
                table.add_row(f"  {site}", _mean(figure, measure))
    majority = _majority(run.facts["data"], run.results)
    if majority and measure == "test_accuracy":
        table.add_row(f"always guessing {majority[0]}", f"{majority[1]:.0%}")
    return table


def compare_report(facts: Mapping[str, Any]) -> Group:
    """Return a comparison of methods, a line each."""
    facts = all_visible(facts)
    figures: dict[str, dict[str, Any]] = facts["results"]["methods"]
    first = next(iter(figures.values()))
    measure = _measure(first)
    known = "support_recovery" in first
    over_splits = any("stability_splits" in f for f in figures.values())
    table = simple_table()
    table.add_column("method", no_wrap=True)
    if measure:
        table.add_column(
            f"held-out {MEASURES[measure]}\n(95 % interval)", justify="right", no_wrap=True
        )
        table.add_column("one seed", justify="right", no_wrap=True)
    if known:
        table.add_column("true features\nfound", justify="right")
        table.add_column("by one\nseed", justify="right")
    table.add_column("stability\nover seeds", justify="right")
    if over_splits:
        table.add_column("over\nsplits", justify="right")
    table.add_column("sent", justify="right", no_wrap=True)
    table.add_column("seconds", justify="right")
    show = _percent if measure == "test_accuracy" else _interval
    for name, f in figures.items():
        row = [name]
        if measure:
            row += [show(f[measure]), _mean(f[measure.replace("test_", "single_seed_")], measure)]
        if known:
            row += [_mean(f[k], "share") for k in ("ensemble_support_recovery", "support_recovery")]
        row.append(_number(f["stability_seeds"]["nogueira"]))
        if over_splits:
            row.append(_number(f.get("stability_splits", {}).get("nogueira")))
        table.add_row(*row, _sent(name, f), f"{f['seconds']:.0f}")
    data, settings = facts["data"], facts["settings"]
    kept = len(first["features"])
    head = (
        f"{counted(kept, 'feature')} of {data['features']} to predict {data['target']}, "
        f"{counted(data['samples'], 'sample')} at {counted(len(data['sites']), 'site')}, "
        f"{counted(settings['seeds'], 'seed')}."
    )
    majority = _majority(data, first)
    notes = [f"{name}: {METHODS[name].summary}" for name in figures if name in METHODS]
    if majority and measure:
        notes.insert(0, f"Always guessing {majority[0]} gives {majority[1]:.0%}.")
    notes.insert(0, "Stability: 1 for always the same features, 0 for chance.")
    return Group(Text(head), Text(), table, Text(), Text("\n".join(notes)))


def traffic(results: Mapping[str, Any], runs: str) -> str:
    """Return the bytes sent by ``runs``, in words, beside those of whole models."""
    sent, dense = results["bytes_up"] + results["bytes_down"], results["bytes_dense"]
    text = f"Sent between sites and server by {runs}, all splits and the last fit: {size(sent)}"
    if dense and sent < dense:
        times = f"{dense / sent:.1f} times as much"
        text += f"; unpacked models both ways every round would be {size(dense)} ({times})."
    else:
        text += f" (unpacked models both ways every round: {size(dense)})."
    return f"{text} The paper's count, uploads without indices: {size(results['bytes_formula'])}."


def _sent(method: str, figures: Mapping[str, Any]) -> str:
    """Return what a method sends; alone nothing travels, and pooled the rows themselves do."""
    rows = METHODS[method].rows if method in METHODS else "federated"
    if rows != "federated":
        return "nothing" if rows == "alone" else "all rows"
    return size(figures["bytes_up"] + figures["bytes_down"])


def size(count: float) -> str:
    """Return a number of bytes for people."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def duration(seconds: float) -> str:
    """Return a time for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def headline(results: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Return the held-out measure, its mean and its interval in words; None without a score."""
    measure = _measure(results)
    if measure is None:
        return None
    figure, percent = results[measure], measure == "test_accuracy"
    write = "{:.0%}".format if percent else "{:.2f}".format
    interval = ""
    if _spread(figure):
        low = max(figure["low"], 0.0) if percent else figure["low"]
        interval = f"{write(low)} to {write(min(figure['high'], 1.0))}"
    return MEASURES[measure], write(figure["mean"]), interval


def caution(run: Run) -> str:
    """Return why the score must be taken with care, an empty text if nothing is to be said."""
    majority = _majority(run.facts["data"], run.results)
    score = run.results.get("test_accuracy")
    if score is None or majority is None:
        return ""
    if not _spread(score):
        return "The splits are too few, or agree, so that no interval is shown: use more splits."
    if score["low"] <= majority[1]:
        return "The interval includes guessing: take the features as a lead, not as a finding."
    return ""


def _measure(results: Mapping[str, Any]) -> str | None:
    return next((name for name in MEASURES if name in results), None)


def _majority(data: Mapping[str, Any], results: Mapping[str, Any]) -> tuple[str, float] | None:
    """Return the most frequent class, and how often saying it is right on held-out samples."""
    counts: dict[str, int | None] = data.get("class_counts", {})
    if "guessing_accuracy" not in results:
        return None
    if data["outcome"] == "multilabel":
        return "what most have of each label", results["guessing_accuracy"]
    if not counts:
        return None
    return max(counts, key=lambda k: counts[k] or 0), results["guessing_accuracy"]


def _short(text: str, most: int = 80) -> str:
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def _percent(figure: Mapping[str, Any]) -> str:
    """Return a share with its interval, which is cut at 0 and 100 %; none where all agree."""
    if not _spread(figure):
        return f"{figure['mean']:.0%}"
    low, high = max(figure["low"], 0.0), min(figure["high"], 1.0)
    return f"{figure['mean']:.0%} ({low:.0%} to {high:.0%})"


def _spread(figure: Mapping[str, Any]) -> bool:
    return bool(figure["n"] > 1 and figure["low"] < figure["high"])


def _interval(figure: Mapping[str, Any]) -> str:
    if not _spread(figure):
        return f"{figure['mean']:.3f}"
    return f"{figure['mean']:.3f} ({figure['low']:.3f} to {min(figure['high'], 1.0):.3f})"


def _mean(figure: Mapping[str, Any], measure: str) -> str:
    return (
        f"{figure['mean']:.0%}"
        if measure in {"test_accuracy", "share"}
        else f"{figure['mean']:.3f}"
    )


def _number(value: float | None) -> str:
    return "-" if value is None or value != value else f"{value:.2f}"  # noqa: PLR0124
