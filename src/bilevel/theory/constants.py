"""The constants of the paper's Assumptions 1 to 3, and those its lemma derives from them."""

from __future__ import annotations

import dataclasses

from bilevel._core import values


@dataclasses.dataclass(frozen=True, kw_only=True)
class Constants:
    """Bounds that hold for every task, all x in X and all y.

    Convexity is meant as usual, with mu/2 |.|^2: the curvature of g in y is at least `strong_convexity`, that of l_i at
    least minus `weak_convexity`. The paper writes both definitions with mu |.|^2 but its proofs use the usual ones.

    Attributes:
        bias: how far the mean direction of x may be off; None = as far as the theorem's rate allows, b_0^2 = alpha.
            A number is for the bounds alone: `morbit` and `sample_complexity` take a series for b_0^2 = alpha.

    >>> plain = Constants(upper_lipschitz=3.0, upper_slope=3.0, upper_y_smoothness=1.0, loss_bound=4.0, loss_slope=6.0,
    ...                   lower_smoothness=1.0, strong_convexity=1.0, cross_bound=2.0)
    >>> plain.response, plain.direction_lipschitz, plain.gradient_lipschitz, plain.lower_limit
    (2.0, 2.0, 4.0, 1.0)
    """

    # Assumption 1: f_i, and l_i(x) = f_i(x, y_i*(x))
    upper_lipschitz: float  # G_f: of f in y
    upper_slope: float  # C_fy: |grad_y f|; the smallest is G_f
    upper_x_smoothness: float = 0.0  # L_fx: of grad_x f in y
    upper_y_smoothness: float  # L_fy: of grad_y f in y
    upper_cross_smoothness: float = 0.0  # bar L_fy: of grad_y f in x
    weak_convexity: float = 0.0  # mu_l
    loss_bound: float  # B_l: |l_i|
    loss_slope: float  # C_l: |grad l_i|
    # Assumption 2: g_i
    lower_smoothness: float  # L_g: of grad_y g in y
    strong_convexity: float  # mu_g
    cross_bound: float  # C_gxy: |J|, J = d2g/dxdy
    cross_lipschitz: float = 0.0  # L_gxy: of J in y
    hessian_lipschitz: float = 0.0  # L_gyy: of A = d2g/dy2 in y
    cross_lipschitz_in_x: float = 0.0  # bar L_gxy: of J in x
    hessian_lipschitz_in_x: float = 0.0  # bar L_gyy: of A in x
    # Assumption 3: what is estimated from samples
    lower_noise: float = 0.0  # sigma_g: E |h - grad_y g|^2 <= sigma_g^2 (1 + |grad_y g|^2)
    upper_noise: float = 0.0  # sigma_f: E |h_x - E h_x|^2 <= sigma_f^2
    bias: float | None = None  # b_0

    @property
    def condition(self) -> float:
        """Of the lower problems (kappa)."""
        return self.lower_smoothness / self.strong_convexity

    @property
    def response(self) -> float:
        """How fast y_i*(x) moves with x (G_y). The paper writes C_g / mu_g, where C_g can only be C_gxy."""
        return self.cross_bound / self.strong_convexity

    @property
    def direction_lipschitz(self) -> float:
        """How much an error in y changes the direction of x (L)."""
        mu = self.strong_convexity
        bent = self.cross_lipschitz / mu + self.hessian_lipschitz * self.cross_bound / mu**2
        return self.upper_x_smoothness + self.upper_y_smoothness * self.response + self.upper_slope * bent

    @property
    def gradient_lipschitz(self) -> float:
        """Of grad l_i in x (L_f), as the paper has it.

        The paper's first term is L_fx, of grad_x f in y. What the chain rule needs there is that of grad_x f in x, for
        which no constant is assumed: where f bends in x by itself, L_f is too small.
        """
        mu = self.strong_convexity
        bent = self.cross_lipschitz_in_x / mu + self.hessian_lipschitz_in_x * self.cross_bound / mu**2
        through_y = (self.upper_cross_smoothness + self.direction_lipschitz) * self.response
        return self.upper_x_smoothness + through_y + self.upper_slope * bent

    @property
    def lower_limit(self) -> float:
        """The largest rate of y that the proof allows (nu)."""
        mu = self.strong_convexity
        return min(mu / (self.lower_smoothness**2 * (1 + self.lower_noise**2)), 1 / mu)

    @property
    def upper_second_moment(self) -> float:
        """Of an estimated direction of x at y* (sigma_f tilde, squared)."""
        return self.upper_noise**2 + 3 * self.loss_slope**2

    def check(self) -> None:
        """Raises where the theorem would divide by zero, or a bound is no bound."""
        for field in dataclasses.fields(self):
            none = "as far as the theorem's rate allows" if field.name == "bias" else None
            values.number(field.name, getattr(self, field.name), least=0, of="Constants", none=none)
        for name in ("lower_smoothness", "strong_convexity", "loss_bound"):
            values.positive(name, getattr(self, name), of="Constants")
        if self.strong_convexity > self.lower_smoothness * (1 + 1e-6):
            raise ValueError(
                f"Constants(strong_convexity={self.strong_convexity!r}): it needs at most lower_smoothness, "
                f"{self.lower_smoothness!r}."
            )
        if not self.response * self.direction_lipschitz > 0:
            raise ValueError(
                "Constants: cross_bound, and what makes the direction of x depend on y, need to be positive: Theorem 1 "
                f"divides by G_y L, here {self.response:.3g} * {self.direction_lipschitz:.3g}."
            )
