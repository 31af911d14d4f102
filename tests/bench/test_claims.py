"""The claims benchmark: rules, intervals and counts against known values, and one real tiny run."""

import json
from math import isclose
from pathlib import Path

import pytest

from bench.claims.intervals import auc, bootstrap
from bench.claims.problems import DATA, HINTS, Question, load
from bench.claims.rows import Row, table
from bench.claims.skipping import Decision, skips
from bench.claims.speed import CONDITIONS, SAME_TEXT, Rounds
from search.calibration.binomial import at_most, clopper_pearson


# -- intervals ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("k", "n", "low", "high"),
    [
        (0, 10, 0.0, 0.30850),
        (10, 10, 0.69150, 1.0),
        (1, 10, 0.00253, 0.44502),
        (5, 10, 0.18709, 0.81291),
        (6, 1616, 0.00136, 0.00806),
        (0, 299, 0.0, 0.01226),
    ],
)
def test_clopper_pearson_has_the_known_bounds(k: int, n: int, low: float, high: float):
    assert clopper_pearson(k, n) == pytest.approx((low, high), abs=1.1e-5)


def test_the_bounds_are_where_the_tails_have_their_share():
    low, high = clopper_pearson(7, 40, confidence=0.9)
    assert isclose(1 - at_most(6, 40, low), 0.05, rel_tol=1e-6)
    assert isclose(at_most(7, 40, high), 0.05, rel_tol=1e-6)


def test_no_trials_tell_nothing_and_impossible_counts_are_refused():
    assert clopper_pearson(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match="got 4 of 3"):
        clopper_pearson(4, 3)


def test_auc_counts_pairs_in_order_and_half_of_the_ties():
    assert auc([3.0, 4.0], [1.0, 2.0]) == 1.0
    assert auc([1.0, 2.0], [3.0, 4.0]) == 0.0
    assert auc([1.0, 3.0], [1.0, 2.0]) == (0.5 + 0 + 1 + 1) / 4
    with pytest.raises(ValueError, match="both classes"):
        auc([], [1.0])


def test_bootstrap_is_a_function_of_its_seed_and_surrounds_the_mean():
    values = [float(i % 5) for i in range(50)]
    mean = lambda units: sum(values[i] for i in units) / len(units)  # noqa: E731
    low, high = bootstrap(50, mean, seed=3)
    assert (low, high) == bootstrap(50, mean, seed=3) != bootstrap(50, mean, seed=4)
    assert low < 2.0 < high < 3.0


# -- the paper's rule --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("confidences", "expected"),
    [
        ((0.72, 0.65, 0.1), True),
        ((0.65, 0.1, 0.72), True),
        ((0.72, 0.68, 0.1), False),
        ((0.90, 0.85), False),
        ((0.64, 0.58), True),
        ((0.64, 0.60), False),
        ((0.62, 0.10), False),
        ((0.70, 0.64), True),
    ],
)
def test_the_rule_skips_by_top_gap_and_relative_gap(confidences: tuple[float, ...], expected: bool):
    assert skips(confidences) is expected


def test_the_rule_needs_two_branches():
    with pytest.raises(ValueError, match="got 1"):
        skips([0.9])


def test_decisions_tell_flips_harm_errors_and_benefit_apart():
    decisive = (0.9, 0.5, 0.4)
    same = Decision("x", decisive, (0.8, 0.3, 0.2), (True, False, False))
    error = Decision("x", decisive, (0.2, 0.9, 0.2), (False, True, False))
    harmless = Decision("x", decisive, (0.2, 0.9, 0.2), (True, True, False))
    benefit = Decision("x", decisive, (0.2, 0.9, 0.2), (True, False, False))
    kept = Decision("x", (0.5, 0.5, 0.4), (0.2, 0.9, 0.2), (False, True, False))
    told = [(d.skipped, d.flip, d.harm, d.error, d.benefit) for d in (same, error, harmless, benefit, kept)]
    assert told == [
        (True, False, False, False, False),
        (True, True, True, True, False),
        (True, True, True, False, False),
        (True, True, False, False, True),
        (False, False, False, False, False),
    ]


def test_error_rows_count_over_all_decisions():
    pytest.importorskip("torch")
    from bench.claims.errors import rows

    skipped = Decision("arc", (0.9, 0.5), (0.2, 0.9), (False, True))
    kept = Decision("gsm8k-hard", (0.5, 0.5), (0.2, 0.9), (False, True))
    found = {row.claim: row for row in rows([skipped, kept, kept, kept])}
    assert (found["skip_rate_arc"].ours, found["skip_rate_gsm8k_hard"].ours) == (1.0, 0.0)
    assert "skip_rate_gsm8k_easy" not in found
    assert (found["flip_rate"].ours, found["flip_rate"].n) == (0.25, 4)
    assert (found["flip_rate_of_skipped"].ours, found["flip_rate_of_skipped"].n) == (1.0, 1)
    assert (found["cgee_induced_errors"].ours, found["benefit_rate"].ours) == (0.25, 0.0)
    assert (found["harm_rate"].low, found["harm_rate"].high) == clopper_pearson(1, 4)


# -- ratios ------------------------------------------------------------------------------------------------------------
def made_up(skipped: list[bool]) -> Rounds:
    parts = {part for pair in CONDITIONS.values() for part in pair}
    seconds = {part: [1.0, 1.0] for part in parts}
    seconds |= {"expand:no-kv": [6.0, 8.0], "verify:reread": [4.0, 6.0], "verify:rksc": [1.0, 1.0]}
    p_yes = {part: [0.4, 0.9] for texts in SAME_TEXT for part in texts}
    fed = {"verify:rksc": 15, "verify:reread": 300}
    cpu_s = {part: [1.0, 1.0] for part in parts} | {"verify:reread": [5.0, 7.0]}
    return Rounds(seconds, skipped, fed, p_yes, {"a": [[1], [2]], "b": [[1], [2]]}, cpu_s)


def test_a_condition_is_the_sum_of_its_parts_and_skips_only_verification():
    found = made_up([True, False])
    assert found.condition("no-kv") == [10.0, 14.0]
    assert found.condition("rksc") == [2.0, 2.0]
    assert found.condition("rksc+skip") == [1.0, 2.0]
    assert found.condition("cgee+skip") == [6.0, 14.0]


def test_speed_rows_are_ratios_of_medians_with_the_spread_over_rounds():
    pytest.importorskip("torch")
    from bench.claims.speed import rows

    found = {row.claim: row for row in rows(made_up([True, False]))}
    own = found["rksc_vs_no_kv"]
    assert (own.paper, own.ours, own.n, own.low, own.high) == (3.008, 6.0, 2, 5.0, 7.0)
    assert "of CPU seconds 3.50 (3.00 to 4.00)" in own.definition
    assert found["rksc_vs_no_kv_peak"].ours == 7.0
    assert found["rksc_skip_vs_no_kv"].ours == 8.0
    assert "skipped in 1 of 2 rounds" in found["rksc_skip_vs_no_kv"].definition
    assert found["verification_tokens_vs_separate"].ours == 0.05
    assert found["skip_rate_timed_workload"].ours == 0.5


def test_a_condition_is_not_compared_with_itself():
    pytest.importorskip("torch")
    from bench.claims.speed import rows

    found = {row.claim: row for row in rows(made_up([False, False]))}
    assert found["cgee_vs_no_kv"].ours is None
    assert found["rksc_vs_no_kv"].ours == 6.0


def test_other_tokens_and_other_verdicts_are_told():
    found = made_up([False, False])
    assert found.outputs_equal
    assert found.verdicts() == (0, 6, 0.0)
    found.tokens["b"] = [[1], [3]]
    found.p_yes["verify:rksc"] = [0.6, 0.9]
    assert not found.outputs_equal
    differ, branches, largest = found.verdicts()
    assert (differ, branches) == (1, 6)
    assert largest == pytest.approx(0.2)


# -- reuse, sigma, pressure --------------------------------------------------------------------------------------------
def test_the_radix_baseline_counts_the_longest_common_prefix():
    pytest.importorskip("torch")
    from bench.claims.phrasing import Reuse, radix

    groups = [[(1, 2, 3, 4, 9), (1, 2, 5, 6, 9)], [(1, 2, 3, 7, 9), (8, 2, 3, 4, 9)]]
    assert radix(groups) == [Reuse(2, 8), Reuse(3, 8)]


def test_layout_puts_the_problem_first_in_every_phrasing():
    from bench.claims.phrasing import PHRASINGS, as_given, laid_out
    from engine.tokenizer import ByteCodec

    question = Question("arc", "How many?", "4", "number")
    given, laid = (build(ByteCodec(), [question])[0] for build in (as_given, laid_out))
    assert len({*given}) == len({*laid}) == len(PHRASINGS)
    head = tuple(b"<user>How many?\n\n")
    assert all(prompt[: len(head)] == head for prompt in laid)
    assert sum(prompt[: len(head)] == head for prompt in given) == 0


def test_sigma_weights_later_layers_more():
    torch = pytest.importorskip("torch")
    from bench.claims.sigma import last_token, mean_of_suffix, sigma

    x, y = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    assert sigma([x, y], [x, y]) == pytest.approx(1.0)
    late, early = sigma([x, x], [y, x]), sigma([x, x], [x, y])
    assert late == pytest.approx(2.718281828**1.5 / (2.718281828**0.75 + 2.718281828**1.5))
    assert early == pytest.approx(1 - late)
    states = [torch.tensor([[9.0], [1.0], [3.0]])]
    assert (last_token(states, 1)[0].item(), mean_of_suffix(states, 1)[0].item()) == (3.0, 2.0)
    assert mean_of_suffix(states, 3)[0].item() == 3.0


def test_families_have_the_problem_rephrased_and_with_one_number_changed():
    pytest.importorskip("torch")
    from bench.claims.sigma import families
    from engine.tokenizer import ByteCodec

    numbered, plain = families(ByteCodec(), [Question("", f"{w} and 7?", "", "number") for w in ("19", "Ten")])
    assert numbered.changed == tuple(b"<user>20 and 7?\n<assistant>")
    assert plain.changed == tuple(b"<user>Ten and 8?\n<assistant>")
    assert len(numbered.rephrased) == 7
    assert all(prompt != numbered.plain for prompt in numbered.rephrased)
    assert families(ByteCodec(), [Question("", "None?", "", "text")])[0].changed is None


def test_sigma_rows_tell_apart_which_pairs_score_higher():
    pytest.importorskip("torch")
    from bench.claims.sigma import Scores, _rows

    scores = [Scores([0.9, 0.8], [0.7], [0.95]), Scores([0.85, 0.9], [0.6], [0.99])]
    found = {row.claim: row for row in _rows("paper", scores)}
    assert (found["sigma_auc_paper"].ours, found["sigma_auc_paper_changed_number"].ours) == (1.0, 0.0)
    assert found["sigma_shares_rephrased_paper"].ours == found["sigma_shares_changed_number_paper"].ours == 1.0
    assert found["sigma_shares_other_problem_paper"].ours == 0.0


def test_the_scripted_search_is_a_function_of_its_seed_and_budgets_cost_tokens():
    pytest.importorskip("torch")
    from bench.claims.pressure import POLICIES, Plan, counted

    plan = Plan(expansions=8)
    first, again = counted(plan, [1, 2]), counted(plan, [1, 2])
    for policy in POLICIES:
        assert first.extra("quarter", policy) == again.extra("quarter", policy)
        assert min(first.extra("quarter", policy)) > 0
        assert all(run.kv_bytes <= free.kv_bytes // 4 for run, free in _pairs(first, policy))
    # Nothing is computed twice without a budget: the prompts, all steps, and no last token of a path.
    computed = plan.trees * (plan.prompt + plan.expansions * plan.children * plan.step)
    opened = plan.trees * plan.expansions * plan.children
    assert all(computed - opened - plan.trees <= run.prefilled <= computed for run in first.unbounded)


def test_a_policy_gains_only_where_most_seeds_say_so():
    pytest.importorskip("torch")
    from bench.claims.pressure import Pressure, Run, rows

    def runs(*extra: int) -> list[Run]:
        return [Run(100 + more, 0, 1.0) for more in extra]

    bounded = {}
    for budget in ("half", "quarter"):
        bounded[budget, "lru"] = runs(*[50] * 10)
        bounded[budget, "omega"] = runs(*[10] * 6, *[60] * 4)
        bounded[budget, "value"] = runs(*[25] * 10)
    pressure = Pressure(runs(*[0] * 10), bounded)
    found = {row.claim: row for row in rows(pressure, pressure)}
    omega, value = found["rsbcm_omega_vs_lru_half"], found["rsbcm_value_vs_lru_half"]
    assert (value.ours, value.low, value.high) == (2.0, 2.0, 2.0)
    assert "value gains on lru: fewer in 10, more in 0 seeds" in value.definition
    assert omega.ours == pytest.approx(500 / 300)
    assert "omega shows no gain over lru: fewer in 6, more in 4 seeds" in omega.definition
    assert found["rsbcm_lru_quarter_recomputed"].ours == 0.5
    assert "50.0% of the prompt tokens" in found["rsbcm_lru_quarter_seconds"].definition


def _pairs(pressure, policy: str):
    return zip(pressure.bounded["quarter", policy], pressure.unbounded, strict=True)


# -- problems and the table --------------------------------------------------------------------------------------------
def test_problems_have_families_and_know_a_right_reply():
    problems = load(DATA, "gsm8k", 60) + load(DATA, "arc", 60)
    assert {p.family for p in problems} == {"gsm8k-easy", "gsm8k-hard", "arc"}
    first = problems[0]
    assert first.right(f"Answer: {first.truth}")
    assert not first.right("Answer: 12345")
    choice = problems[-1]
    assert "\nA. " in choice.text
    assert choice.right(f"The answer is {choice.truth}.")
    wrong = next(letter for letter in "ABCD" if letter != choice.truth)
    assert not choice.right(f"The answer is {wrong}.")
    assert len(set(HINTS)) == 8


def test_the_table_shows_missing_figures_and_definitions():
    shown = table([Row("a", [0.42, 0.92], None, 0, None, 1.0, "what a means")])
    assert "| a     | 0.42-0.92 | -    | 0 | -   | 1    |" in shown
    assert "- `a`: what a means" in shown


# -- the whole ---------------------------------------------------------------------------------------------------------
CLAIMS = {
    "rksc_vs_no_kv",
    "rksc_vs_exact_cache",
    "rksc_vs_exact_cache_continuation",
    "flip_rate",
    "harm_rate",
    "cgee_induced_errors",
    "rsbcm_omega_vs_lru_half",
    "extra_reuse_layout",
    "sigma_auc_paper",
    "sigma_auc_mean_suffix",
    "kv_speedup_std_over_models",
}


@pytest.mark.slow
def test_a_tiny_run_has_every_claim_and_equal_outputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("torch")
    from bench.claims.__main__ import main
    from tests.tiny import save_tiny_llama

    model = save_tiny_llama(tmp_path / "llama")
    size = ["--prefix", "96", "--branches", "3", "--new-tokens", "4", "--rounds", "2", "--problems", "2"]
    assert main(["--quick", *size, "--model", str(model), "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    rows = {row["claim"]: row for row in result["rows"]}
    assert rows.keys() >= CLAIMS
    assert result["failures"] == []
    for row in rows.values():
        assert set(row) == {"claim", "paper", "ours", "n", "low", "high", "definition"}
        assert row["low"] is None or row["ours"] is None or row["low"] <= row["ours"] <= row["high"]
    assert rows["verdicts_differ"]["ours"] == 0
    assert rows["verdicts_differ"]["n"] == 2 * 3 * 3
    assert 0 < rows["verification_tokens_vs_separate"]["ours"] < 1
    assert {"torch", "load_average", "load_average_after", "engine", "conditions"} <= set(result["config"])


def test_an_exact_cache_verifies_as_a_reading_from_scratch_does(tmp_path: Path):
    torch = pytest.importorskip("torch")
    from bench.claims.ways import Ours, StockExactCache, StockNoKV
    from bench.conditions import Setup
    from bench.workload import Point, Text
    from engine.labels import Labels
    from engine.models import resolve
    from tests.tiny import save_tiny_llama

    setup, point = Setup(resolve(str(save_tiny_llama(tmp_path / "llama")))), Point(64, 3, 4)
    job = Text(setup.codec).job(point)
    ways = [way(setup, point) for way in (StockNoKV, StockExactCache, Ours)]
    scratch, cached, ours = (way.measure(job) for way in ways)
    assert scratch.tokens == cached.tokens == ours.tokens
    for part in ("verify:separate", "verify:rksc-separate"):
        own = (cached.p_yes | ours.p_yes)[part]
        assert own == pytest.approx(scratch.p_yes["verify:reread"], abs=1e-4)
    ask, labels = ways[1]._questions, Labels.of(setup.codec)

    def read(*parts: tuple[int, ...]) -> float:
        ids = torch.tensor([[token for part in parts for token in part]])
        return labels.p_yes(setup.stock(input_ids=ids, use_cache=False).logits[0, -1])

    rows = [tuple(row) for row in cached.tokens]
    behind = [read(job.prefix, h, r, ask.follow_up_tokens) for h, r in zip(job.hints, rows, strict=True)]
    assert cached.p_yes["verify:continuation"] == pytest.approx(behind, abs=1e-4)
    assert ours.p_yes["verify:rksc"] == pytest.approx(behind, abs=1e-4)
    first = [read(job.prefix, ask.lead, row, ask.closing_tokens) for row in rows]
    assert cached.p_yes["verify:problem-first"] == pytest.approx(first, abs=1e-4)
    assert ours.fed["verify:rksc"] == cached.fed["verify:continuation"] == 3 * (1 + len(ask.follow_up_tokens))


def test_unknown_parts_and_bad_sizes_are_refused(capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("torch")
    from bench.claims.__main__ import main

    for arguments, word in ((["--parts", "speed,magic"], "'magic'"), (["--branches", "1"], "at least 2")):
        with pytest.raises(SystemExit):
            main(arguments)
        assert word in capsys.readouterr().err
