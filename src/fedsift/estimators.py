"""Estimators with scikit-learn's interface: sparse models fitted over sites.

``sites`` says where each row is. It is a metadata of ``fit``, which pipelines and searches pass on:
``set_fit_request(sites=True)`` with metadata routing. Without it all rows are one site.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.feature_selection import SelectorMixin
from sklearn.utils import _safe_indexing, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from fedsift.data import FederatedData, Standardiser
from fedsift.data.errors import DataWarning, nearest
from fedsift.data.groups import groups_of, named_groups
from fedsift.data.standardise import How, per_unit
from fedsift.findings import choice_figures
from fedsift.linear_problems import slopes_of
from fedsift.methods import Messages, find_method
from fedsift.selection import inclusion_probability
from fedsift.settings import Settings
from fedsift.studies import Case, check_request, fit_case
from fedsift.trees import Tree
from fedsift.unlearning.in_memory import forget_in_linear, retrained
from fedsift.unlearning.report import UnlearningReport
from fedsift.unlearning.scope import Scope

MOST = 10  # features that are kept where nobody said how many


class FederatedSparse(SelectorMixin, BaseEstimator):
    """What both estimators share.

    Args:
        n_features: how many features to keep; None with no density: 10, or all of fewer.
        density: their share, in place of ``n_features``.
        method: a name in `fedsift.METHODS` that gives one model.
        n_seeds: runs with different random numbers, whose choices are put together.
        rounds: rounds of the search; the method's own number by default.
        participation: share, or number, of the sites that take part in a round.
        messages: ``auto``, ``dense``, ``feedback``, ``compact`` or ``paper``.
        standardise: ``feature``, ``array`` (rows, then centred features), ``row`` or ``none``.
        ridge: weight of the refit's penalty, in units of one sample.
        covariates: columns of X, by name or number, that stay in the model whatever is chosen and
            count apart from ``n_features``; categories as columns of 0 and 1.
        covariate_ridge: weight of their penalty.
        groups: columns of X by the name of their group, each by name or number, or the path of a
            GMT file of names; a group is chosen as a whole, and ``n_features`` counts groups and
            columns in no group (docs/groups.md).
        tuning_rounds: rounds of the refit.
        random_state: an int fixes all numbers; None draws one.

    Attributes:
        coef_: [d] for one output, else [K, d]; per unit of the feature, for ``array`` per unit of
            the standardised row. 0 for features that are not kept.
        intercept_: a number for one output, else [K].
        support_: [d] bool, the features that are chosen; ``transform`` keeps covariates, too.
        covariates_: [d] bool, the covariates.
        inclusion_probability_: [d], the share of the seeds that chose each feature.
        groups_: the share of the seeds that chose each chosen group, by its name.
        n_features_in_, feature_names_in_: as in scikit-learn.
        standardiser_: brings rows to standard units.
        history_: a record a round.
    """

    def __init__(
        self,
        n_features: int | None = None,
        *,
        density: float | None = None,
        method: str = "eflops",
        n_seeds: int = 8,
        rounds: int | None = None,
        participation: float = 1.0,
        messages: Messages = "auto",
        standardise: How = "feature",
        ridge: float = 1.0,
        covariates: Sequence[str | int] | None = None,
        covariate_ridge: float = 0.0,
        groups: Mapping[str, Sequence[str | int]] | str | None = None,
        tuning_rounds: int = 100,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.n_features = n_features
        self.density = density
        self.method = method
        self.n_seeds = n_seeds
        self.rounds = rounds
        self.participation = participation
        self.messages = messages
        self.standardise = standardise
        self.ridge = ridge
        self.covariates = covariates
        self.covariate_ridge = covariate_ridge
        self.groups = groups
        self.tuning_rounds = tuning_rounds
        self.random_state = random_state

    def _fit(self, x: NDArray[Any], y: ArrayLike, sites: ArrayLike | None, outcome: str) -> None:
        """Fit the model to rows whose target is coded."""
        self.covariates_ = self._covariate_mask(x.shape[1])
        data = self._data(x, y, None if sites is None else column_or_1d(sites), outcome)
        settings = self._settings(data)
        if find_method(self.method).rows == "alone":
            msg = f"method {self.method!r} fits each site alone; name one that gives one model"
            raise ValueError(msg)
        check_request(settings, [self.method], data)
        self.standardiser_ = Standardiser.fit(data, self.standardise)
        fit = fit_case(Case("all rows", data), settings, self.standardiser_)
        self._take(fit.ensemble(), data.outcome)
        self.inclusion_probability_ = np.ones(x.shape[1])
        self.inclusion_probability_[~self.covariates_] = inclusion_probability(
            (fit.weights != 0).any(1)
        ).numpy()
        chosen = choice_figures(fit, Case("all rows", data), settings).get("groups", [])
        self.groups_ = {group["name"]: group["inclusion_probability"] for group in chosen}
        self.history_ = fit.history

    def _data(
        self,
        x: NDArray[Any],
        y: ArrayLike,
        sites: NDArray[Any] | None,
        outcome: str,
        ids: Sequence[object] | None = None,
    ) -> FederatedData:
        """Return rows with their sites, the covariates apart."""
        data = FederatedData.from_arrays(x, y, sites=sites, ids=ids, outcome=outcome)
        if not self.covariates_.any():
            return data
        return data.with_covariates(np.asarray(data.features)[self.covariates_].tolist())

    def _take(self, params: Tree, outcome: str) -> None:
        """Become the model with these parameters on standardised rows."""
        self._params = params
        wide = {name: leaf.double() for name, leaf in params.items()}
        weight, bias = slopes_of(wide), wide["bias"]
        if self.standardise == "feature":
            weight = per_unit(weight, self.standardiser_.scale)
            bias = bias - weight @ self.standardiser_.mean
        if outcome == "regression":
            weight = weight * self.standardiser_.target_scale
            bias = bias * self.standardiser_.target_scale + self.standardiser_.target_mean
        # From the order of the fit, covariates last, to that of the columns of X.
        own, stay = np.flatnonzero(~self.covariates_), np.flatnonzero(self.covariates_)
        self._places = np.argsort(np.concatenate([own, stay]))
        self._weight, self._bias = weight.numpy()[:, self._places], bias.numpy()
        one = len(self._weight) == 1
        self.coef_ = self._weight[0] if one else self._weight
        self.intercept_ = float(self._bias[0]) if one else self._bias
        self.support_ = (self._weight != 0).any(0) & ~self.covariates_

    def _covariate_mask(self, width: int) -> NDArray[np.bool_]:
        """Return which columns of X are covariates."""
        mask = np.zeros(width, dtype=bool)
        names = list(getattr(self, "feature_names_in_", ()))
        known = names or [f"0 to {width - 1}"]
        for item in self.covariates or ():
            place = names.index(item) if item in names else item
            if not isinstance(place, int | np.integer) or not 0 <= place < width:
                msg = f"covariates: X has no column {item!r}; {nearest(str(item), known)}"
                raise ValueError(msg)
            mask[place] = True
        return mask

    def _groups(self, data: FederatedData) -> dict[str, list[str]] | None:
        """Return the groups by the names that columns have in the data."""
        if self.groups is None:
            return None
        places = [f"x{column}" for column in range(data.n_features)]
        names: list[str] = list(getattr(self, "feature_names_in_", places))

        def name_of(item: str | int) -> str:
            if not isinstance(item, int | np.integer):
                return item
            if not 0 <= item < len(names):
                msg = f"groups: X has no column {item}; there are 0 to {len(names) - 1}"
                raise ValueError(msg)
            return names[item]

        given: Any = self.groups
        if isinstance(given, Mapping):
            given = {group: [*map(name_of, own)] for group, own in given.items()}
        found = groups_of(named_groups(given), names)
        for note in found.notes():
            warnings.warn(note, DataWarning, stacklevel=2)
        return {
            group: [places[column] for column in own if not self.covariates_[column]]
            for group, own in zip(found.names, found.members, strict=True)
        }

    def _settings(self, data: FederatedData) -> Settings:
        kept, groups = self.n_features, self._groups(data)
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(2**31)
        settings = Settings(
            method=self.method,
            features=MOST if kept is None and self.density is None else kept,
            density=self.density,
            seeds=self.n_seeds,
            seed=int(seed),
            rounds=self.rounds,
            participation=self.participation,
            messages=self.messages,
            standardise=self.standardise,
            ridge=self.ridge,
            covariate_ridge=self.covariate_ridge,
            groups=groups,
            tuning_rounds=self.tuning_rounds,
        )
        if kept is None and self.density is None:
            most = min(MOST, settings.gates(data))
            settings = settings.model_copy(update={"features": most})
        return settings

    def _output(self, x: ArrayLike) -> NDArray[np.float64]:
        """Return the model's output for rows, [n, 1] or [n, K]."""
        check_is_fitted(self)
        values = validate_data(self, x, reset=False, dtype=np.float64)
        if self.standardiser_.whole_rows:
            names = [f"x{place}" for place in range(values.shape[1])]
            rows = self.standardiser_.transform(torch.tensor(values), names)
            values = rows.double().numpy()[:, self._places]
        output: NDArray[np.float64] = values @ self._weight.T + self._bias
        return output

    def _get_support_mask(self) -> NDArray[np.bool_]:
        check_is_fitted(self)
        support: NDArray[np.bool_] = self.support_ | self.covariates_
        return support


class FederatedSparseRegressor(RegressorMixin, FederatedSparse):
    """A linear model on few features, fitted where the rows are.

    Example:
        >>> from fedsift.estimators import FederatedSparseRegressor
        >>> from sklearn.datasets import load_diabetes
        >>> x, y = load_diabetes(return_X_y=True)
        >>> model = FederatedSparseRegressor(3, n_seeds=2, rounds=20)
        >>> int(model.fit(x, y, sites=[row % 4 for row in range(len(x))]).support_.sum())
        3
    """

    def fit(self, X: ArrayLike, y: ArrayLike, sites: ArrayLike | None = None) -> Self:
        """Fit the model to rows X [n, d] with targets y [n], at ``sites`` [n].

        Raises:
            ValueError: the rows or a parameter cannot be used; the text says which.
        """
        x, target = validate_data(
            self, X, y, dtype=np.float64, y_numeric=True, ensure_min_samples=2
        )
        self._fit(x, np.asarray(target, dtype=np.float64), sites, "regression")
        return self

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the predicted target of rows, [n]."""
        return self._output(X)[:, 0]


class FederatedSparseClassifier(ClassifierMixin, FederatedSparse):
    """A logistic (softmax for more than two classes) model on few features, fitted where rows are.

    Besides what both estimators have: ``classes_``, the K classes in order, and after `forget`
    ``forgotten_``, its report.

    Example:
        >>> from fedsift.estimators import FederatedSparseClassifier
        >>> from sklearn.datasets import load_breast_cancer
        >>> x, y = load_breast_cancer(return_X_y=True)
        >>> model = FederatedSparseClassifier(3, n_seeds=2, rounds=20)
        >>> bool(model.fit(x, y, sites=[row % 4 for row in range(len(x))]).score(x, y) > 0.9)
        True
    """

    forgotten_: UnlearningReport

    def fit(self, X: ArrayLike, y: ArrayLike, sites: ArrayLike | None = None) -> Self:
        """Fit the model to rows X [n, d] with classes y [n], at ``sites`` [n].

        Raises:
            ValueError: the rows or a parameter cannot be used; the text says which.
        """
        x, target = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(target)
        self.classes_, codes = np.unique(target, return_inverse=True)
        if len(self.classes_) < 2:
            msg = f"y has 1 class, {self.classes_[0]!r}; give rows of two classes or more"
            raise ValueError(msg)
        self._fit(x, codes, sites, "binary" if len(self.classes_) == 2 else "multiclass")
        return self

    def forget(
        self,
        X: ArrayLike,
        y: ArrayLike,
        forget: ArrayLike,
        sites: ArrayLike | None = None,
        *,
        held_out: ArrayLike | None = None,
        method: str = "fumegs",
        **options: Any,
    ) -> Self:
        """Return a fitted model without the influence of rows; this one stays as it is.

        It is a method, for an estimator that wrapped a fitted one would lose it: scikit-learn's
        ``fit`` begins from nothing, and a search clones what it is given, without what was fitted.

        Example:
            >>> import numpy as np
            >>> from fedsift.estimators import FederatedSparseClassifier
            >>> from sklearn.datasets import load_breast_cancer
            >>> x, y = load_breast_cancer(return_X_y=True)
            >>> sites = np.arange(len(x)) % 4
            >>> model = FederatedSparseClassifier(3, n_seeds=2, rounds=20).fit(x, y, sites)
            >>> model.forget(x, y, sites == 2, sites, method="retrain").forgotten_.guarantee
            'exact given preprocessing'

        Args:
            X: the rows it was fitted to, [n, d], and rows held out.
            y: their classes, [n].
            forget: [n] bool, the rows to forget; for a site, all of its rows.
            sites: where each row is, [n].
            held_out: [n] bool, rows at the sites that forget which the model has not seen; they
                say when to stop, unless ``target`` does.
            method: ``retrain`` fits anew without the rows; the others in
                `fedsift.unlearning.methods.FORGETTERS` keep the features and change the weights.
            options: of the method, such as ``target``.

        Returns:
            The model; its ``forgotten_`` is the `UnlearningReport`, without parameters.

        Raises:
            ValueError: no or every row is to go, y has other classes, or nothing says when to stop.
        """
        check_is_fitted(self)
        x, target = validate_data(self, X, y, dtype=np.float64, reset=False)
        places = None if sites is None else column_or_1d(sites)
        goes = np.asarray(forget, dtype=bool)
        unseen = np.zeros(len(x), bool) if held_out is None else np.asarray(held_out, dtype=bool)
        scope = Scope(rows=tuple(str(row) for row in goes.nonzero()[0]))
        stays = (~(goes | unseen)).nonzero()[0]
        if not scope or not len(stays):
            what = "every row is" if scope else "no row is"
            raise ValueError(f"{what} to be forgotten; mark some in forget, and leave some to keep")
        if (found := sorted(set(target.tolist()))) != self.classes_.tolist():
            msg = (
                f"y has the classes {found}, the model {self.classes_.tolist()}; give its own rows"
            )
            raise ValueError(msg)
        if method == "retrain":
            kept = None if places is None else places[stays]
            after: Self = clone(self).fit(_safe_indexing(X, stays), target[stays], kept)
            after.forgotten_ = retrained(scope)
            return after
        after = copy.deepcopy(self)
        outcome = "binary" if len(self.classes_) == 2 else "multiclass"
        codes = np.searchsorted(self.classes_, target)
        data = self._data(x, codes, places, outcome, ids=range(len(x)))
        held = torch.tensor([bool(unseen[int(row)]) for row in data.rows])
        rows = self.standardiser_.apply(data)
        report = forget_in_linear(self._params, rows, scope, held, method, **options)
        assert report.params is not None  # noqa: S101  something was named to forget
        after._take(report.params, data.outcome)  # noqa: SLF001  a copy of this one
        after.forgotten_ = replace(report, params=None)
        return after

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the score of the second class, [n], or with more classes of each, [n, K]."""
        output = self._output(X)
        return output[:, 0] if output.shape[1] == 1 else output

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the probability of each class, [n, K]."""
        output = torch.from_numpy(self._output(X))
        if output.shape[1] == 1:
            output = torch.cat([torch.zeros_like(output), output], 1)
        probability: NDArray[np.float64] = torch.softmax(output, 1).numpy()
        return probability

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the likeliest class of each row, [n]."""
        output = self._output(X)
        if output.shape[1] == 1:
            return np.asarray(self.classes_[(output[:, 0] > 0).astype(int)])
        return np.asarray(self.classes_[output.argmax(1)])
