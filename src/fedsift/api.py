"""What a Python user calls: `fit` and `compare` on federated data, plans, and `forget`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

from pydantic import ValidationError
from torch import Tensor

from fedsift import plans
from fedsift.aggregation import Rule
from fedsift.callbacks import Callback
from fedsift.controlled import DecoyRule
from fedsift.data import FederatedData
from fedsift.data.groups import named_groups
from fedsift.data.harmonise import Harmonise
from fedsift.data.standardise import How
from fedsift.decoys import How as Decoys
from fedsift.locks import claim
from fedsift.methods import Messages, find_method
from fedsift.plans import AnalysisPlan
from fedsift.privacy import Privacy
from fedsift.private_fits import refuse
from fedsift.reporting import write_report
from fedsift.run_folder import read_facts
from fedsift.runs import Run
from fedsift.settings import Settings, refused
from fedsift.sign_offs import check_signed
from fedsift.sparsity import Schedule
from fedsift.stability import Assumption
from fedsift.studies import check_request
from fedsift.training import Training
from fedsift.unlearning.in_memory import forget_in_training
from fedsift.unlearning.process import Orders, forget_in_run
from fedsift.unlearning.report import UnlearningReport
from fedsift.unlearning.scope import Scope
from fedsift.workflows import BESIDE, run_compare, run_fit, split_cases


class Options(TypedDict, total=False):
    """Further settings by name; `fedsift.settings.Settings` says what each is and its default."""

    seed: int
    validation: Literal["splits", "leave-one-site-out"]
    intervals: Literal["split", "ensemble"] | None
    test_fraction: float
    participation: float
    weights: Literal["samples", "uniform"]
    messages: Messages
    aggregation: Rule
    standardise: How
    harmonise: Harmonise | None
    site_intercepts: Literal["own", "random"] | None
    site_ridge: float
    schedule: Schedule | None
    learning_rate: float | None
    local_steps: int | None
    batch_size: int | None
    tuning_rounds: int
    ridge: float
    covariate_ridge: float
    early_stop: int | None
    gate: Literal["feature", "scalar"]
    groups: Mapping[str, Sequence[str]] | str | Path | None
    engine: Literal["vectorized", "loop"]
    evaluate_every: int
    min_cell: int
    round_counts: int
    hazard_times: tuple[float, ...]
    knobs: dict[str, bool | int | float | str]
    fdr: float | None
    fdr_rule: DecoyRule
    decoys: Decoys
    pfer: float | None
    pairs: int
    assume: Assumption


class Study(Options, total=False):
    """All settings by name."""

    method: str
    features: int | None
    density: float | None
    seeds: int
    splits: int
    rounds: int | None
    privacy: Privacy | None


def fit(
    data: FederatedData,
    *,
    method: str = "eflops",
    features: int | None = None,
    density: float | None = None,
    seeds: int = 30,
    splits: int = 10,
    rounds: int | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    beside: Sequence[str] = BESIDE,
    privacy: Privacy | None = None,
    callbacks: Sequence[Callback] = (),
    **options: Unpack[Options],
) -> Run:
    """Find the features that matter, and how well they predict rows held out.

    In each split all seeds search together, their ensemble picks the features, a ridge refit
    follows, and the test rows are scored once; then all rows give the reported features.

    Example:
        >>> import fedsift
        >>> data = fedsift.data.iid(fedsift.data.golub38(), n_sites=5, seed=0)
        >>> run = fedsift.fit(data, features=3, standardise="array", seeds=2, splits=0, rounds=2)
        >>> len(run.features)
        3

    Args:
        data: rows of the sites.
        method: a name in `fedsift.METHODS`.
        features: how many features to keep.
        density: their share, in place of ``features``.
        seeds: runs with different random numbers, whose choices are put together.
        splits: train/test splits; 0 leaves the score out.
        rounds: rounds of the search; the method's own number by default.
        out: folder to write the run to; None keeps it in memory.
        overwrite: replace the run in ``out``.
        resume: go on with the run in ``out``, which must be of the same data and settings; if it is
            finished, it is returned.
        beside: methods to score on the same splits for comparison.
        privacy: what is promised of the sites or rows; needs ``splits=0``, a ``learning_rate`` and
            more, which a refusal names (docs/privacy.md).
        callbacks: functions of one record, called after every round (docs/callbacks.md); one that
            raises stops the run, which ``resume`` goes on with.
        options: see `Options`; ``groups`` may be the path of a GMT file, too.

    Raises:
        ValueError: a setting is out of range; the text names it.
        RunError: ``out`` holds something else, or another process works there.
        CheckpointError: a checkpoint in ``out`` is damaged or of another request.
        CallbackError: a callback failed.
        TrainingError: the training diverged for good.
    """
    settings = _settings(
        method=method,
        features=features,
        density=density,
        seeds=seeds,
        splits=splits,
        rounds=rounds,
        privacy=privacy,
        **options,
    )
    with _folder(out, data, settings, [method], overwrite=overwrite, resume=resume) as path:
        return _fitted(data, settings, path, beside, callbacks)


def write_plan(
    path: str | Path,
    data: FederatedData,
    *,
    title: str = "",
    id_column: str | None = None,
    site_column: str | None = None,
    weight_column: str | None = None,
    time_column: str | None = None,
    drop: Sequence[str] = (),
    separator: str | None = None,
    min_rows: int = 5,
    overwrite: bool = False,
    **settings: Unpack[Study],
) -> AnalysisPlan:
    """Write down what a study will do, for its sites to check and sign (docs/analysis-plan.md).

    ``path`` is a TOML file. ``data`` are rows of some sites, as `read_sites` reads them, of which
    only names are kept; ``id_column`` to ``separator`` say the same of the sites' files as there.
    A site has ``min_rows`` rows at least, and ``title`` is for people. The other arguments are
    those of `fit`.

    Raises:
        ValueError: a setting is out of range, or cannot be met with such data.
        RunError: there is a file already.
    """
    plan = plans.make_plan(
        data,
        _settings(**settings),
        title=title,
        id_column=id_column,
        site_column=site_column,
        weight_column=weight_column,
        time_column=time_column,
        drop=tuple(drop),
        separator=separator,
        min_rows=min_rows,
    )
    plans.write_plan(plan, Path(path), overwrite=overwrite)
    return plan


def fit_plan(
    plan: AnalysisPlan | str | Path,
    data: FederatedData,
    *,
    signed: Sequence[str | Path] = (),
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    beside: Sequence[str] = BESIDE,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Do what an analysis plan says, as `fit` does it, and nothing else.

    ``plan`` is from `read_plan` or `write_plan`, or its file; ``data`` are rows of the sites, as
    ``plan.read(files)`` reads them. With ``signed``, sign-offs or folders of them, every site must
    have signed the plan. The other arguments are those of `fit`.

    Raises:
        ValueError: the rows are not what the plan asks for, or this release has other defaults.
        RunError: the plan was changed, a site did not sign it, or as `fit` says.
    """
    if not isinstance(plan, AnalysisPlan):
        plan = plans.read_plan(plan)
    plan.check(data)
    sizes = dict(zip(data.sites, data.sizes, strict=True))
    facts = plan.facts | {"signed": check_signed(plan, sizes, [Path(place) for place in signed])}
    settings = plan.settings
    with _folder(
        out, data, settings, [settings.method], overwrite=overwrite, resume=resume
    ) as path:
        return _fitted(data, settings, path, beside, callbacks, facts)


def _fitted(
    data: FederatedData,
    settings: Settings,
    path: Path | None,
    beside: Sequence[str],
    callbacks: Sequence[Callback],
    analysis_plan: dict[str, Any] | None = None,
) -> Run:
    run = run_fit(
        split_cases(data, settings),
        settings,
        path=path,
        callbacks=callbacks,
        beside=beside,
        analysis_plan=analysis_plan,
    )
    if path is not None:
        write_report(path)
    return run


def compare(
    data: FederatedData,
    methods: Sequence[str] = ("eflops", "fediterht", "fedavg", "central"),
    *,
    features: int | None = None,
    density: float | None = None,
    seeds: int = 30,
    splits: int = 10,
    rounds: int | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    **options: Unpack[Options],
) -> dict[str, Any]:
    """Fit several methods on the same splits; return their figures by name.

    The arguments are those of `fit`.

    Raises:
        ValueError: a setting is out of range, or a method is unknown; the text names it.
        RunError: ``out`` holds something else, or another process works there.
        CheckpointError: a checkpoint in ``out`` is damaged or of another request.
        CallbackError: a callback failed.
        TrainingError: the training diverged for good.
    """
    for name in methods:
        find_method(name)
    settings = _settings(
        method=next(iter(methods), "eflops"),
        features=features,
        density=density,
        seeds=seeds,
        splits=splits,
        rounds=rounds,
        **options,
    )
    refuse(settings.privacy, "compared")
    with _folder(out, data, settings, methods, overwrite=overwrite, resume=resume) as path:
        cases = split_cases(data, settings)
        facts = run_compare(cases, settings, methods, path=path, callbacks=callbacks)
        if path is not None:
            write_report(path)
    figures: dict[str, Any] = facts["results"]["methods"]
    return figures


def _settings(**given: Any) -> Settings:
    if given.get("groups") is not None:
        given["groups"] = named_groups(given["groups"])
    try:
        return Settings(**given)
    except ValidationError as error:
        raise ValueError(refused(error)) from None


@contextmanager
def _folder(
    out: str | Path | None,
    data: FederatedData,
    settings: Settings,
    methods: Sequence[str],
    *,
    overwrite: bool,
    resume: bool,
) -> Iterator[Path | None]:
    """Check the request against the data, then hold a new folder or one to go on with."""
    check_request(settings, methods, data)
    if out is None:
        yield None
        return
    path = Path(out)
    if resume:
        read_facts(path)
    with claim(path, overwrite=overwrite, resume=resume):
        yield path


def forget(
    trained: Run | Training | str | Path,
    *,
    sites: Sequence[str] = (),
    rows: Sequence[str] = (),
    classes: Sequence[str] = (),
    data: FederatedData | None = None,
    method: str = "fumegs",
    fallback: str = "retrain",
    deadline_days: float = 30.0,
    tuning_redone: bool = False,
    key_file: str | Path | None = None,
    held_out: Tensor | str | Path | None = None,
    reference: bool = False,
    **options: Any,
) -> UnlearningReport:
    """Take the influence of sites, rows or classes out of a model.

    What may be said then is ``report.guarantee``: ``empirical`` unless it was trained anew.

    Args:
        trained: a fit in a folder (`Run`, or the folder), whose model is replaced; or the result of
            `train`, whose model comes back in ``report.params``.
        sites: names of sites to forget.
        rows: ids of rows to forget.
        classes: names of classes to forget.
        data: the rows, for a fit that was given data in memory; those of a `Training` by default.
        method: a name in `fedsift.unlearning.methods.FORGETTERS`.
        fallback: what runs when a site cannot be reached until the deadline.
        deadline_days: how long such a site is waited for.
        tuning_redone: settings and features on offer were chosen again without what is forgotten,
            so that a retraining may be called exact.
        key_file: Ed25519 private key (PEM) that signs the audit record.
        held_out: rows the model has not seen, at the sites that forget: a mask [N] for a
            `Training`, a file for a fit. What is forgotten is told from them, and they say when to
            stop; a `Training` needs it, or ``target``.
        reference: of a fit: train anew too, and measure that model beside.
        options: of the method.

    Raises:
        ValueError: nothing is named, everything is, or the method cannot be run; the text says why.
        TypeError: held_out is a file for a `Training`, or a mask for a fit.
        RunError: the folder cannot be used, or the data are not those of the run.
    """
    scope = Scope(sites=tuple(sites), rows=tuple(rows), classes=tuple(classes))
    if isinstance(trained, Training):
        if isinstance(held_out, str | Path):
            raise TypeError(f"held_out is {str(held_out)!r}; for a Training give a mask of rows")
        return forget_in_training(trained, scope, data, method=method, held_out=held_out, **options)
    if isinstance(held_out, Tensor):
        raise TypeError("held_out is a mask of rows; for a fit give a file of rows it never saw")
    path = Path(trained) if isinstance(trained, str | Path) else trained.path
    if path is None:
        msg = "the run is not in a folder, where requests are kept; fit with out=FOLDER"
        raise ValueError(msg)
    orders = Orders(
        method=method,
        fallback=fallback,
        deadline_days=deadline_days,
        tuning_redone=tuning_redone,
        key_file=None if key_file is None else Path(key_file),
        held_out=None if held_out is None else Path(held_out),
        reference=reference,
        options=options,
    )
    report = forget_in_run(path, scope, orders, data)
    if report.status == "verified":
        write_report(path)  # the old one names the sites
    return report
