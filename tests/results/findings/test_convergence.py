"""A loss that falls: what is said of curves whose continuation is known."""

import dataclasses

import numpy as np
import pytest

import bilevel as bl
from bilevel.results.findings.convergence import forecast
from bilevel.results.findings.finding import Curve, curve
from bilevel.weightings import Average
from made_runs import alone, kinds, made

T = np.linspace(0, 1, 51)


@pytest.mark.parametrize("law", [lambda t: np.exp(-t / 0.4), lambda t: np.exp(-t), lambda t: (1 + 20 * t) ** -0.7])
def test_the_forecast_holds_where_the_law_goes_on(law):
    """Exponential decay and a power law, both to a limit: at twice the time the loss is within the range."""
    ahead = forecast(Curve("loss", 3 + law(T), T))
    truth = law(1.0) - law(2.0)
    assert ahead.low <= 1.05 * truth
    assert truth <= 1.05 * ahead.high


def test_a_straight_line_falls_as_much_again():
    ahead = forecast(Curve("loss", -T, T))
    np.testing.assert_allclose(ahead, [0.5, 0.5, 1, 1], atol=1e-9)


def test_a_fall_that_has_ended_is_no_pace():
    """A loss that rests, falls and rests again, as where a task loses its weight: nothing is left."""
    values = 1 - 0.2 * np.clip((T - 0.6) / 0.1, 0, 1)
    assert forecast(Curve("loss", values, T)).high == 0
    assert kinds(made(alone(values), solver=bl.MORBiT(weighting=Average()))) == []


def test_a_loss_that_is_never_negative_falls_by_shares():
    """Ever faster, and to nothing; but by no more than from the middle of the run to its end, or twice that."""
    own = Curve("loss", (1.02 - T) ** 0.5, T)
    share = own.level / np.median(own.values[23:28])
    np.testing.assert_allclose(forecast(own)[2:], [own.level * (1 - share), own.level * (1 - share**2)])


@pytest.mark.parametrize("common", [0.0, 0.6])
def test_noise_has_no_trend_also_where_evaluations_are_correlated(common):
    """A two-sided interval of 90 % is above 0 in one of twenty; that of white noise would be in one of six at 0.6."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(400, 51))
    for k in range(1, 51):
        noise[:, k] += common * noise[:, k - 1]
    assert np.mean([Curve("loss", own, T).trend(0.0).low > 0 for own in noise]) < 0.1


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize(("speed", "found"), [(1.0, ["still falling"]), (30.0, [])])
def test_it_is_said_where_something_is_left_whatever_the_scale(scale, speed, found):
    result = made(alone(scale * (1 + 2 * np.exp(-speed * T))), solver=bl.MORBiT(weighting=Average()))
    assert kinds(result) == found
    assert result.verdict == (found[0] if found else "settled")


def test_rates_that_end_do_not_hide_a_fall():
    """The loss is a function of time. Where rates end at half the run, it is flat over steps, and not settled."""
    rates = np.where(T < 0.5, 0.1, 0.0)
    time = np.concatenate([[0], np.cumsum(rates[1:])])
    result = made(alone(1 + 2 * np.exp(-time / time[-1])), rates=rates, solver=bl.MORBiT(weighting=Average()))
    assert np.ptp(result.history.worst[26:]) == 0
    assert kinds(result) == ["still falling"]
    assert result.findings[0].numbers["forecast low"] < 1.5 * (1 + 2 * np.exp(-2.0)) / 2


def test_a_loss_that_is_almost_nothing_is_not_to_be_halved():
    assert kinds(made(alone(np.exp(-12 * T)), solver=bl.MORBiT(weighting=Average()))) == []


def test_a_fall_within_the_noise_is_not_seen():
    noise = 0.2 * np.random.default_rng(1).normal(size=51)
    result = made(alone(1 + 0.1 * np.exp(-T) + noise), solver=bl.MORBiT(weighting=Average()))
    assert "still falling" not in kinds(result)
    assert result.verdict == "noisy"


def test_what_is_minimised_is_the_mean_where_weights_stay_and_the_worst_where_they_move():
    losses = np.stack([np.full(51, 3.0), np.full(51, 1.0)], axis=1)
    assert curve(made(losses)).values.tolist() == [2.0] * 51
    weights = np.stack([T, 1 - T], axis=1)
    assert curve(made(losses, weights)).values.tolist() == [3.0] * 51
    regret = bl.MORBiT(weighting=bl.weightings.Regret([2.5, 0.25]))
    own = curve(made(losses, weights, solver=regret))
    assert (own.name, own.values.tolist()) == ("worst regret", [0.75] * 51)


def test_a_slow_wave_has_not_settled():
    wave = 2 + np.exp(-9 * T) + 0.3 * np.sin(7 * T)
    assert made(alone(wave), solver=bl.MORBiT(weighting=Average())).verdict == "still moving"


def test_a_loss_that_rose():
    result = made(alone(np.where(T < 0.4, 2 - 2 * T, 3.0)), solver=bl.MORBiT(weighting=Average()))
    found = result.findings[0]
    assert (found.kind, found.numbers["late"], result.verdict) == ("rising loss", 2.25, "rising")
    assert found.numbers["step"] == 180  # the lowest middle of three: the last has a neighbour that has risen


def test_of_a_few_evaluations_nothing_is_known():
    result = made(alone(np.linspace(2, 1, 10)))
    assert (kinds(result), result.verdict) == ([], "not known")


def test_a_loss_at_y_of_last_visits_has_to_fall_at_the_very_end():
    """Where steps see some of very many tasks, it falls by itself when x slows down."""
    curve = np.concatenate([np.linspace(20, 16, 25), np.geomspace(16, 2.4, 15), np.full(20, 2.4)])
    noise = 0.01 * np.random.default_rng(0).normal(size=60)
    whole = made(alone(curve + noise), rates=np.geomspace(1, 0.01, 60))
    assert "still falling" in kinds(whole)
    some = dataclasses.replace(whole.history, tasks=np.tile([0, 1], (60, 1)))
    assert "still falling" not in kinds(dataclasses.replace(whole, history=some))
    falls = made(alone(np.linspace(20, 5, 60)))
    some = dataclasses.replace(falls.history, tasks=np.tile([0, 1], (60, 1)))
    assert "still falling" in kinds(dataclasses.replace(falls, history=some))
