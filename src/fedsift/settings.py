"""What a user asks for: everything that decides a study's numbers, apart from the data."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedsift.aggregation import Rule
from fedsift.controlled import DecoyRule
from fedsift.data import FederatedData, How
from fedsift.data.errors import nearest
from fedsift.data.groups import Groups, Named, groups_of
from fedsift.data.harmonise import Harmonise
from fedsift.decoys import How as DecoyKind
from fedsift.engines import ENGINES
from fedsift.methods import Messages, find_method
from fedsift.privacy import Privacy
from fedsift.sparsity import Schedule, grouping, kept_count
from fedsift.stability import Assumption, most_chosen

# Of the columns, features and decoys, that a seed keeps where it is not said and decoys are used.
FEWEST, SHARE = 20, 10


class Settings(BaseModel):
    """Everything that decides a study's numbers, apart from the data.

    ``features`` (how many to keep) or ``density`` (their share) must be given. None elsewhere means
    the algorithm's own default. ``ridge`` is the weight of the refit's penalty in units of one
    sample; ``early_stop`` ends the refit after that many evaluations without a lower loss on a
    fifth of the training rows, which then only validate. ``min_cell`` leaves out of results and
    files what is known from fewer rows than that: a site's own score, counts of a site or a class,
    notes on the data; ``round_counts`` rounds the counts that are told to multiples of it.
    ``hazard_times`` are the times at which each site tells its baseline hazard of survival; none:
    20 even steps, and nothing from sites on other machines. ``knobs`` are hyperparameters of the
    method's algorithm by name, such as ``entropy``. ``groups`` are names of features by the name of
    their group (docs/groups.md): a group has one gate, so that all of it is chosen or nothing;
    ``features`` and ``density`` then count gates, those of groups and of features in no group.
    ``harmonise`` brings the rows of each site to its own units first (`data.harmonise`).
    ``site_intercepts`` "own" gives every site an intercept of its own, that stays there; "random"
    draws them to the common one by a penalty of the weight ``site_ridge``, in the units of
    ``ridge``, in the search as in the refit.
    ``validation`` "leave-one-site-out" fits without each site in turn, too, and scores it.
    ``intervals`` "split" lets half of the rows choose features, too, and gives intervals of their
    effects from the other half; "ensemble" tells the spread of effects over the runs.
    ``covariate_ridge`` is the weight of the penalty of covariates, in the units of ``ridge``, in
    the search as in the refit. With ``fdr`` or ``pfer`` the errors are controlled
    (docs/error-control.md): as many features are chosen as keep the expected share of false ones at
    ``fdr``, by ``decoys`` and ``fdr_rule``, or the expected number of false ones at ``pfer``, by
    ``pairs`` of halves of the rows under the assumption ``assume``; ``features`` is then how many a
    seed, or half, may choose, decoys among them, and a default takes the place of None. With
    ``privacy`` the search of all seeds and the refit of the ensemble share its budget; seeds are
    not refitted, and ``ridge`` is in units of a site where sites are protected.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: str = "eflops"
    features: int | None = Field(None, ge=1)
    density: float | None = Field(None, gt=0, le=1)
    seeds: int = Field(30, ge=1)
    seed: int = 0
    splits: int = Field(10, ge=0)
    validation: Literal["splits", "leave-one-site-out"] = "splits"
    intervals: Literal["split", "ensemble"] | None = None
    test_fraction: float = Field(0.2, gt=0, lt=1)
    rounds: int | None = Field(None, ge=1)
    participation: float = Field(1.0, gt=0, allow_inf_nan=False)
    weights: Literal["samples", "uniform"] = "samples"
    messages: Messages = "auto"
    aggregation: Rule = "mean"
    standardise: How = "feature"
    harmonise: Harmonise | None = None
    site_intercepts: Literal["own", "random"] | None = None
    site_ridge: float = Field(1.0, gt=0, allow_inf_nan=False)
    schedule: Schedule | None = None
    learning_rate: float | None = Field(None, gt=0, allow_inf_nan=False)
    local_steps: int | None = Field(None, ge=1)
    batch_size: int | None = Field(None, ge=1)
    tuning_rounds: int = Field(100, ge=1)
    ridge: float = Field(1.0, ge=0, allow_inf_nan=False)
    covariate_ridge: float = Field(0.0, ge=0, allow_inf_nan=False)
    early_stop: int | None = Field(None, ge=1)
    gate: Literal["feature", "scalar"] = "feature"
    groups: Named | None = None
    engine: Literal["vectorized", "loop"] = "vectorized"
    evaluate_every: int = Field(10, ge=1)
    min_cell: int = Field(0, ge=0)
    round_counts: int = Field(1, ge=1)
    hazard_times: tuple[float, ...] = ()
    knobs: dict[str, bool | int | float | str] = Field(default_factory=dict)
    privacy: Privacy | None = None
    fdr: float | None = Field(None, gt=0, lt=1)
    fdr_rule: DecoyRule = "knockoff+"
    decoys: DecoyKind = "gaussian"
    pfer: float | None = Field(None, gt=0, allow_inf_nan=False)
    pairs: int = Field(50, ge=1)
    assume: Assumption = "unimodal"

    @model_validator(mode="after")
    def _check(self) -> Settings:
        given = (self.features is not None) + (self.density is not None)
        if given == 2 or (given == 0 and not self.controlled):
            msg = "give how many features to keep (features) or their share (density), and not both"
            raise ValueError(msg)
        self._check_control()
        if self.participation > 1 and self.participation != int(self.participation):
            msg = (
                f"participation is {self.participation}; "
                "give a fraction up to 1 or a whole number of sites"
            )
            raise ValueError(msg)
        if self.groups is not None and self.gate != "feature":
            msg = f"gate is {self.gate!r}, but groups share their gates; leave one of the two out"
            raise ValueError(msg)
        if self.harmonise is not None and self.standardise in {"array", "row"}:
            msg = (
                f"standardise={self.standardise!r} looks at whole rows, which harmonise "
                "changes; use standardise='feature' with it"
            )
            raise ValueError(msg)
        self._check_sites()
        self._check_intervals()
        times = self.hazard_times
        if any(not a < b for a, b in pairwise((0.0, *times))) or math.inf in times:
            msg = f"hazard_times are {times}; give rising times above 0"
            raise ValueError(msg)
        find_method(self.method)
        assert self.engine in ENGINES  # noqa: S101
        return self

    def _check_sites(self) -> None:
        if self.site_intercepts != "random" and self.site_ridge != 1.0:
            msg = "site_ridge goes with site_intercepts='random' only; leave it out"
            raise ValueError(msg)
        if self.site_intercepts is not None and self.early_stop is not None:
            msg = (
                "early_stop goes back to an earlier state of the server, but sites do not go back"
                " to their intercepts of then; leave it out, or site_intercepts"
            )
            raise ValueError(msg)

    def _check_intervals(self) -> None:
        """Refuse intervals of what they do not hold for."""
        if self.intervals == "split" and self.aggregation != "mean":
            msg = (
                f"intervals='split' adds up what sites say, and aggregation={self.aggregation!r} is"
                " for sites that may say wrong things; leave one of the two out"
            )
            raise ValueError(msg)
        if self.intervals == "split" and self.site_intercepts is not None:
            msg = (
                "intervals='split' are of a model with one intercept, and site_intercepts gives"
                " every site its own; leave one of the two out"
            )
            raise ValueError(msg)
        if self.intervals == "ensemble" and effective(self).seeds < 2:
            msg = "one run has no spread: with intervals='ensemble' use several seeds, or 'split'"
            raise ValueError(msg)

    def _check_control(self) -> None:
        """Refuse options of error control without it, and what it does not go with."""
        usual = {name: f.default for name, f in Settings.model_fields.items()}
        of = {"fdr": ("fdr_rule", "decoys"), "pfer": ("pairs", "assume")}
        for asked, names in of.items():
            for name in names:
                if getattr(self, asked) is None and getattr(self, name) != usual[name]:
                    msg = f"{name} goes with {asked} only; leave it out, or give {asked}"
                    raise ValueError(msg)
        wrong = {
            "fdr and pfer are two ways to control errors; give one": self.fdr is not None
            and self.pfer is not None,
            f"gate is {self.gate!r}, but errors are controlled by feature; leave gate out":
                self.gate != "feature",
            "fdr and pfer control errors of single features; leave groups out":
                self.groups is not None,
            "a private fit has no fdr or pfer: decoys need sums over rows without noise, and halves"
            " of the rows would spend its budget many times; leave it out":
                self.privacy is not None,
        }  # fmt: skip
        for msg, is_wrong in wrong.items():
            if self.controlled and is_wrong:
                raise ValueError(msg)

    @property
    def controlled(self) -> bool:
        """Whether the number of features follows from an error rate."""
        return self.fdr is not None or self.pfer is not None

    @property
    def columns(self) -> int:
        """Columns that a search has for a feature: itself, and its decoy if any."""
        return 1 if self.fdr is None else 2

    @property
    def lanes(self) -> int:
        """Runs of a search: the seeds, or the halves of the rows."""
        return self.seeds if self.pfer is None else 2 * self.pairs

    def kept(self, gates: int) -> int:
        """Return how many of ``gates`` are kept, by each seed where errors are controlled.

        Raises:
            ValueError: more than there are, or none.
        """
        if self.features is None and self.density is None:
            return self._usual_kept(gates)
        count = (
            self.features
            if self.features is not None
            else kept_count(float(self.density or 0), gates)
        )
        if not 1 <= count <= gates:
            asked = (
                f"features={self.features}"
                if self.features is not None
                else f"density={self.density}"
            )
            what = "features" if self.groups is None else "gates of groups and features"
            msg = f"{asked} keeps {count} of {gates} {what}; ask for 1 to {gates}"
            raise ValueError(msg)
        return count

    def groups_in(self, data: FederatedData) -> Groups | None:
        """Return the groups of the data's features, None without groups.

        Raises:
            DataError: no group has a feature of the data.
        """
        return None if self.groups is None else groups_of(self.groups, data.candidates)

    def gates(self, data: FederatedData) -> int:
        """Return how many gates each run of a search chooses among.

        Raises:
            DataError: as `groups_in`.
        """
        groups = self.groups_in(data)
        if groups is None:
            return self.columns * data.n_candidates
        return grouping(data.n_candidates, groups.members).size

    def _usual_kept(self, gates: int) -> int:
        """Return how many a seed keeps where it is not said and errors are controlled."""
        if self.pfer is None:
            return min(gates, max(FEWEST, gates // SHARE))
        count = most_chosen(self.pfer, gates, self.pairs, self.assume)
        if not count:
            msg = (
                f"pfer={self.pfer:g} cannot be kept: the bound is above it for one feature of"
                f" {gates}; give a larger one"
            )
            raise ValueError(msg)
        return count


def refused(error: ValidationError, label: Callable[[str], str] = str) -> str:
    """Return what was refused first, in one line: the setting by its label, its value, and why."""
    first = error.errors()[0]
    if not first["loc"]:
        return str(first["msg"]).removeprefix("Value error, ")
    name, value = label(str(first["loc"][0])), first["input"]
    if first["type"] == "extra_forbidden":
        return f"{name} is not a setting; {nearest(name, list(Settings.model_fields))}"
    if first["type"] == "literal_error":
        choices = re.findall(r"'([^']+)'", str(first["ctx"]["expected"]))
        return f"{name} {value!r} is unknown; {nearest(str(value), choices)}"
    wanted = str(first["msg"]).removeprefix("Input should be ").removeprefix("Value error, ")
    if first["type"].startswith(("greater", "less")):
        wanted = _bounds(str(first["loc"][0])) or wanted
    return f"{name} is {value!r}; it should be {wanted}"


def _bounds(name: str) -> str:
    """Return all bounds of a setting, in words."""
    field = Settings.model_fields.get(name)
    signs = {"gt": "greater than", "ge": "at least", "lt": "less than", "le": "at most"}
    parts = [] if field is None else field.metadata
    return " and ".join(
        f"{word} {getattr(part, sign)}"
        for part in parts
        for sign, word in signs.items()
        if hasattr(part, sign)
    )


def effective(settings: Settings) -> Settings:
    """Return the settings that count: a method that says all at once has one seed, and all sites.

    Its search asks every site; seeds would all give the same answer. Halves of the rows take the
    place of seeds. A method that shows the bound beside has no intercepts of sites.
    """
    method = find_method(settings.method)
    if method.rows != "federated" or method.once:
        settings = settings.model_copy(update={"site_intercepts": None})
    if method.once:
        settings = settings.model_copy(update={"seeds": 1, "participation": 1.0})
    return settings.model_copy(update={"seeds": settings.lanes})
