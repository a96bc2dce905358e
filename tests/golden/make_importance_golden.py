#!/usr/bin/env python3
"""Makes importance.json: permutation importance of the columns of a linear regression, by scikit-learn.

  python tests/golden/make_importance_golden.py

Made with scikit-learn 1.9.1 (pip) and numpy. README.md describes the layout. The Rust tests read the output and need no Python.
"""
import json
import pathlib

import numpy as np
import sklearn
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LinearRegression

HERE = pathlib.Path(__file__).resolve().parent
SEED, N_REPEATS = 20261, 400
rng = np.random.default_rng(SEED)

# Multiples of 1/8: short, exact in float32. The last column is irrelevant.
x = np.round(rng.normal(0, 1, (120, 4)) * [1, 2, 1, 1] * 8) / 8 + [0, 5, 0, 0]
y = x @ [3, 1, -1, 0] + 10
model = LinearRegression().fit(x, y)


def importance(scoring):
    found = permutation_importance(model, x, y, scoring=scoring, n_repeats=N_REPEATS, random_state=SEED)
    return {"mean": found.importances_mean.round(9).tolist(), "std": found.importances_std.round(9).tolist()}


golden = {
    "generator": "tests/golden/make_importance_golden.py",
    "scikit-learn": sklearn.__version__,
    "seed": SEED,
    "n_repeats": N_REPEATS,
    "x": x.tolist(),
    "y": y.tolist(),
    "eval_r2": importance("r2"),
    "eval_mae": importance("neg_mean_absolute_error"),
}
(HERE / "importance.json").write_text(json.dumps(golden) + "\n")
