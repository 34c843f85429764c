"""Training a run's model anew without some rows, from before their sites joined where possible.

Both ways end with the same model, bit for bit: the one that a fit on the other rows gives.
"""

from __future__ import annotations

from fedsift.checkpoints import StageCheckpoint
from fedsift.data import FederatedData, Standardiser, of_role
from fedsift.data.federated import FORGET, RETAIN
from fedsift.engines.sampling import turns_of
from fedsift.findings import candidates, choice_figures, feature_table
from fedsift.joins import Start, go_on_without, join_file
from fedsift.run_folder import JOINS, read_fit, write_fit
from fedsift.runs import Run
from fedsift.studies import Case, fit_case, sites_a_round
from fedsift.unlearning.methods import Unlearned
from fedsift.unlearning.rows import participation
from fedsift.unlearning.scope import Scope
from fedsift.workflows import VERSIONS, baseline

FROM_THE_START = Start(0, 0, 0)


def retrain(
    run: Run, scope: Scope, data: FederatedData, checkpoint: StageCheckpoint
) -> tuple[Run, Unlearned, tuple[str, ...]]:
    """Search and refit without the rows, standardisation and early stop included.

    Returns:
        The run as it is then, what that cost, and notes.
    """
    marked = scope.roles(data)
    rest = of_role(marked, RETAIN)
    case, standardiser = Case("all rows", rest), Standardiser.fit(rest, run.settings.standardise)
    start = _before_they_joined(run, _sites_of(scope, marked), rest, checkpoint)
    done = checkpoint.named("fit").path
    if done.exists():
        fit = read_fit(done, checkpoint.fingerprint or "")
    else:
        fit = fit_case(case, run.settings, standardiser, checkpoint=checkpoint)
        write_fit(done, fit, checkpoint.fingerprint or "")
    results = run.facts["results"] | choice_figures(fit, case, run.settings)
    facts = run.facts | {"candidates": candidates(fit, case), "results": results}
    facts |= baseline(case, run.settings, fit, standardiser)
    after = Run(
        run.settings, facts, feature_table(fit, case, []), fit.ensemble(), standardiser, run.path
    )
    rounds = len(fit.history) - start.round
    up, down = fit.bytes_up - start.bytes_up, fit.bytes_down - start.bytes_down
    seconds = sum(record["seconds"] for record in fit.history[start.round :])
    result = Unlearned(after.params, "retrained", rounds, up, down, rounds, seconds, fit.history)
    note = (
        f"the search went on from its state after round {start.round}, in which no site with rows "
        "to forget had had a part"
    )
    return after, result, (note,) if start.round else ()


def _sites_of(scope: Scope, marked: FederatedData) -> set[str]:
    """Return the sites with rows to forget."""
    assert marked.role is not None  # noqa: S101  the data come with roles
    some = {
        site
        for site, rows in zip(marked.sites, marked.slices, strict=True)
        if bool((marked.role[rows] == FORGET).any())
    }
    return some | set(scope.sites)


def _before_they_joined(
    run: Run, sites: set[str], rest: FederatedData, checkpoint: StageCheckpoint
) -> Start:
    """Let the search begin where these sites joined it, if a search from the start passes there.

    It does if rows were not standardised together, the same sites are asked in the rounds before,
    and the software is the same.
    """
    assert run.path is not None  # noqa: S101  a batch is of a run in a folder
    before, per_round = tuple(run.facts["data"]["sites"]), sites_a_round(run.settings)
    first = min((row[3] for row in participation(run) if row[0] in sites), default=0)
    file = join_file(run.path / JOINS, first)
    same_turns = turns_of(len(before), per_round) == turns_of(rest.n_sites, per_round)
    same_software = {k: run.facts["versions"][k] for k in VERSIONS} == VERSIONS
    if run.standardiser.learned or not (same_turns and same_software and file.exists()):
        return FROM_THE_START
    found = go_on_without(file, checkpoint.named("search"), before, rest.sites)
    return found or FROM_THE_START
