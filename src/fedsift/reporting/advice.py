"""What `fedsift.inspection` found, a sentence a finding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fedsift.data.errors import counted, listed
from fedsift.inspection.target import ROOM

Facts = Mapping[str, Any]
Said = Iterator[tuple[str, bool]]

KINDS = {
    "standardised": "The columns are standardised already (mean 0, deviation 1).",
    "counts": "The values are counts (whole numbers from 0 on); take logarithms before a fit, as"
    " log(1 + x).",
    "logarithms": "The values look like logarithms or another bounded scale.",
    "raw": "The values are raw: never negative, and some far above 1000; take logarithms before a"
    " fit, as log(1 + x).",
    "measured": "The values are measured, of either sign or moderate size.",
}


def identity_column(facts: Facts) -> str | None:
    """Return the column that names each row, if one does."""
    text = facts["columns"]["text"]
    return next((name for name, count in text.items() if count == facts["samples"]), None)


def sentences(facts: Facts) -> tuple[list[str], list[str]]:
    """Return the sentences that need a decision, and the others."""
    mind: list[str] = []
    fine: list[str] = []
    for part in (
        _target,
        _limit,
        _sites,
        _duplicates,
        _covariates,
        _columns,
        _missing,
        _scale,
        _drift,
    ):
        for sentence, matters in part(facts):
            (mind if matters else fine).append(sentence)
    return mind, fine


def _target(facts: Facts) -> Said:
    target = facts["target"]
    if target is None:
        guesses = facts["candidates"]
        hint = f"; it could be {listed(guesses)}" if guesses else ""
        yield f"No target is named{hint}. Say with --target what is to be predicted.", True
        return
    name, rows = f"'{target['name']}'", counted(facts["samples"], "row")
    said = {
        "one value": f"The target {name} has one value in all rows; choose another.",
        "text": f"The target {name} has as many different texts as rows, or nearly: it looks like"
        " an id; choose another.",
        "mixed": f"The target {name} has text among its numbers; correct these cells.",
        "unlike": f"The target {name} has another whole number in each row: is it an id? If it is"
        " measured, all is well.",
    }
    if target["problem"] == "labels":
        yield f"The target cannot be read: {target['reason']}.", True
    elif target["problem"] is not None:
        yield said[target["problem"]], True
    if target["missing"]:
        yield (
            (
                f"The target {name} is missing in {target['missing']} of {rows}; fill it in or"
                " remove these rows."
            ),
            True,
        )
    if target["outcome"] == "multilabel":
        yield from _labels(target, facts["samples"])
        return
    counts = [count for count in target["classes"].values() if count is not None]
    if counts and max(counts) > 9 * min(counts):
        yield "One class has less than a ninth of the largest; its score will be rough.", True


def _labels(target: Mapping[str, Any], samples: int) -> Said:
    yes = ", ".join(f"{name} {count or 'few'}" for name, count in target["classes"].items())
    yield f"The target has {counted(len(target['classes']), 'label')}, 1 in: {yes}.", False
    unknown = [f"{name} {count}" for name, count in target["unknown"].items() if count]
    if unknown:
        yield f"Rows that do not know a label count for the others: {', '.join(unknown)}.", False
    rare = [name for name, count in target["classes"].items() if count and 10 * count < samples]
    if rare:
        yield f"Labels that are 1 in less than a tenth of the rows: {listed(rare)}.", True


def _limit(facts: Facts) -> Said:
    limit = facts["limit"]
    if limit is None:
        return
    samples, needed, kept = facts["samples"], limit["samples_needed"], limit["features"]
    given = "" if limit["snr"] is None else ", if they explain half of the target's variance,"
    bound = (
        f"To name {kept} of {counted(facts['features'], 'feature')} without error{given} takes at"
        f" least {counted(needed, 'sample')} by any method, and about twice as many in"
        f" practice; there are {samples}."
    )
    if samples >= ROOM * needed:
        yield bound, False
    elif samples >= needed:
        yield f"{bound} Expect to find a part; {limit['safe_features']} would be safer.", True
    else:
        fewer = f"ask for {limit['safe_features']}" if kept > 1 else "add samples"
        yield f"{bound} All of them cannot be known: {fewer}, or take them as leads.", True


def _sites(facts: Facts) -> Said:
    sites, target = facts["sites"], facts["target"]
    if len(sites) == 1:
        yield "There is one site: give one file a site, or say --site-column.", True
    by_site = target["by_site"] if target and target["outcome"] != "multilabel" else {}
    single = [s for s, counts in by_site.items() if _is_single(counts)]
    if single:
        yield (
            (
                f"Sites with one class only: {listed(single)}. There, what tells the sites apart"
                " can pass for what tells the classes apart."
            ),
            True,
        )


def _known(counts: Mapping[str, int | None]) -> list[int]:
    return [count for count in counts.values() if count is not None]


def _is_single(counts: Mapping[str, int | None]) -> bool:
    known = _known(counts)
    return len(known) == len(counts) > 1 and sum(map(bool, known)) == 1


def _duplicates(facts: Facts) -> Said:
    found = facts["duplicates"]
    ids = found.get("ids_at_several_sites", 0)
    if ids:
        yield (
            (
                f"{counted(ids, 'id')} at more than one site: remove one of each pair, or give"
                " different people different ids."
            ),
            True,
        )
    if not found["told"]:
        return
    if found["at_several_sites"]:
        pairs = ", ".join(f"{pair} ({count})" for pair, count in found["by_pair"].items())
        yield (
            (
                f"{counted(found['at_several_sites'], 'row')} with all values equal at more than"
                f" one site, perhaps the same patients: {pairs}. Remove one of each pair."
            ),
            True,
        )
    else:
        yield "No row appears at two sites.", False
    if found["within_sites"]:
        yield f"{counted(found['within_sites'], 'row')} repeat another of their site.", True


def _covariates(facts: Facts) -> Said:
    covariates = facts["covariates"]
    wrong = {
        "one value": "has one value in all rows; leave it out.",
        "mixed": "has text among its numbers, or at some sites only; write it in one way.",
        "texts": "has too many different texts to be levels; group them, or leave it out.",
    }
    fine = []
    for covariate in covariates:
        if covariate["problem"] is not None:
            yield f"The covariate '{covariate['name']}' {wrong[covariate['problem']]}", True
            continue
        if covariate["missing"]:
            yield (
                (
                    f"The covariate '{covariate['name']}' is missing in"
                    f" {counted(covariate['missing'], 'row')}. --impute mean fills it with the mean"
                    " of the training rows."
                ),
                True,
            )
        levels = ", ".join(
            f"{level} {'few' if count is None else count}"
            for level, count in covariate["levels"].items()
        )
        fine.append(f"'{covariate['name']}' ({levels or 'measured'})")
    if fine:
        yield f"Whatever is chosen, these stay in the model: {', '.join(fine)}.", False


def _columns(facts: Facts) -> Said:
    columns = facts["columns"]
    for name, cells in columns["unreadable"].items():
        yield (
            (
                f"Column '{name}': {counted(cells['cells'], 'cell')} no number, first in"
                f" {cells['first']}; write numbers there, or leave empty what is missing."
            ),
            True,
        )
    identity = identity_column(facts)
    for name, count in columns["text"].items():
        if name in facts["candidates"]:
            continue
        if name == identity:
            yield f"Column '{name}' has another text in each row: it names the rows (--id).", True
        else:
            yield (
                (
                    f"Column '{name}' is text ({counted(count, 'different value')}): leave it out"
                    " (--drop), or write it as numbers."
                ),
                True,
            )
    for kind, what in (
        ("lost", "not in all files"),
        ("empty", "without a value"),
        ("constant", "with one value in all rows, of no use"),
    ):
        if columns[kind]:
            yield (
                f"{counted(len(columns[kind]), 'column')} {what}: {listed(columns[kind])}.",
                kind != "constant",
            )
    if not columns["constant"]:
        yield "No column is constant.", False


def _missing(facts: Facts) -> Said:
    missing = facts["missing"]
    if not missing["values"]:
        yield "No value is missing.", False
        return
    worst = ", ".join(f"'{name}' {count}" for name, count in missing["worst"].items())
    yield (
        (
            f"{counted(missing['values'], 'value')} missing ({missing['share']:.1%}), in"
            f" {counted(missing['rows'], 'row')} and {counted(missing['columns'], 'column')}; most"
            f" in {worst}. --impute mean fills them with the means of the training rows."
        ),
        True,
    )


def _scale(facts: Facts) -> Said:
    scale = facts["scale"]
    yield KINDS[scale["kind"]], scale["kind"] in {"counts", "raw"}
    if scale["units"] > 10:
        yield (
            (
                "The columns have very different spreads, as different units have; a fit"
                " standardises them (--standardise feature)."
            ),
            False,
        )
    for site, factor in scale["sites"].items():
        size = f"{factor:.3g} times" if factor > 1 else f"one {1 / factor:.3g}th of"
        yield (
            (
                f"The values of {site} are {size} those of the others: other units, or a logarithm"
                " on one side only? Bring them to one scale first."
            ),
            True,
        )


def _drift(facts: Facts) -> Said:
    drift = facts["drift"]
    if not drift["by_site"]:
        return
    if not drift["worst"]:
        yield "No column differs between sites by more than chance.", False
        return
    worst = "; ".join(
        f"'{entry['column']}' at {entry['site']} ({_signed(entry['smd'])})"
        for entry in drift["worst"]
    )
    yield (
        (
            f"{drift['differing']} of {counted(drift['columns'], 'column')} differ between sites: a"
            f" mean unlike that of the other sites, beyond chance. Largest, in standard"
            f" deviations: {worst}. Batch effects, or other patients?"
        ),
        True,
    )


def _signed(value: float) -> str:
    return f"{value:+.1f}" if abs(value) < 100 else f"{'+' if value > 0 else '-'}100 or more"
