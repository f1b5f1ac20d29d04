"""Compare: two runs over the same items side by side, and what of the later one is worse than it may be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from zellige.data.catalog import Catalog
from zellige.data.health import worst
from zellige.data.ledger import Run
from zellige.tasks.record import summary

#: Rows told of those whose answers differ.
EXAMPLES = 20
#: An operator's error counts as grown from this multiple on, once it takes this share of its tolerance: below that it
#: moves with the numbers that came in.
GROWN, SHARE = 2.0, 0.25
#: Seconds that both runs must have taken for their throughputs to be compared: shorter ones tell of the start alone.
JUDGED_S = 5.0

_BOTH = """
WITH a AS (SELECT item_id, question_id, uri, member, page, status, error_kind, answer FROM answers WHERE run_id = $1),
     b AS (SELECT item_id, question_id, uri, member, page, status, error_kind, answer FROM answers WHERE run_id = $2),
     pairs AS (SELECT coalesce(a.uri, b.uri) AS uri, coalesce(a.member, b.member) AS member,
                      coalesce(a.page, b.page) AS page, question_id, a.status AS status_a, b.status AS status_b,
                      coalesce(a.error_kind, a.answer) AS said_a, coalesce(b.error_kind, b.answer) AS said_b
               FROM a FULL JOIN b USING (item_id, question_id))
"""
_COUNTS = (
    _BOTH
    + """
SELECT count(*) FILTER (status_b IS NULL) AS only_a,
       count(*) FILTER (status_a IS NULL) AS only_b,
       count(*) FILTER (status_a = 'ok' AND status_b = 'ok') AS both_ok,
       count(*) FILTER (status_a = 'ok' AND status_b = 'ok' AND said_a IS NOT DISTINCT FROM said_b) AS same,
       count(*) FILTER (status_a = 'ok' AND status_b = 'failed') AS failed_since,
       count(*) FILTER (status_a = 'failed' AND status_b = 'ok') AS ok_since
FROM pairs
"""
)
_DIFFERENT = (
    _BOTH
    + f"""
SELECT uri, member, page, question_id, status_a, said_a, status_b, said_b FROM pairs
WHERE status_a IS NOT NULL AND status_b IS NOT NULL
  AND (status_a <> status_b OR (status_a = 'ok' AND said_a IS DISTINCT FROM said_b))
ORDER BY uri, member, page, question_id LIMIT {EXAMPLES}
"""
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What two runs may differ by: share of equal answers at least, throughput of the second over the first."""

    agreement: float = 0.99
    throughput: float = 0.8


def compare(first: Run, second: Run, catalog: Catalog, limits: Limits) -> dict[str, Any]:
    """Counts, agreement, kernels and throughput of both in plain values; ``drift``: what is too far off, in words."""
    a, b = summary(first), summary(second)
    ids = [first.run_id, second.run_id]
    (answers,) = catalog.query(_COUNTS, ids)
    answers |= {
        "agreement": answers["same"] / answers["both_ok"] if answers["both_ok"] else None,
        "different": catalog.query(_DIFFERENT, ids),
    }
    kernels = _kernels(a["kernels"], b["kernels"])
    rates = {name: _ratio(b["throughput"][name], a["throughput"][name]) for name in ("items_per_s", "tokens_per_s")}
    judged = all((run["throughput"].get("wall_s") or 0.0) >= JUDGED_S for run in (a, b))
    slower = _rates_drift(rates, limits) if judged else []
    return {
        "runs": [a, b],
        "same_model": (a["model_fingerprint"], a["dtype"]) == (b["model_fingerprint"], b["dtype"]),
        "same_recipe": first.recipe.fingerprint == second.recipe.fingerprint,
        "answers": answers,
        "kernels": kernels,
        "throughput": rates,
        "throughput_judged": judged,
        "drift": [*_answers_drift(answers, limits), *_kernels_drift(kernels), *slower],
    }


def _kernels(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row an operator and device of either run."""
    sides = [{(row["operator"], row["device"]): row for row in rows} for rows in (a, b)]
    return [
        {"operator": operator, "device": device, "drifted": _drifted(*(side.get((operator, device)) for side in sides))}
        | {
            f"{name}_{letter}": None if (row := side.get((operator, device))) is None else value(row)
            for name, value in _KERNEL_FIGURES.items()
            for letter, side in zip("ab", sides, strict=True)
        }
        for operator, device in sorted(sides[0].keys() | sides[1].keys())
    ]


_KERNEL_FIGURES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "verdict": lambda row: row["verdict"],
    "error": lambda row: row["max_rel_l2"],
    "ms_a_launch": lambda row: row["device_ms"] / row["launches"] if row["launches"] else None,
}


def _drifted(a: dict[str, Any] | None, b: dict[str, Any] | None) -> str | None:
    """What is worse in ``b``; an operator that one run did not use says nothing."""
    if a is None or b is None:
        return None
    if a["verdict"] != b["verdict"] == worst([a["verdict"], b["verdict"]]):
        return f"was {a['verdict']}, is {b['verdict']}"
    before, now = ((row["max_rel_l2"] or 0.0) / (row["tolerance"] or 1.0) for row in (a, b))
    return f"error {now / before:.1f} times as large" if before and now > SHARE and now > GROWN * before else None


def _ratio(later: float, earlier: float) -> float | None:
    return later / earlier if earlier else None


def _answers_drift(answers: dict[str, Any], limits: Limits) -> list[str]:
    agreement = answers["agreement"]
    found = []
    if agreement is not None and agreement < limits.agreement:
        found.append(f"{agreement:.2%} of the answers agree, under {limits.agreement:.2%}")
    if answers["failed_since"]:
        failed = answers["failed_since"]
        found.append(f"{failed:,} {'row that was ok has' if failed == 1 else 'rows that were ok have'} failed")
    return found


def _kernels_drift(kernels: list[dict[str, Any]]) -> list[str]:
    return [f"{row['operator']} on {row['device']}: {row['drifted']}" for row in kernels if row["drifted"]]


def _rates_drift(rates: dict[str, float | None], limits: Limits) -> list[str]:
    rate = rates["items_per_s"]
    if rate is None or rate >= limits.throughput:
        return []
    return [f"{rate:.2f} of the throughput, under {limits.throughput:.2f}"]
