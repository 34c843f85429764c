"""The options that fit and compare share, and what they become: a source and settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from fedsift.cli.failures import UsageError
from fedsift.flags import flag

if TYPE_CHECKING:
    from fedsift.plans import AnalysisPlan
    from fedsift.privacy import Privacy
    from fedsift.settings import Settings
    from fedsift.sources import Source

FILES, PLAN, DEMO, METHOD, ERRORS, PRIVACY, TRAINING, OUTPUT = (
    "Your data",
    "Analysis plan",
    "Demo data",
    "Method",
    "Error control",
    "Differential privacy",
    "Training details",
    "Output",
)


def _option(*names: str, group: str, text: str, metavar: str | None = None) -> Any:
    return typer.Option(
        *names, help=text, metavar=metavar, rich_help_panel=group, show_default=False
    )


USUAL = "eflops"  # the method, where none is named

Signed = Annotated[
    list[Path] | None,
    typer.Option(
        "--signed",
        help="Sign-off of a site, or a folder of them: every site must have signed the plan.",
        metavar="PATH",
        rich_help_panel=PLAN,
        show_default=False,
    ),
]
PlanFile = Annotated[
    Path | None,
    typer.Option(
        "--plan",
        help="Do what this analysis plan says (fedsift plan).",
        metavar="FILE",
        rich_help_panel=PLAN,
        show_default=False,
    ),
]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What fit and compare are asked, None for what was not said."""

    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SITE...",
            help="Site files (.csv, .tsv, .csv.gz, .parquet, .h5ad) or their folder: one a site,"
            " or any with --site-column.",
            rich_help_panel=FILES,
            show_default=False,
        ),
    ] = None
    target: Annotated[
        str | None,
        _option(
            "--target",
            group=FILES,
            text="Column to predict; several yes/no ones with commas between: relapse,toxicity.",
            metavar="COLUMN",
        ),
    ] = None
    id_column: Annotated[
        str | None,
        _option(
            "--id",
            group=FILES,
            text="Column that names the patient: never split apart.",
            metavar="COLUMN",
        ),
    ] = None
    site_column: Annotated[
        str | None,
        _option("--site-column", group=FILES, text="Column that names the site.", metavar="COLUMN"),
    ] = None
    weight_column: Annotated[
        str | None,
        _option("--weight-column", group=FILES, text="Column of sample weights.", metavar="COLUMN"),
    ] = None
    event: Annotated[
        str | None,
        _option(
            "--event",
            group=FILES,
            text="In place of --target: column that is 1 where the event was seen, 0 where not.",
            metavar="COLUMN",
        ),
    ] = None
    time_column: Annotated[
        str | None,
        _option(
            "--time",
            group=FILES,
            text="Column of the time until the event or the last sight.",
            metavar="COLUMN",
        ),
    ] = None
    features_in_common: Annotated[
        bool,
        _option("--features-in-common", group=FILES, text="Keep the columns that all files have."),
    ] = False
    impute: Annotated[
        str | None,
        _option(
            "--impute",
            group=FILES,
            text="Fill missing values: mean, of all sites' training rows.",
            metavar="mean",
        ),
    ] = None
    outcome: Annotated[
        str | None,
        _option(
            "--outcome",
            group=FILES,
            text="Kind of target: auto, regression, binary, multiclass, multilabel, poisson, "
            "negative_binomial, survival (with --time and --event).",
            metavar="KIND",
        ),
    ] = None
    drop: Annotated[
        list[str] | None,
        _option(
            "--drop", group=FILES, text="Column to leave out; may be repeated.", metavar="COLUMN"
        ),
    ] = None
    covariates: Annotated[
        str | None,
        _option(
            "--covariates",
            group=FILES,
            text="Columns that stay in the model, with commas between: age,sex.",
            metavar="A,B",
        ),
    ] = None
    separator: Annotated[
        str | None,
        _option(
            "--separator",
            group=FILES,
            text="What separates columns, where not usual: ';'.",
            metavar="CHAR",
        ),
    ] = None
    demo: Annotated[
        str | None,
        _option(
            "--demo",
            group=DEMO,
            text="golub (leukaemia, embedded), golub72, synthetic.",
            metavar="NAME",
        ),
    ] = None
    sites: Annotated[
        int | None,
        _option("--sites", group=DEMO, text="Sites to spread the demo over: 5.", metavar="N"),
    ] = None
    partition: Annotated[
        str | None,
        _option(
            "--partition",
            group=DEMO,
            text="How: iid, dirichlet_labels, dirichlet_counts.",
            metavar="KIND",
        ),
    ] = None
    alpha: Annotated[
        float | None,
        _option(
            "--alpha", group=DEMO, text="Of dirichlet_*: small is uneven. Default 2.", metavar="X"
        ),
    ] = None
    shift: Annotated[
        bool, _option("--shift", group=DEMO, text="Give each site its own scale and offset.")
    ] = False
    samples: Annotated[
        int | None,
        _option("--samples", group=DEMO, text="Synthetic training rows: 400.", metavar="N"),
    ] = None
    features_total: Annotated[
        int | None,
        _option("--features-total", group=DEMO, text="Synthetic features: 1000.", metavar="N"),
    ] = None
    informative: Annotated[
        int | None,
        _option(
            "--informative", group=DEMO, text="Synthetic features that matter: 50.", metavar="N"
        ),
    ] = None
    data_seeds: Annotated[
        int | None, _option("--data-seeds", group=DEMO, text="Synthetic data sets: 5.", metavar="N")
    ] = None
    data: Annotated[
        str | None,
        _option(
            "--data",
            group=DEMO,
            text="Folder of golub72's raw files (or FEDSIFT_DATA).",
            metavar="DIR",
        ),
    ] = None
    features: Annotated[
        int | None,
        _option("--features", group=METHOD, text="How many features to keep.", metavar="M"),
    ] = None
    density: Annotated[
        float | None,
        _option("--density", group=METHOD, text="Their share instead, such as .001.", metavar="X"),
    ] = None
    seeds: Annotated[
        int | None,
        _option(
            "--seeds", group=METHOD, text="Runs whose choices are put together: 30.", metavar="N"
        ),
    ] = None
    splits: Annotated[
        int | None,
        _option(
            "--splits",
            group=METHOD,
            text="Train/test splits for the score: 10; 0 for none.",
            metavar="N",
        ),
    ] = None
    validation: Annotated[
        str | None,
        _option(
            "--validate",
            group=METHOD,
            text="leave-one-site-out: score each site with a model of the others, too.",
            metavar="HOW",
        ),
    ] = None
    intervals: Annotated[
        str | None,
        _option(
            "--intervals",
            group=METHOD,
            text="Of effects: split (half of the rows chooses, the other gives them), or ensemble"
            " (spread over the seeds).",
            metavar="HOW",
        ),
    ] = None
    rounds: Annotated[
        int | None,
        _option(
            "--rounds",
            group=METHOD,
            text="Rounds of the search; the method's own by default.",
            metavar="N",
        ),
    ] = None
    participation: Annotated[
        float | None,
        _option(
            "--participation",
            group=METHOD,
            text="Sites in a round: a share up to 1, or a number from 2. All by default.",
            metavar="X",
        ),
    ] = None
    messages: Annotated[
        str | None,
        _option(
            "--messages",
            group=METHOD,
            text="What travels: auto, dense, feedback (sparse), compact (fewest bytes), paper.",
            metavar="KIND",
        ),
    ] = None
    standardise: Annotated[
        str | None,
        _option(
            "--standardise",
            group=METHOD,
            text="Units: feature, array (each row, then centred), row (each alone), none.",
            metavar="KIND",
        ),
    ] = None
    fdr: Annotated[
        float | None,
        _option(
            "--fdr",
            group=ERRORS,
            text="Choose as many as keep the expected share of false ones at this: .1.",
            metavar="X",
        ),
    ] = None
    decoys: Annotated[
        str | None,
        _option(
            "--decoys",
            group=ERRORS,
            text="That false ones are counted by: gaussian, permuted.",
            metavar="KIND",
        ),
    ] = None
    fdr_rule: Annotated[
        str | None,
        _option(
            "--fdr-rule",
            group=ERRORS,
            text="knockoff+, or minimum: where the estimate is least.",
            metavar="RULE",
        ),
    ] = None
    pfer: Annotated[
        float | None,
        _option(
            "--pfer",
            group=ERRORS,
            text="Stability selection: keep the expected number of false ones at this: 1.",
            metavar="X",
        ),
    ] = None
    pairs: Annotated[
        int | None,
        _option("--pairs", group=ERRORS, text="Pairs of halves of the rows: 50.", metavar="N"),
    ] = None
    assume: Annotated[
        str | None,
        _option(
            "--assume",
            group=ERRORS,
            text="Of the shares of halves: none, unimodal, r-concave.",
            metavar="KIND",
        ),
    ] = None
    harmonise: Annotated[
        str | None,
        _option(
            "--harmonise",
            group=METHOD,
            text="Take off each site's own means: location, location-scale (deviations, too).",
            metavar="HOW",
        ),
    ] = None
    site_intercepts: Annotated[
        str | None,
        _option(
            "--site-intercepts",
            group=METHOD,
            text="An intercept of each site, which stays there: own, random (drawn to the common "
            "one).",
            metavar="KIND",
        ),
    ] = None
    site_ridge: Annotated[
        float | None,
        _option(
            "--site-ridge",
            group=METHOD,
            text="How strongly random ones are drawn to it, in rows: 1.",
            metavar="X",
        ),
    ] = None
    seed: Annotated[
        int | None,
        _option("--seed", group=TRAINING, text="First seed, splits too: 0.", metavar="N"),
    ] = None
    weights: Annotated[
        str | None,
        _option(
            "--weights",
            group=TRAINING,
            text="Of sites in averages: samples, uniform.",
            metavar="KIND",
        ),
    ] = None
    aggregation: Annotated[
        str | None,
        _option(
            "--aggregation",
            group=TRAINING,
            text="Of uploads: mean, or a rule that bears wrong ones: median, trimmed_mean, "
            "geometric_median, multi_krum, clipped_mean.",
            metavar="RULE",
        ),
    ] = None
    schedule: Annotated[
        str | None,
        _option(
            "--schedule", group=TRAINING, text="How density falls: constant, cubic.", metavar="KIND"
        ),
    ] = None
    learning_rate: Annotated[
        float | None,
        _option(
            "--learning-rate", group=TRAINING, text="Step size; automatic by default.", metavar="X"
        ),
    ] = None
    local_steps: Annotated[
        int | None,
        _option("--local-steps", group=TRAINING, text="Steps of a site in a round.", metavar="N"),
    ] = None
    batch_size: Annotated[
        int | None,
        _option(
            "--batch-size", group=TRAINING, text="Rows of a step; all by default.", metavar="N"
        ),
    ] = None
    privacy_noise: Annotated[
        float | None,
        _option(
            "--privacy-noise", group=PRIVACY, text="Deviation of the noise, in clips.", metavar="X"
        ),
    ] = None
    epsilon: Annotated[
        float | None,
        _option(
            "--epsilon",
            group=PRIVACY,
            text="Of the whole fit; the noise follows from it.",
            metavar="X",
        ),
    ] = None
    privacy_clip: Annotated[
        float | None,
        _option(
            "--privacy-clip",
            group=PRIVACY,
            text="Longest message of a site, or gradient of a row.",
            metavar="X",
        ),
    ] = None
    privacy_delta: Annotated[
        float | None,
        _option("--privacy-delta", group=PRIVACY, text="Of (ε, δ), such as 1e-5.", metavar="X"),
    ] = None
    privacy_level: Annotated[
        str | None,
        _option(
            "--privacy-level",
            group=PRIVACY,
            text="What is protected: site (by default), sample.",
            metavar="LEVEL",
        ),
    ] = None
    knobs: Annotated[
        list[str] | None,
        _option(
            "--set",
            group=TRAINING,
            text="A method's own knob, such as entropy=.02; may be repeated.",
            metavar="NAME=X",
        ),
    ] = None
    tuning_rounds: Annotated[
        int | None,
        _option("--tuning-rounds", group=TRAINING, text="Rounds of the refit: 100.", metavar="N"),
    ] = None
    ridge: Annotated[
        float | None,
        _option("--ridge", group=TRAINING, text="Penalty of the refit: 1.", metavar="X"),
    ] = None
    covariate_ridge: Annotated[
        float | None,
        _option(
            "--covariate-ridge",
            group=TRAINING,
            text="Penalty of the covariates, in the units of --ridge: 0.",
            metavar="X",
        ),
    ] = None
    early_stop: Annotated[
        int | None,
        _option(
            "--early-stop",
            group=TRAINING,
            text="Stop the refit after N evaluations without a gain on rows held back; off.",
            metavar="N",
        ),
    ] = None
    min_cell: Annotated[
        int | None,
        _option(
            "--min-cell",
            group=TRAINING,
            text="Leave out counts and sites' own scores from fewer than N rows; off.",
            metavar="N",
        ),
    ] = None
    round_counts: Annotated[
        int | None,
        _option(
            "--round-counts",
            group=TRAINING,
            text="Tell counts of rows as multiples of N; off.",
            metavar="N",
        ),
    ] = None
    hazard_times: Annotated[
        str | None,
        _option(
            "--hazard-times",
            group=TRAINING,
            text="Of survival: times at which each site tells its baseline hazard, 12,24,60.",
            metavar="T,T",
        ),
    ] = None
    groups: Annotated[
        str | None,
        _option(
            "--groups",
            group=METHOD,
            text="GMT file of groups of features, each chosen as a whole; --features then counts"
            " groups.",
            metavar="FILE",
        ),
    ] = None
    gate: Annotated[
        str | None,
        _option(
            "--gate",
            group=TRAINING,
            text="One gate a feature, or scalar: one a weight.",
            metavar="UNIT",
        ),
    ] = None
    engine: Annotated[
        str | None,
        _option("--engine", group=TRAINING, text="vectorized or loop (slow).", metavar="NAME"),
    ] = None
    out: Annotated[
        Path | None,
        _option("--out", group=OUTPUT, text="Run folder; runs/NAME-N by default.", metavar="DIR"),
    ] = None
    overwrite: Annotated[
        bool, _option("--overwrite", group=OUTPUT, text="Replace the run in that folder.")
    ] = False
    json: Annotated[bool, _option("--json", group=OUTPUT, text="Print one JSON object.")] = False
    quiet: Annotated[
        bool, _option("--quiet", "-q", group=OUTPUT, text="No progress, no notes.")
    ] = False
    dry_run: Annotated[
        bool,
        _option(
            "--dry-run", group=OUTPUT, text="Say what would be done, how long, how many bytes."
        ),
    ] = False
    require: Annotated[
        list[str] | None,
        _option(
            "--require",
            group=OUTPUT,
            text="Exit with 3 if not met: 'test_accuracy>=.9'; may be repeated.",
            metavar="TEST",
        ),
    ] = None

    def source(self) -> Source:
        """Return where the data come from, or say what is missing."""
        from fedsift.data.paths import site_files
        from fedsift.sources import Source

        if not self.files and self.demo is None:
            raise UsageError("name your site files and --target COLUMN, or try --demo golub")
        if self.files and self.demo is not None:
            raise UsageError("site files and --demo were both given; choose one")
        survival = self._survival()
        if self.files and self.target is None and not survival:
            raise UsageError(
                f"--target is missing: which column of {self.files[0]} is to be predicted?"
            )
        own = _FOR_FILES if self.files else _FOR_DEMOS
        values = {name: getattr(self, name) for name in _FOR_FILES + _FOR_DEMOS}
        given = {k: v for k, v in values.items() if v is not None and v is not False and v != []}
        for name in given:
            if name not in own:
                belongs = "site files" if name in _FOR_FILES else "--demo"
                raise UsageError(f"{flag(name)} goes with {belongs} only; leave it out")
        self._check_demo(given)
        if self.covariates is not None:
            given["covariates"] = self.covariate_names
        if self.target is not None:
            given["target"] = self._target()
        given |= survival
        given.pop("event", None)
        if self.groups is not None:
            given["groups"] = self.groups
        if self.files:
            given["files"] = [str(file.absolute()) for file in site_files(self.files)]
        return Source(**given)

    @property
    def covariate_names(self) -> tuple[str, ...]:
        """The columns of ``--covariates age,sex``."""
        if self.covariates is None:
            return ()
        names = tuple(name.strip() for name in self.covariates.split(",") if name.strip())
        if not names:
            raise UsageError("--covariates names none; give columns with commas between: age,sex")
        return names

    def _target(self) -> str | None:
        """Return the target as the data name it: labels with commas and no blanks between."""
        from fedsift.data.coding import target_columns, target_name

        if self.target is None:
            return self.event
        return target_name(target_columns(self.target, self.outcome or "auto"))

    def _survival(self) -> dict[str, str]:
        """Return what the columns of a right-censored time mean for the source, if there are."""
        if self.event is None and self.time_column is None and self.outcome != "survival":
            return {}
        if self.event is None or self.time_column is None:
            missing = "--event" if self.event is None else "--time"
            raise UsageError(f"{missing} is missing; survival has a column of each, time and event")
        if self.target is not None or self.outcome not in {None, "survival"}:
            other = "--target" if self.target is not None else f"--outcome {self.outcome}"
            raise UsageError(f"{other} does not go with --time and --event; leave it out")
        return {"target": self.event, "outcome": "survival"}

    def of_plan(self, plan: AnalysisPlan, path: Path, method: str | None) -> Source:
        """Return the site files as a plan reads them; refuse what says otherwise than the plan.

        Raises:
            UsageError: the text names the option.
        """
        from fedsift.data.paths import site_files
        from fedsift.sources import Source

        for name in ("features_in_common", "groups", *_FOR_DEMOS):
            if getattr(self, name) not in {None, False}:
                raise UsageError(f"{flag(name)} does not go with --plan; leave it out")
        if not self.files:
            raise UsageError(f"name the site files that {path} is of")
        for option, given, planned in self._beside(plan, method):
            if given != planned:
                shown = "none" if planned in {None, ()} else _shown(planned)
                raise UsageError(
                    f"{option} {_shown(given)} contradicts {path}, which has {shown}; leave the"
                    " option out, or change the plan"
                )
        columns = plan.data.model_dump(exclude={"classes", "min_rows", "features", "covariates"})
        return Source(
            files=tuple(str(file.absolute()) for file in site_files(self.files)),
            plan=str(path.absolute()),
            covariates=tuple(plan.data.covariates),
            **columns,
        )

    def _beside(self, plan: AnalysisPlan, method: str | None) -> Iterator[tuple[str, Any, Any]]:
        """Return the options that a plan has, as they were given and as they are planned."""
        data, settings = plan.data, plan.settings
        given: dict[str, Any] = {"method": method}
        given |= {f.name: getattr(self, f.name) for f in fields(self)}
        given["target"] = self._target()
        planned = dict(settings) | {name: getattr(data, name) for name in _COLUMNS}
        for name in (*_COLUMNS, *type(settings).model_fields):
            if name not in {"knobs", "groups"} and given.get(name) is not None:
                yield flag(name), given[name], planned[name]
        if self.covariates is not None:
            yield "--covariates", self.covariate_names, tuple(data.covariates)
        if self.drop:
            yield "--drop", tuple(self.drop), data.drop
        for name, value in map(_knob, self.knobs or []):
            known = settings.knobs.get(name, plan.algorithm.get(name))
            yield "--set", f"{name}={value}", None if known is None else f"{name}={known}"
        for name in ("noise", "clip", "delta", "level", "epsilon"):
            option = name if name == "epsilon" else f"privacy_{name}"
            if given[option] is not None:
                known = None if settings.privacy is None else getattr(settings.privacy, name)
                yield flag(option), given[option], known

    def said(self, names: Sequence[str]) -> dict[str, str]:
        """Return the options of a value that were given, as they are written, but for the files."""
        values = {name: getattr(self, name) for name in names if name != "files"}
        return {
            flag(name): str(value)
            for name, value in values.items()
            if value is not None and not isinstance(value, bool | list)
        }

    def _check_demo(self, given: Mapping[str, Any]) -> None:
        """Refuse options that the data set would not heed."""
        if self.demo != "synthetic":
            for name in _FOR_SYNTHETIC:
                if name in given:
                    raise UsageError(f"{flag(name)} goes with --demo synthetic only; leave it out")
        elif self.splits is not None:
            raise UsageError(
                "--splits goes with real rows only (synthetic data have test rows); leave it out"
            )
        usual = "dirichlet_counts" if self.demo == "synthetic" else "iid"
        if self.alpha is not None and (self.partition or usual) == "iid":
            raise UsageError("--alpha goes with --partition dirichlet_... only; leave it out")

    def settings(self, source: Source, method: str) -> Settings:
        """Return the settings: what was said, else the data set's defaults, else the general."""
        from fedsift.data.groups import named_groups
        from fedsift.settings import Settings

        names = set(Settings.model_fields) & {field.name for field in fields(self)}
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if self.groups is not None:
            given["groups"] = named_groups(self.groups)
        privacy = self._privacy()
        if privacy is not None:
            given["privacy"] = privacy
        if self.hazard_times is not None:
            given["hazard_times"] = _numbers("--hazard-times", self.hazard_times)
        if self.knobs:
            given["knobs"] = dict(_knob(text) for text in self.knobs)
        defaults = dict(source.defaults)
        controlled = "fdr" in given or "pfer" in given
        if "density" in given or controlled:
            defaults.pop("features", None)
            defaults.pop("density", None)
        merged = {**defaults, **given, "method": method}
        if "features" not in merged and "density" not in merged and not controlled:
            raise UsageError(
                "--features is missing: how many features may the answer have? (or --density)"
            )
        return Settings(**merged)

    def _privacy(self) -> Privacy | None:
        """Return what privacy was asked for."""
        from fedsift.privacy import Privacy

        names = ("noise", "clip", "delta", "level")
        values = {name: getattr(self, f"privacy_{name}") for name in names}
        given = {k: v for k, v in (values | {"epsilon": self.epsilon}).items() if v is not None}
        if not given:
            return None
        for name in ("clip", "delta"):
            if name not in given:
                raise UsageError(f"--privacy-{name} is missing; privacy needs it (docs/privacy.md)")
        return Privacy(**given)


def _shown(value: Any) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _numbers(option: str, text: str) -> tuple[float, ...]:
    """Return the numbers of ``12,24,60``."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{option} is {text!r}; give numbers with commas between") from None


def _knob(text: str) -> tuple[str, bool | int | float | str]:
    """Return name and value of ``entropy=.02``."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if not (name and equals and value):
        raise UsageError(f"--set {text} names no value; write --set name=value")
    if value.lower() in {"true", "false"}:
        return name, value.lower() == "true"
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value


_FOR_FILES = (
    "files", "target", "event", "id_column", "site_column", "weight_column", "time_column",
    "features_in_common", "impute", "outcome", "drop", "covariates", "separator",
)  # fmt: skip
_COLUMNS = (
    "target", "id_column", "site_column", "weight_column", "time_column", "impute", "outcome",
    "separator",
)  # fmt: skip
_FOR_SYNTHETIC = ("samples", "features_total", "informative", "data_seeds")
_FOR_DEMOS = ("demo", "sites", "partition", "alpha", "shift", "data", *_FOR_SYNTHETIC)


@cache
def _hints() -> dict[str, Any]:
    """Return the types of a request's fields: made once, for that takes its time."""
    return get_type_hints(Request, include_extras=True)


def takes_request(
    command: Callable[..., None],
    only: Sequence[str] | None = None,
    without: Sequence[str] = (),
) -> Callable[..., None]:
    """Give a command, whose first argument is a `Request`, the request's fields as options.

    ``only``: those that the command takes, all by default, but for those ``without``.
    """
    hints = _hints()
    shared = [
        inspect.Parameter(
            f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name]
        )
        for f in fields(Request)
        if (only is None or f.name in only) and f.name not in without
    ]
    own_hints = get_type_hints(command, include_extras=True)
    own = [
        p.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=own_hints[p.name])
        for p in list(inspect.signature(command).parameters.values())[1:]
    ]

    first = (place for place, p in enumerate(shared) if p.name == "features")  # of its group
    place = next(first, len(shared))

    def called(**given: Any) -> None:
        mine = {p.name: given.pop(p.name) for p in own}
        command(Request(**given), **mine)

    called.__name__, called.__doc__ = command.__name__, command.__doc__
    called.__signature__ = inspect.Signature([*shared[:place], *own, *shared[place:]])  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in (*shared, *own)}
    return called
