"""scikit-learn's own checks of its conventions, and those of this library for tasks."""

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

from bilevel import estimators

EVERY = [getattr(estimators, name)() for name in estimators.__all__ if name.startswith("Robust")]

# A few of them, on one estimator: fits on rows of many kinds, and what is asked of labels, weights and features.
USUAL = (
    "check_fit_idempotent",
    "check_sample_weight_equivalence_on_dense_data",
    "check_classifiers_train",
    "check_methods_subset_invariance",
    "check_dict_unchanged",
    "check_estimators_pickle",
    "check_transformer_general",
    "check_no_attributes_set_in_init",
)


def name_of(check):
    return getattr(check, "func", check).__name__


def usual(estimator):
    """The first of the checks of each of these names; the others are for rows of other types."""
    found = {}
    for own, check in estimator_checks_generator(estimator):
        if name_of(check) in USUAL:
            found.setdefault(name_of(check), (own, check))
    return list(found.values())


USUALLY = usual(EVERY[2])


def test_the_selection_is_made_of_known_checks():
    assert {name_of(check) for _, check in USUALLY} == set(USUAL)


@pytest.mark.parametrize(("estimator", "check"), USUALLY, ids=lambda value: name_of(value) if callable(value) else "")
def test_some_conventions(estimator, check):
    check(estimator)


# Both models and both kinds of target, each once: the other two pairs are made of the same parts.
PAIRS = [estimators.RobustKernelRegressor(), estimators.RobustRepresentationClassifier()]
OTHERS = [estimator for estimator in EVERY if type(estimator) not in map(type, PAIRS)]


@pytest.mark.slow
@parametrize_with_checks(PAIRS)
def test_all_conventions(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "check"),
    [found for other in OTHERS for found in usual(other)],
    ids=lambda value: name_of(value) if callable(value) else type(value).__name__,
)
def test_some_conventions_of_the_others(estimator, check):
    check(estimator)
