"""The estimators keep scikit-learn's contract, and say the same as `fedsift.fit`."""

import io
import pickle
import warnings
from typing import Any

import joblib
import numpy as np
import polars as pl
import pytest
import sklearn
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.feature_selection import SelectFromModel
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

import fedsift
from fedsift.data import FederatedData
from fedsift.estimators import FederatedSparseClassifier, FederatedSparseRegressor

QUICK: dict[str, Any] = {"n_seeds": 2, "rounds": 60, "tuning_rounds": 40}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    [FederatedSparseClassifier(**QUICK), FederatedSparseRegressor(**QUICK)],
    expected_failed_checks=lambda _: {},
)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def cancer():
    x, y = load_breast_cancer(return_X_y=True, as_frame=True)
    return x, y.map({0: "malignant", 1: "benign"}), [f"clinic {row % 4}" for row in range(len(x))]


def test_a_classifier_of_three_features(cancer):
    x, y, sites = cancer
    model = FederatedSparseClassifier(3, **QUICK).fit(x, y, sites=sites)
    assert model.classes_.tolist() == ["benign", "malignant"]
    assert model.score(x, y) > 0.9
    assert model.support_.sum() == 3
    assert list(model.get_feature_names_out()) == list(x.columns[model.get_support()])
    assert model.transform(x).shape == (len(x), 3)
    assert ((model.inclusion_probability_ >= 0) & (model.inclusion_probability_ <= 1)).all()
    np.testing.assert_allclose(model.predict_proba(x).sum(1), 1)
    odds = np.log(model.predict_proba(x)[:, 1] / model.predict_proba(x)[:, 0])
    np.testing.assert_allclose(odds, model.decision_function(x), rtol=1e-6, atol=1e-6)
    by_hand = x.to_numpy() @ model.coef_ + model.intercept_
    np.testing.assert_allclose(by_hand, model.decision_function(x), rtol=1e-6, atol=1e-6)
    again = io.BytesIO()
    joblib.dump(model, again)
    again.seek(0)
    assert (joblib.load(again).predict(x) == model.predict(x)).all()
    polars = pl.DataFrame({name: x[name].to_numpy() for name in x.columns})
    assert (model.predict(polars) == model.predict(x)).all()


def test_it_is_the_fit_of_the_library(cancer):
    x, y, sites = cancer
    model = FederatedSparseClassifier(3, **QUICK).fit(x, y, sites=sites)
    data = FederatedData.from_arrays(x, list(y), sites=sites, features=list(x.columns))
    run = fedsift.fit(data, features=3, seeds=2, rounds=60, tuning_rounds=40, splits=0, beside=())
    assert {f.name for f in run.features} == set(x.columns[model.support_])
    assert run.predict(x.to_numpy(), list(x.columns)) == model.predict(x).tolist()


@pytest.mark.parametrize("how", ["feature", "array", "row", "none"])
def test_a_regressor_in_the_units_of_the_target(how):
    x, y = load_diabetes(return_X_y=True, scaled=False)
    model = FederatedSparseRegressor(4, standardise=how, **QUICK).fit(x, y)
    assert model.support_.sum() == 4
    if how == "feature":
        assert model.score(x, y) > 0.4
        np.testing.assert_allclose(x @ model.coef_ + model.intercept_, model.predict(x), rtol=1e-6)


def test_sites_reach_it_through_pipelines_and_searches():
    x, y = load_iris(return_X_y=True)
    sites = [row % 3 for row in range(len(x))]
    with sklearn.config_context(enable_metadata_routing=True):
        model = FederatedSparseClassifier(**QUICK).set_fit_request(sites=True)
        search = GridSearchCV(
            make_pipeline(FunctionTransformer(), model),
            {"federatedsparseclassifier__n_features": [1, 2]},
            cv=2,
        )
        search.fit(x, y, sites=sites)
    assert search.best_score_ > 0.8
    found = search.best_estimator_[-1]
    assert found.coef_.shape == (3, 4)
    assert set(found.history_[0]["sites"]) == {"0", "1", "2"}
    chosen = SelectFromModel(found, prefit=True, threshold=1e-9).get_support()
    assert (chosen == found.support_).all()


def test_polars_in_and_out_with_names(cancer):
    x, y, sites = cancer
    table = pl.DataFrame({name: x[name].to_numpy() for name in x.columns})
    model = FederatedSparseClassifier(3, **QUICK).set_output(transform="polars")
    model.fit(table, pl.Series(list(y)), sites=pl.Series(sites))
    plain = FederatedSparseClassifier(3, **QUICK).fit(x, y, sites=sites)
    np.testing.assert_array_equal(model.coef_, plain.coef_)
    assert model.feature_names_in_.tolist() == list(x.columns)
    kept = model.transform(table)
    assert isinstance(kept, pl.DataFrame)
    assert kept.columns == [n for n, k in zip(x.columns, model.get_support(), strict=True) if k]
    assert model.inclusion_probability_.shape == (x.shape[1],)
    again = pickle.loads(pickle.dumps(model))  # noqa: S301  our own
    assert again.transform(table).equals(kept)


def test_sites_reach_it_through_a_selection():
    """`SelectFromModel` fits it itself, and keeps what has weight."""
    x, y = load_iris(return_X_y=True)
    with sklearn.config_context(enable_metadata_routing=True):
        model = FederatedSparseClassifier(2, **QUICK).set_fit_request(sites=True)
        chosen = SelectFromModel(model, threshold=1e-9).fit(x, y, sites=["a", "b"] * 75)
    assert (chosen.get_support() == chosen.estimator_.support_).all()
    assert set(chosen.estimator_.history_[0]["sites"]) == {"a", "b"}
    assert chosen.transform(x).shape == (150, 2)


def test_a_site_is_forgotten(cancer):
    """Retraining is the fit without the site; FU-MEGS keeps the features and meets its target."""
    x, y, sites = cancer
    gone = np.array(sites) == "clinic 2"
    model = FederatedSparseClassifier(3, **QUICK).fit(x, y, sites=sites)
    before = model.coef_.copy()
    anew = model.forget(x, y, gone, sites, method="retrain")
    rest = [site for site in sites if site != "clinic 2"]
    expected = FederatedSparseClassifier(3, **QUICK).fit(x[~gone], y[~gone], sites=rest)
    np.testing.assert_array_equal(anew.coef_, expected.coef_)
    assert anew.feature_names_in_.tolist() == list(x.columns)
    assert anew.forgotten_.guarantee == "exact given preprocessing"
    target = 0.9
    changed = model.forget(x, y, gone, sites, target=target)
    assert changed.forgotten_.guarantee == "empirical"
    assert (changed.support_ <= model.support_).all()
    np.testing.assert_array_equal(model.coef_, before)
    own = (np.array(list(y))[gone, None] == model.classes_).argmax(1)
    sure = changed.predict_proba(x[gone])[np.arange(gone.sum()), own].mean()
    assert changed.forgotten_.status != "verified" or sure <= target + 1e-6


def test_a_site_is_forgotten_until_it_looks_like_rows_never_seen():
    """The held-out rows are among those of the site that forgets, and say when to stop."""
    x, y = load_breast_cancer(return_X_y=True)
    sites = np.arange(len(x)) % 4
    unseen = (sites == 2) & (np.arange(len(x)) % 3 == 0)
    model = FederatedSparseClassifier(3, **QUICK).fit(x[~unseen], y[~unseen], sites[~unseen])
    gone = (sites == 2) & ~unseen
    after = model.forget(x, y, gone, sites, held_out=unseen)
    assert {"before", "after"} == set(after.forgotten_.measures)
    assert after.score(x, y) > 0.85
    assert after.forgotten_.params is None


@pytest.mark.parametrize(
    ("marked", "knobs", "said"),
    [
        (slice(0), {}, "no row is to be forgotten"),
        (slice(None), {}, "every row is to be forgotten"),
        (slice(9), {}, "nothing says when to stop"),
        (slice(9), {"method": "fumeg"}, "did you mean 'fumegs'"),
    ],
)
def test_what_cannot_be_forgotten_is_said_in_one_line(cancer, marked, knobs, said):
    x, y, _ = cancer
    model = FederatedSparseClassifier(3, **QUICK).fit(x, y)
    gone = np.zeros(len(x), bool)
    gone[marked] = True
    with pytest.raises(ValueError, match=said):
        model.forget(x, y, gone, **knobs)


def test_what_cannot_be_is_said_in_one_line():
    x, y = load_iris(return_X_y=True)
    wrong: dict[str, dict[str, Any]] = {
        "features=9 keeps 9 of 4 features": {"n_features": 9},
        "did you mean 'eflops'": {"method": "elfops"},
        "one model": {"method": "local"},
    }
    for text, knobs in wrong.items():
        with pytest.raises(ValueError, match=text):
            FederatedSparseClassifier(**knobs, **QUICK).fit(x, y)
    with pytest.raises(ValueError, match="1 class"):
        FederatedSparseClassifier(**QUICK).fit(x, np.zeros(len(x)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FederatedSparseClassifier(2, **QUICK).fit(x, y, sites=y)
