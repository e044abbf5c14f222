from __future__ import annotations

from random import Random

import pytest

from dspine_cluster.core.online_fit import OnlineFit


def learn(fit: OnlineFit, true: tuple[float, float], *, num: int, seed: int = 0, noise: float = 0.0) -> None:
    random = Random(seed)
    for _ in range(num):
        x = random.uniform(0.0, 10.0)
        fit.note([1.0, x], (true[0] + true[1] * x) * random.lognormvariate(0.0, noise))


def test_it_finds_the_line() -> None:
    fit = OnlineFit([10.0, 10.0])
    learn(fit, (3.0, 0.5), num=50)
    assert fit.predict([1.0, 4.0]) == pytest.approx(5.0, rel=1e-2)


def test_noise_averages_out() -> None:
    fit = OnlineFit([10.0, 10.0])
    learn(fit, (3.0, 0.5), num=300, noise=0.2)
    assert fit.predict([1.0, 4.0]) == pytest.approx(5.0, rel=0.06)


def test_it_follows_when_everything_gets_slower() -> None:
    fit = OnlineFit([10.0, 10.0])
    learn(fit, (3.0, 0.5), num=300, noise=0.05)
    learn(fit, (6.0, 1.0), num=200, noise=0.05)
    assert fit.predict([1.0, 4.0]) == pytest.approx(10.0, rel=0.1)


def test_one_outlier_changes_little() -> None:
    fit = OnlineFit([10.0, 10.0])
    learn(fit, (3.0, 0.5), num=100, noise=0.05)
    before = fit.predict([1.0, 4.0])
    fit.note([1.0, 4.0], 50.0)
    assert fit.predict([1.0, 4.0]) == pytest.approx(before, rel=0.05)


def test_what_is_not_observed_any_more_keeps_its_value() -> None:
    fit = OnlineFit([10.0, 10.0, 10.0])
    for _ in range(20):
        fit.note([1.0, 0.0, 1.0], 5.0)
        fit.note([1.0, 0.0, 0.0], 2.0)
    for _ in range(2000):
        fit.note([0.0, 1.0, 0.0], 7.0)
    assert fit.predict([0.0, 0.0, 1.0]) == pytest.approx(3.0, rel=0.05)
