"""One entry for every argument that can be wrong: how to make it wrong, how to use it, the words that must be said."""

import dataclasses
import functools
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

import bilevel as bl
from bilevel import hypergradients, rates, theory, weightings
from bilevel.hypergradients import trackers
from bilevel.lower import rules
from bilevel.problem import constraints
from malformed import junk

X, Y = np.zeros(2), np.zeros(2)


class Case(NamedTuple):
    """An argument of something."""

    wrong: st.SearchStrategy
    use: Callable[[Any], Any]
    words: tuple[str, ...]  # one of them is in the message


def fit(y, batch):
    return jnp.mean((batch["input"] @ y - batch["target"]) ** 2)


def upper(x, y, batch):
    return fit(y, batch)


def lower(x, y, batch):
    return fit(y, batch) + jnp.dot(jnp.exp(x), y**2)


def loss(x, batch):
    return fit(x, batch)


def dual_upper(x, dual, y, batch):
    return dual * fit(y, batch) - dual**2


def rows(count=4):
    return {"input": np.ones((count, 2)), "target": np.ones(count)}


def task(name="north", **more):
    return bl.Task(**{"train": rows(), "validation": rows(3), "name": name, **more})


def problem(**more):
    return bl.Problem(**{"upper": upper, "lower": lower, "tasks": [task(), task("south")], **more})


def single(**more):
    return bl.MinMaxProblem(**{"loss": loss, "tasks": [task(), task("south")], **more})


def blocks(**more):
    return bl.MultiBlockProblem(
        **{"upper": dual_upper, "lower": lower, "tasks": [task(), task("south")], "dual": 0.5, **more}
    )


@functools.cache
def of_kind(kind):
    return {bl.Problem: problem, bl.MinMaxProblem: single, bl.MultiBlockProblem: blocks}[kind]()


def solve(given=None, solver=None, **more):
    given = of_kind(bl.Problem) if given is None else given
    y = None if isinstance(given, bl.MinMaxProblem) else Y
    return bl.solve(
        given,
        **{"solver": bl.MORBiT() if solver is None else solver, "x": X, "y": y, "steps": 2, "progress": False, **more},
    )


def solved(make, **more):
    """Uses an argument in a problem that is then solved."""
    return lambda value: solve(make(value), **more)


BATCHES = st.integers(5, 10**9) | junk.not_whole_or_none
NOT_TASKS = st.sampled_from(
    [
        [],
        (),
        None,
        3,
        "ab",
        {"north": task()},
        [None],
        [task(), 3],
        [task(), task()],
        {},
        object(),
        [rows()],
        task,
        bl.Task,
    ]
)
NOT_NAMES = st.sampled_from([["list"], {}, {"a": 1}, np.ones(2), {1}, [task()]])
NOT_CONSTRAINTS = junk.not_object.filter(lambda v: v is not None)


def problems():
    """What a problem is made of."""
    yield "Problem(upper)", Case(junk.not_callable | st.none(), lambda v: problem(upper=v), ("upper",))
    yield "Problem(lower)", Case(junk.not_callable | st.none(), lambda v: problem(lower=v), ("lower",))
    yield "upper(x, y, batch)", Case(junk.functions(3), solved(lambda v: problem(upper=v)), ("upper(",))
    yield "lower(x, y, batch)", Case(junk.functions(3), solved(lambda v: problem(lower=v)), ("lower(",))
    yield "Problem(tasks)", Case(NOT_TASKS, lambda v: problem(tasks=v), ("tasks",))
    yield "Problem(constraint)", Case(NOT_CONSTRAINTS, lambda v: problem(constraint=v), ("constraint",))
    yield "Problem(lower_batch)", Case(BATCHES, lambda v: problem(lower_batch=v), ("lower_batch",))
    yield "Problem(upper_batch)", Case(BATCHES, lambda v: problem(upper_batch=v), ("upper_batch",))
    for role in ("train", "validation", "test"):
        use = solved(lambda v, role=role: problem(tasks=[task(**{role: v})]))
        yield f"Task({role})", Case(junk.not_rows, use, (role, "upper(", "lower("))
    yield "Task(train=None)", Case(st.none(), lambda v: problem(tasks=[task(train=v)]), ("train",))
    yield "Task(name)", Case(NOT_NAMES, lambda v: problem(tasks=[task(name=v)]), ("name",))
    yield "Task(y)", Case(junk.not_point, solved(lambda v: problem(tasks=[task(y=v)]), y=None), ("y", "upper("))
    for level in ("upper", "lower"):
        use = lambda v, level=level: problem(tasks=[task(**{level: v})])  # noqa: E731
        yield f"Task({level})", Case(junk.not_callable.filter(bool_of), use, (level,))
    yield (
        "Task.stack(train)",
        Case(junk.not_rows, lambda v: problem(tasks=stack(train=v)), ("stack", "train", "leading")),
    )
    yield (
        "Task.stack(names)",
        Case(junk.not_object | st.lists(st.just("a"), max_size=3), lambda v: problem(tasks=stack(names=v)), ("names",)),
    )
    yield "Generator(sample)", Case(junk.not_callable, generated("sample"), ("sample", "Generator"))
    yield "Generator(evaluation)", Case(junk.not_whole, generated("evaluation"), ("evaluation",))
    yield (
        "Generator(parameters)",
        Case(
            st.sampled_from(["a", junk.Thing(), np.array(["a"]), [junk.Thing()], {"a": "b"}]),
            generated("parameters"),
            ("train", "parameters"),
        ),
    )
    yield "MinMaxProblem(loss)", Case(junk.not_callable, lambda v: single(loss=v), ("loss",))
    yield "loss(x, batch)", Case(junk.functions(2), solved(lambda v: single(loss=v), solver=gda()), ("loss(",))
    yield "MinMaxProblem(tasks)", Case(NOT_TASKS, lambda v: single(tasks=v), ("tasks",))
    yield "MinMaxProblem(batch)", Case(BATCHES, lambda v: single(batch=v), ("batch",))
    yield "MinMaxProblem(objective)", Case(junk.not_object | st.none(), lambda v: single(objective=v), ("objective",))
    yield "Adapted(lr)", Case(junk.not_positive, lambda v: single(objective=bl.minmax.Adapted(v)), ("lr",))
    yield "Adapted(steps)", Case(junk.not_whole, lambda v: single(objective=bl.minmax.Adapted(0.1, v)), ("steps",))
    yield "MultiBlockProblem(upper)", Case(junk.not_callable, lambda v: blocks(upper=v), ("upper",))
    yield (
        "upper(x, dual, y, batch)",
        Case(junk.functions(4), solved(lambda v: blocks(upper=v), solver=mmb()), ("upper(",)),
    )
    yield (
        "MultiBlockProblem(dual)",
        Case(junk.not_point, solved(lambda v: blocks(dual=v), solver=mmb()), ("dual", "upper(", "y")),
    )
    yield (
        "MultiBlockProblem(dual_constraint)",
        Case(NOT_CONSTRAINTS, lambda v: blocks(dual_constraint=v), ("dual_constraint",)),
    )


def bool_of(value):
    """Whether a value is neither None nor false in a way that nobody would give."""
    return value is not None


def gda():
    return bl.GDA(0.1, weightings.SimplexAscent(0.1))


def mmb():
    return bl.MMB(0.1, 0.1, 0.1, 0.1)


def stack(**more):
    many = {"input": np.ones((2, 4, 2)), "target": np.ones((2, 4))}
    return bl.Task.stack(**{"train": many, "validation": many, **more})


def generated(argument):
    def sample(parameters, key, size):
        return rows(size)

    def use(value):
        source = bl.Generator(**{"sample": sample, "parameters": 1.0, argument: value})
        return solve(problem(tasks=[task(train=source)], lower_batch=2, upper_batch=2))

    return use


NOT_SEEDS = junk.not_whole_or_none.filter(lambda v: not (isinstance(v, (list, tuple, range)) and is_seeds(v)))


NOT_TRUE = junk.with_none.filter(lambda v: v is not True)
NOT_SECONDS = junk.never_number | st.floats(max_value=0, exclude_max=True) | st.integers(max_value=-1)
NOT_LOGGERS = junk.with_none.filter(lambda v: not (isinstance(v, (list, tuple, range, str, bytes)) and len(v) == 0))


def is_seeds(given):
    return len(given) > 0 and all(type(v) is int and v >= 0 for v in given)


def runs():
    """What `solve` is given besides a problem."""
    yield "solve(problem)", Case(junk.with_none, lambda v: bl.solve(v, bl.MORBiT(), X, Y, steps=2), ("problem",))
    yield "solve(solver)", Case(junk.not_object, lambda v: solve_with(solver=v), ("solver",))
    yield "solve(x)", Case(junk.not_point, lambda v: solve_with(x=v), ("x", "upper(", "lower("))
    yield "solve(y)", Case(junk.not_point, lambda v: solve_with(y=v), ("y", "upper(", "lower("))
    yield (
        "solve(y by name)",
        Case(junk.not_point, lambda v: solve_with(y={"north": v, "south": Y}), ("y", "upper(", "lower(")),
    )
    yield (
        "solve(y by function)",
        Case(
            st.sampled_from([lambda: Y, lambda key: Y, lambda key, task: None, lambda key, task: "y", junk.raises]),
            lambda v: solve_with(y=v),
            ("y",),
        ),
    )
    yield (
        "solve(y of a MinMaxProblem)",
        Case(junk.not_point, lambda v: bl.solve(of_kind(bl.MinMaxProblem), bl.GDA(0.1), X, v, steps=2), ("y",)),
    )
    yield "solve(steps)", Case(junk.not_whole, lambda v: solve_with(steps=v), ("steps",))
    yield "solve(seed)", Case(junk.not_count, lambda v: solve_with(seed=v), ("seed",))
    yield "solve(seeds)", Case(NOT_SEEDS, lambda v: solve_with(seeds=v), ("seeds", "seed"))
    yield "solve(every)", Case(junk.not_whole_or_none, lambda v: solve_with(every=v), ("every",))
    yield "solve(patience)", Case(junk.not_whole_or_none, lambda v: solve_with(patience=v), ("patience",))
    yield "solve(callback)", Case(junk.not_callable, lambda v: solve_with(callback=v), ("callback",))
    yield "solve(on_divergence)", Case(junk.not_object, lambda v: solve_with(on_divergence=v), ("on_divergence",))
    yield "solve(checkpoint)", Case(junk.not_path, lambda v: solve_with(checkpoint=v), ("checkpoint", "folder"))
    yield "solve(resume)", Case(NOT_TRUE, lambda v: solve_with(resume=v), ("resume",))
    yield "solve(seconds)", Case(junk.not_positive_or_none, lambda v: solve_with(seconds=v), ("seconds",))
    yield "solve(loggers)", Case(NOT_LOGGERS, lambda v: solve_with(loggers=v), ("loggers",))
    for option, wrong in (("seconds", NOT_SECONDS), ("steps", junk.not_whole_or_none), ("keep", junk.not_whole)):
        kept = lambda v, option=option: solve_with(checkpoint=bl.Checkpoint("nowhere", **{option: v}))  # noqa: E731
        yield f"Checkpoint({option})", Case(wrong, kept, (option,))
    rates = bl.divergence.SmallerRates
    yield "SmallerRates(factor)", Case(junk.not_fraction, lambda v: solve_with(on_divergence=rates(v)), ("factor",))
    yield "SmallerRates(tries)", Case(junk.not_whole, lambda v: solve_with(on_divergence=rates(0.5, v)), ("tries",))
    yield (
        "another kind of problem",
        Case(
            st.sampled_from([bl.GDA(0.1), bl.HiBSA(0.1), bl.TRMAML(0.1), mmb()]),
            lambda v: solve_with(solver=v),
            ("solves",),
        ),
    )


def solve_with(**more):
    given = {"solver": bl.MORBiT(), "x": X, "y": Y, "steps": 2, "progress": False, **more}
    return bl.solve(of_kind(bl.Problem), **given)


def is_one_per_task(given):
    try:
        return np.shape(given) == (2,) and np.asarray(given).dtype.kind in "iuf" and np.all(np.isfinite(given))
    except Exception:  # whatever an object raises
        return False


NOT_ONE_PER_TASK = (junk.not_number | st.lists(st.floats(), max_size=3)).filter(lambda v: not is_one_per_task(v))
WRONG_FIELDS = {  # by the name of a field of a part
    **dict.fromkeys(["weighting", "hypergradient", "rates", "tracker", "sampling"], junk.not_object | st.none()),
    "lower": junk.not_object,
    "upper_rule": junk.not_callable,
    "lower_rule": junk.not_callable | st.none(),
    "rule": junk.not_callable | st.none(),
    **dict.fromkeys(
        [
            "lower_steps",
            "period",
            "terms",
            "iterations",
            "every",
            "patience",
            "steps",
            "seen",
            "folds",
            "tasks",
            "catch_up",
            "attempts",
        ],
        junk.not_whole,
    ),
    **dict.fromkeys(["blocks_per_step", "tasks_per_step", "refresh_batch"], junk.not_whole_or_none),
    **dict.fromkeys(["upper_lr", "lower_lr", "dual_lr", "v_lr", "penalty_lr", "lr"], junk.not_rate),
    **dict.fromkeys(["momentum", "uniform"], junk.not_share),
    **dict.fromkeys(["radius", "ratio"], junk.not_positive_or_none),
    **dict.fromkeys(["total"], junk.not_positive),
    **dict.fromkeys(
        ["damping", "tolerance", "rtol", "pull"], junk.not_number | st.floats(max_value=0, exclude_max=True)
    ),
    "perturbation": (junk.not_number | st.floats(max_value=0, exclude_max=True)).filter(lambda v: not callable(v)),
    "strength": (junk.not_number | st.floats(max_value=0)).filter(lambda v: not callable(v)),
    "probability": junk.not_share,
    "fraction": junk.not_share,
    "factor": junk.not_number | st.floats(max_value=0) | st.floats(min_value=1),
    **dict.fromkeys(["upper_rate", "lower_rate", "weights_rate"], junk.never_number.filter(lambda v: not callable(v))),
    "shape": junk.not_object,
    **dict.fromkeys(["baseline", "errors"], NOT_ONE_PER_TASK),
    "per_task": junk.not_object.filter(lambda v: not isinstance(v, bool)),
}
WRONG_FIELDS["floor"] = junk.not_fraction
ONES = np.ones(2)
NEEDED = {  # by weightings
    "CVaR": {"fraction": 0.5},
    "Folds": {"folds": 2},
    "Watched": {"seen": 1},
    "Ratio": {"baseline": ONES},
    "Regret": {"baseline": ONES},
    "Shrunk": {"errors": ONES},
    "UpperBound": {"errors": ONES},
}


def options():
    """Every option of every solver, weighting, estimator and rule."""
    for name in bl.solvers.__all__:
        kind = getattr(bl, name)
        given = (
            {"upper_lr": 0.1, "weighting": weightings.SimplexAscent(0.1)} if kind.problem_type is not bl.Problem else {}
        )
        if kind is bl.MMB:
            given = {"upper_lr": 0.1, "lower_lr": 0.1, "dual_lr": 0.1}
        for field in dataclasses.fields(kind):
            wrong = WRONG_FIELDS[field.name]
            if name == "BSA" and field.name == "lower_steps":
                wrong = wrong.filter(lambda v: not callable(v))
            if name == "Descent" and field.name == "hypergradient":  # None = chosen
                wrong = junk.not_object
            if name == "STABLE" and field.name == "floor":
                wrong = junk.not_positive

            def use(value, kind=kind, field=field.name, given=given):
                return solve(of_kind(kind.problem_type), kind(**{**given, field: value}))

            yield f"{name}({field.name})", Case(wrong, use, (field.name,))
    yield from parts(weightings, "weighting", NEEDED)
    yield (
        "Fixed(weights)",
        Case(
            junk.not_number | st.lists(st.floats(), max_size=3).filter(lambda w: not is_simplex(w)),
            lambda v: solve_with(solver=bl.MORBiT(weighting=weightings.Fixed(v))),
            ("weights",),
        ),
    )
    yield from parts(hypergradients, "hypergradient", {})
    yield from parts(bl.sampling, "sampling", {"Mixture": {"tasks": 1}, "Fresh": {"tasks": 1}})
    yield from parts(rates, "rates", {"Given": {"upper_rate": 0.1, "lower_rate": 0.1, "weights_rate": 0.1}})
    scaled = lambda **fields: solve_with(solver=bl.MORBiT(rates=rates.Scaled(**fields)))  # noqa: E731
    yield "Scaled(rates)", Case(junk.with_none, lambda v: scaled(rates=v, factor=0.5), ("rates",))
    yield "Scaled(factor)", Case(junk.not_positive, lambda v: scaled(rates=rates.Measured(), factor=v), ("factor",))
    for field in dataclasses.fields(rules.Plateau):
        use = lambda v, f=field.name: rules.Plateau(**{f: v})  # noqa: E731
        yield f"Plateau({field.name})", Case(WRONG_FIELDS[field.name], use, (field.name,))
    yield from tracker_options()


def tracker_options():
    for name in ("Momentum", "Storm"):
        solver = bl.MASOBA if name == "Momentum" else bl.MRBO
        tracker = getattr(trackers, name)
        use = lambda v, s=solver, t=tracker: solve_with(solver=s(tracker=t(per_task=v)))  # noqa: E731
        yield f"{name}(per_task)", Case(WRONG_FIELDS["per_task"], use, ("per_task",))


def is_simplex(given):
    return len(given) == 2 and all(v >= 0 for v in given) and abs(sum(given) - 1) < 1e-4


def parts(room, option, needed):
    """Every option of every part of a room, in a solver."""
    for name in room.__all__:
        kind = getattr(room, name)
        if not dataclasses.is_dataclass(kind) or name in ("Fixed", "Scaled"):
            continue
        given = needed.get(name, {})
        for field in dataclasses.fields(kind):

            def use(value, kind=kind, field=field.name, given=given):
                return solve_with(solver=bl.MORBiT(**{option: kind(**{**given, field: value})}))

            wrong = junk.not_number if (name, field.name) == ("UpperBound", "factor") else WRONG_FIELDS[field.name]
            yield f"{name}({field.name})", Case(wrong, use, (field.name,))


def sets():
    """Constraints."""

    def within(make):
        return lambda v: solve(problem(constraint=make(v)), x=X)

    bound = st.sampled_from(["a", junk.Thing(), np.ones(3), {"a": 1.0}, float("nan"), np.array(["a"]), None])
    yield (
        "Box(lower)",
        Case(bound | st.floats(min_value=0.5), within(lambda v: constraints.Box(v, 0.25)), ("Box", "constraint")),
    )
    yield (
        "Box(upper)",
        Case(bound | st.floats(max_value=-0.5), within(lambda v: constraints.Box(0.0, v)), ("Box", "constraint")),
    )
    yield "Ball(radius)", Case(junk.not_positive, within(constraints.Ball), ("radius",))
    yield (
        "Ball(center)",
        Case(
            bound.filter(lambda v: v is not None),
            within(lambda v: constraints.Ball(1.0, v)),
            ("Ball", "constraint", "outside"),
        ),
    )
    yield "Simplex(total)", Case(junk.not_positive, within(constraints.Simplex), ("total",))
    yield (
        "Product(parts)",
        Case(
            st.sampled_from(
                [None, 3, "a", {}, [], [constraints.NonNegative()], {"a": constraints.Ball(1.0)}, junk.Thing()]
            ),
            within(constraints.Product),
            ("Product", "constraint"),
        ),
    )
    yield (
        "x outside",
        Case(st.floats(-1e6, -0.1), lambda v: solve(problem(constraint=constraints.NonNegative()), x=X + v), ("x",)),
    )


@functools.cache
def result():
    return solve(solver=bl.MORBiT(0.01, 0.1, hypergradient=hypergradients.Direct()))


@functools.cache
def saved():
    path = pathlib.Path(tempfile.mkdtemp(), "r")
    result().save(path)
    return path


EXAMPLES = junk.not_point.filter(lambda v: getattr(v, "shape", None) != (2,))  # their shapes are all that is asked


def files():
    yield (
        "load(path)",
        Case(
            junk.with_none | st.sampled_from(["nowhere", "/", "/dev/null", "a\0b", "a" * 500, __file__]),
            bl.load,
            ("load",),
        ),
    )
    yield "load(x)", Case(EXAMPLES, lambda v: bl.load(saved(), x=v), ("x",))
    yield "load(y)", Case(EXAMPLES, lambda v: bl.load(saved(), y=v), ("y",))
    yield (
        "save(path)",
        Case(
            junk.with_none.filter(lambda v: not isinstance(v, str))
            | st.sampled_from(["", "/", "/nowhere/at/all", "a\0b"]),
            lambda v: result().save(v),
            ("save",),
        ),
    )


def after():
    """What is asked of problems and results."""
    p = of_kind(bl.Problem)
    yield "adapt(problem)", Case(junk.with_none, lambda v: bl.adapt(v, X, [task()], 2, Y), ("problem",))
    yield "adapt(x)", Case(junk.not_point, lambda v: bl.adapt(p, v, [task()], 2, Y), ("x", "upper(", "lower("))
    yield "adapt(tasks)", Case(NOT_TASKS, lambda v: bl.adapt(p, X, v, 2, Y), ("tasks",))
    yield "adapt(steps)", Case(junk.not_whole, lambda v: bl.adapt(p, X, [task()], v, Y), ("steps",))
    yield "adapt(y)", Case(junk.not_point, lambda v: bl.adapt(p, X, [task()], 2, v), ("y", "upper(", "lower("))
    yield (
        "adapt(lower_rule)",
        Case(junk.not_callable, lambda v: bl.adapt(p, X, [task()], 2, Y, lower_rule=v), ("lower_rule",)),
    )
    yield "adapt(lower_lr)", Case(junk.not_rate, lambda v: bl.adapt(p, X, [task()], 2, Y, lower_lr=v), ("lower_lr",))
    yield "refit(problem)", Case(junk.with_none, lambda v: bl.refit(v, X, steps=2, y=Y), ("problem",))
    yield "refit(steps)", Case(junk.not_whole, lambda v: bl.refit(p, X, steps=v, y=Y), ("steps",))
    yield "baselines(problem)", Case(junk.with_none, lambda v: bl.baselines(v, X, Y), ("problem",))
    yield "baselines(steps)", Case(junk.not_whole, lambda v: bl.baselines(p, X, Y, steps=v), ("steps",))
    yield "baselines(folds)", Case(junk.not_whole, lambda v: bl.baselines(p, X, Y, folds=v), ("folds",))
    yield "baselines(seed)", Case(junk.not_count, lambda v: bl.baselines(p, X, Y, seed=v), ("seed",))
    yield "baselines(solver)", Case(junk.not_object, lambda v: bl.baselines(p, X, Y, solver=v), ("solver",))
    yield "cross_fit(tasks)", Case(st.sampled_from([None, 3, [], [1], "a", junk.Thing()]), bl.cross_fit, ("tasks",))
    yield "cross_fit(folds)", Case(junk.not_whole, lambda v: bl.cross_fit([task()], v), ("folds",))
    yield "cross_fit(seed)", Case(junk.not_count, lambda v: bl.cross_fit([task()], 2, v), ("seed",))
    yield "loss_errors(result)", Case(junk.with_none, lambda v: bl.loss_errors(p, v), ("result",))
    yield "adapt(seed)", Case(junk.not_count, lambda v: bl.adapt(p, X, [task()], 2, Y, seed=v), ("seed",))
    yield "certify(problem)", Case(junk.with_none, lambda v: bl.certify(v, result()), ("problem",))
    yield "certify(result)", Case(junk.with_none, lambda v: bl.certify(p, v), ("result",))
    yield "certify(rho)", Case(junk.not_positive_or_none, lambda v: bl.certify(p, result(), v), ("rho",))
    yield "certify(iterations)", Case(junk.not_whole, lambda v: bl.certify(p, result(), iterations=v), ("iterations",))
    yield "cost(problem)", Case(junk.with_none, lambda v: bl.cost(v, bl.MORBiT(), X, Y), ("problem",))
    yield "cost(solver)", Case(junk.not_object, lambda v: bl.cost(p, v, X, Y), ("solver",))
    yield "cost(x)", Case(junk.not_point, lambda v: bl.cost(p, bl.MORBiT(0.1, 0.1), v, Y), ("x", "upper(", "lower("))
    yield "cost(steps)", Case(junk.not_whole, lambda v: bl.cost(p, bl.MORBiT(), X, Y, v), ("steps",))
    yield "check_problem(problem)", Case(junk.with_none, lambda v: bl.check_problem(v, X, Y), ("problem",))
    yield "recommended(problem)", Case(junk.with_none, lambda v: bl.recommended(v, 10), ("problem",))
    yield "recommended(steps)", Case(junk.not_whole_or_none, lambda v: bl.recommended(p, v), ("steps",))
    yield "check_result(result)", Case(junk.with_none, bl.check_result, ("result",))


def comparisons():
    p = of_kind(bl.Problem)
    names = lambda v: isinstance(v, (list, tuple, dict, set, range, str)) or hasattr(v, "__next__")  # noqa: E731
    yield (
        "compare(problem)",
        Case(junk.with_none, lambda v: bl.compare(v, X, Y, progress=False), ("problem", "benchmark", "compare")),
    )
    yield "compare(x)", Case(junk.not_point, lambda v: one_compared(p, x=v), ("x", "upper(", "lower("))
    yield (
        "compare(solvers)",
        Case(
            junk.not_object.filter(lambda v: not names(v))
            | st.sampled_from([["nobody"], [3], {"a": 3}, {"a": bl.MORBiT}]),
            lambda v: one_compared(p, solvers=v),
            ("solver", "nobody"),
        ),
    )
    yield "compare(calls)", Case(junk.not_positive_or_none, lambda v: one_compared(p, calls=v), ("calls",))
    yield (
        "compare(seconds)",
        Case(junk.not_positive_or_none, lambda v: one_compared(p, calls=None, seconds=v), ("seconds",)),
    )
    yield "compare(seeds)", Case(junk.not_whole, lambda v: one_compared(p, seeds=v), ("seeds",))
    yield "compare(grid)", Case(junk.not_object, lambda v: one_compared(p, grid=v), ("grid",))
    yield "compare(target)", Case(junk.never_number, lambda v: one_compared(p, target=v), ("target",))
    yield (
        "compare(automatic)",
        Case(
            st.sampled_from(["MORBiT", ["nobody"], 3, [3], junk.Thing(), ["GDA"], True, 1.5]),
            lambda v: one_compared(p, automatic=v),
            ("automatic",),
        ),
    )


def one_compared(p, **more):
    given = {"x": X, "y": Y, "solvers": ["MORBiT"], "calls": 10.0, "seeds": 1, "progress": False, "grid": None, **more}
    return bl.compare(p, **given)


CONSTANTS = theory.Constants(
    upper_lipschitz=3.0,
    upper_slope=3.0,
    upper_y_smoothness=1.0,
    loss_bound=4.0,
    loss_slope=6.0,
    lower_smoothness=2.0,
    strong_convexity=1.0,
    cross_bound=2.0,
)


def theorems():
    for field in dataclasses.fields(theory.Constants):
        use = lambda v, f=field.name: theory.step_sizes(dataclasses.replace(CONSTANTS, **{f: v}), 3, 10)  # noqa: E731
        numbers = junk.never_number if field.name == "bias" else junk.not_number
        numbers |= st.floats(max_value=0, exclude_max=True)
        yield f"Constants({field.name})", Case(numbers, use, (field.name,))
    yield "step_sizes(constants)", Case(junk.with_none, lambda v: theory.step_sizes(v, 3, 10), ("constants",))
    yield "step_sizes(n)", Case(junk.not_whole, lambda v: theory.step_sizes(CONSTANTS, v, 10), ("n=",))
    yield "step_sizes(steps)", Case(junk.not_positive, lambda v: theory.step_sizes(CONSTANTS, 3, v), ("steps",))
    yield "morbit(steps)", Case(junk.not_whole, lambda v: theory.morbit(CONSTANTS, 3, v), ("steps",))
    yield "series_terms(bias)", Case(junk.not_positive, lambda v: theory.series_terms(CONSTANTS, v), ("bias",))
    start = theory.Start(1.0)
    yield "bounds(start)", Case(junk.with_none, lambda v: theory.bounds(CONSTANTS, 3, 10, v), ("start",))
    yield "steps_for(eps)", Case(junk.not_positive, lambda v: theory.steps_for(CONSTANTS, 3, v, start), ("eps",))
    not_losses = junk.with_none.filter(lambda v: not is_matrix(v))
    yield "rademacher(losses)", Case(not_losses, theory.rademacher_complexity, ("losses",))
    yield (
        "rademacher(samples)",
        Case(junk.not_whole, lambda v: theory.rademacher_complexity([[0.5]], samples=v), ("samples",)),
    )
    bound = lambda **more: theory.seen_task_bound(**{"loss": 0.5, "complexity": 0.1, "width": 1.0, "rows": 10, **more})  # noqa: E731
    yield "seen_task_bound(loss)", Case(junk.not_number, lambda v: bound(loss=v), ("loss",))
    yield "seen_task_bound(rows)", Case(junk.not_whole, lambda v: bound(rows=v), ("rows",))
    yield "seen_task_bound(risk)", Case(junk.not_share | st.just(1.0), lambda v: bound(risk=v), ("risk",))

    def worst(**more):
        return theory.worst_task_bound(**{"losses": [0.5], "complexities": 0.1, "width": 1.0, "rows": 9, **more})

    yield (
        "worst_task_bound(losses)",
        Case(junk.with_none.filter(lambda v: not is_vector(v)), lambda v: worst(losses=v), ("loss",)),
    )
    yield "worst_task_bound(rows)", Case(junk.not_whole, lambda v: worst(rows=v), ("rows",))


def is_matrix(value):
    return isinstance(value, (np.ndarray, jnp.ndarray)) and value.ndim == 2


def is_vector(value):
    good = isinstance(value, (np.ndarray, jnp.ndarray)) and value.ndim == 1 and value.dtype.kind == "f" and value.size
    return good or (isinstance(value, (list, tuple, range)) and len(value) and all(type(v) is int for v in value))


def all_cases():
    """Every case by its name."""
    rooms = (problems, runs, options, sets, files, after, comparisons, theorems)
    return {name: case for room in rooms for name, case in room()}
