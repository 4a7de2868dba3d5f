"""Tasks through scikit-learn's own machinery."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import sklearn
from flax import nnx
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures

from bilevel.estimators import RobustRepresentationClassifier, column_transformer


@pytest.fixture
def routed():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def model(**options):
    return RobustRepresentationClassifier((4,), max_iter=3, smallest=4, random_state=0, **options)


def asking():
    return model().set_fit_request(task=True).set_predict_request(task=True).set_score_request(task=True)


@pytest.mark.usefixtures("routed")
def test_cross_validation_and_search_hand_on_tasks(clinics):
    X, value, task = clinics
    y, folds = value > 0, StratifiedKFold(2, shuffle=True, random_state=0)
    found = cross_validate(asking(), X, y, cv=folds, params={"task": task}, return_estimator=True)
    for (fit, held), own, score in zip(folds.split(X, y), found["estimator"], found["test_score"], strict=True):
        assert own.tasks_.tolist() == ["north", "south", "west"]
        expected = clone(model()).fit(X[fit], y[fit], task=task[fit]).score(X[held], y[held], task=task[held])
        assert score == expected
    search = GridSearchCV(asking(), {"weighting": ["min-max", "min-avg"]}, cv=folds).fit(X, y, task=task)
    assert search.best_score_ == max(search.cv_results_["mean_test_score"])
    assert search.best_estimator_.predict(X, task=task).shape == y.shape  # search.predict takes X alone


@pytest.mark.usefixtures("routed")
def test_a_pipeline_from_a_table_to_predictions(clinics):
    X, value, task = clinics
    table = pd.DataFrame(X, columns=["a", "b", "c"]).assign(sex=np.where(X[:, 1] > 7, "f", None))
    table.loc[:3, "a"] = np.nan
    pipeline = make_pipeline(column_transformer(table), asking()).fit(table, value > 0, task=task)
    found = pipeline.predict(table, task=task)
    steps = pipeline[:-1].transform(table)
    assert np.array_equal(found, pipeline[-1].predict(steps, task=task))


def test_without_routing_a_pipeline_takes_parameters_by_step(clinics):
    X, value, task = clinics
    pipeline = make_pipeline(PolynomialFeatures(), model())
    pipeline.fit(X, value > 0, robustrepresentationclassifier__task=task)
    assert pipeline[-1].tasks_.tolist() == ["north", "south", "west"]


def test_features_have_names(clinics):
    X, value, task = clinics
    table = pd.DataFrame(X, columns=["a", "b", "c"])
    own = model().set_output(transform="pandas").fit(table, value > 0, task=task)
    found = own.transform(table)
    assert found.columns.tolist() == [f"robustrepresentationclassifier{i}" for i in range(7)]
    with pytest.raises(ValueError, match="feature names should match"):
        own.transform(table.rename(columns={"a": "z"}))


@pytest.mark.parametrize(
    "network",
    [
        eqx.nn.MLP(3, 4, 5, 1, key=jax.random.key(0), dtype=jnp.float32),
        nnx.Linear(3, 4, rngs=nnx.Rngs(0), param_dtype=jnp.float32),
    ],
    ids=["Equinox", "Flax"],
)
def test_a_model_in_place_of_dense_layers_is_learnt_and_stays_as_it_was(clinics, network):
    X, value, task = clinics
    before = [np.array(leaf) for leaf in jax.tree.leaves(eqx.filter(network, eqx.is_array))]
    own = clone(model(network=network)).fit(X, value > 0, task=task)
    after = jax.tree.leaves(eqx.filter(network, eqx.is_array))
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    learnt = jax.tree.leaves(own.result_.last.x["network"])
    assert all(not np.array_equal(a, b) for a, b in zip(before, learnt, strict=True))
    assert own.transform(X).shape == (120, 7)  # three columns beside
