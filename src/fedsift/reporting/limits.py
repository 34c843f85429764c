"""What a fit did not check: sentences that go with every report."""

from __future__ import annotations

from fedsift.data.errors import counted
from fedsift.reporting.tables import promise_text
from fedsift.runs import Run

FEW = 100  # samples held out, below which that is said
SIMULATED = """The sites were simulated on one machine, which had all samples. Bytes are those that
messages between machines would have; how long they take, and failures, are not."""
DEALT = """The samples were dealt to the sites by a random number; hospitals may differ more."""
ONE_SITE = "There is one site: nothing was learned across sites."
REMOTE = "The sites were real machines; that each told the truth was not checked."
UNSCORED = "No sample was held out: how well the model predicts is not known."
SAME_SITES = """Samples held out came from the same sites at the same time. Another hospital,
another device or a later year was not tried."""
OWN = """Each site has an intercept of its own, with which its samples held out were scored. At
another hospital the common one counts, and predictions are worse; how much,
--validate leave-one-site-out says."""
OF_SPLITS = """The scores are of the models of the splits, each of which chose its own features
without the samples that it was scored on; the model reported is of all samples."""
DRAWN = "The scores are of data sets drawn with a known answer, which real data do not have."
LOOKED = "Who chose the settings after a look at these scores has made them too good."
NO_CAUSE = """The features go with the target in these samples; that is no sign of a cause. Of
features that rise and fall together one may stand for another that was not chosen."""
ONE_SEED = "One seed chose the features; others might have chosen others."
SEEDS = """How often seeds chose a feature tells of random numbers, not of other patients: more
seeds narrow those intervals and add no evidence."""
NOT_PRIVATE = """No differential privacy: model, scores and means may tell of a sample to someone
who knows the others."""


def limits(run: Run) -> list[str]:
    """Return what a reader must not take for granted, a sentence or two each."""
    said = [
        *_on_sites(run),
        *_on_scores(run),
        NO_CAUSE,
        ONE_SEED if run.settings.seeds == 1 else SEEDS,
        *_on_privacy(run),
        *run.facts["data"]["notes"],
    ]
    return [" ".join(text.split()) for text in said]


def _on_sites(run: Run) -> list[str]:
    facts = run.facts
    if facts["plan"].get("engine") == "flower":
        return [REMOTE]
    demo = facts["source"] is not None and facts["source"]["demo"] is not None
    alone = len(facts["data"]["sites"]) == 1
    return [SIMULATED, *([DEALT] if demo else []), *([ONE_SITE] if alone else [])]


def _on_scores(run: Run) -> list[str]:
    if not any(name.startswith("test_") for name in run.results):
        return [UNSCORED]
    said = [SAME_SITES, DRAWN if "support_recovery" in run.results else OF_SPLITS, LOOKED]
    if run.settings.site_intercepts is not None:
        said.append(OWN)
    held_out = run.facts.get("held_out")
    if held_out is not None and held_out["rows"] < FEW:
        count = counted(held_out["rows"], "different sample")
        said.insert(0, f"{count} held out: that is few, and intervals are wide.")
    return said


def _on_privacy(run: Run) -> list[str]:
    if "privacy" in run.facts:
        promise = promise_text(run.facts["privacy"])
        return [f"Private: {promise}. Names of columns and classes are not covered."]
    few = run.settings.min_cell
    return [NOT_PRIVATE, *([f"Counts of fewer than {few} samples are left out."] if few else [])]
