"""The prior's derivatives, checked against differences, and its covariance."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.features import Axis, Floats, encode
from perfmodel.predictors.affine import AffinePrior
from perfmodel.space import Parameter, Space

SPACE = Space(
    (
        Parameter("batch_size", (4, 8, 16, 32)),
        Parameter("accumulation", (1, 2, 4)),
        Parameter("precision", ("fp32", "bf16")),
        Parameter("backend", ("a", "b", "c")),
    )
)
PRIOR = AffinePrior(tuple(Axis.of(p) for p in SPACE.parameters), 0, frozenset({1}))


@pytest.fixture
def x() -> Floats:
    chosen = np.random.default_rng(0).choice(len(SPACE), 12, replace=False)
    return encode(SPACE, [SPACE.configurations[i] for i in chosen])


def test_log_size_is_batch_times_accumulation() -> None:
    sizes = [float(c["batch_size"]) * float(c["accumulation"]) for c in SPACE]  # type: ignore[arg-type]
    logs = PRIOR.log_size(encode(SPACE, SPACE.configurations))
    assert np.allclose(logs - logs[0], np.log(sizes) - np.log(sizes[0]))


def test_jacobian(x: Floats) -> None:
    theta = np.random.default_rng(1).normal(size=PRIOR.parameter_count)
    _, jacobian = PRIOR.mean(theta, x)
    for i, column in enumerate(jacobian.T):
        step = np.zeros_like(theta)
        step[i] = 1e-6
        difference = PRIOR.mean(theta + step, x)[0] - PRIOR.mean(theta - step, x)[0]
        assert np.allclose(difference / 2e-6, column, atol=1e-6)


def test_kernel_gradients(x: Floats) -> None:
    rng = np.random.default_rng(2)
    _, jacobian = PRIOR.mean(rng.normal(size=PRIOR.parameter_count), x)
    gram = PRIOR.gram(x, jacobian, x, jacobian)
    hyper = PRIOR.hyper_mean() + rng.normal(size=PRIOR.hyper_count) / 3
    gradients = PRIOR.kernel_gradients(hyper, gram)
    assert len(gradients) == PRIOR.hyper_count - 1
    for i, gradient in enumerate(gradients):
        step = np.zeros_like(hyper)
        step[i] = 1e-5
        difference = PRIOR.kernel(hyper + step, gram) - PRIOR.kernel(hyper - step, gram)
        assert np.allclose(difference / 2e-5, gradient, atol=1e-7)


def test_kernel_is_a_covariance(x: Floats) -> None:
    _, jacobian = PRIOR.mean(PRIOR.theta_mean(0.0), x)
    kernel = PRIOR.kernel(PRIOR.hyper_mean(), PRIOR.gram(x, jacobian, x, jacobian))
    assert np.linalg.eigvalsh(kernel).min() > -1e-12
    assert np.allclose(np.diag(kernel), PRIOR.variance(PRIOR.hyper_mean(), x, jacobian))
