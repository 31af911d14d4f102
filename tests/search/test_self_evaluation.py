"""Self-evaluation: behind the branch or in a chat of its own, with or without the model's prior."""

import asyncio
import math

import pytest

from engine.base import LayerExit, flat
from engine.scripted import ScriptedEngine
from engine.simulated import SimulatedEngine
from search.ports import Candidate
from search.prompts import ANSWER_QUESTION, CONTENT_FREE, STEP_QUESTION, ChatPrompt
from search.types import ExitRule, Problem
from search.verifiers.cached import Cached
from search.verifiers.checked import AnswerCheck
from search.verifiers.ensemble import Ensemble
from search.verifiers.prior import without_prior
from search.verifiers.self_evaluation import SelfEvaluation
from search.verifiers.sound import tokens_to_score

PROBLEM = Problem("What is 6 * 7?", "p")


class Listening(ScriptedEngine):
    """Keeps the queries that were asked; P(yes) is 0.9 behind nothing, else 0.6."""

    def __init__(self, **options):
        super().__init__(["Answer: 42"], **options)
        self.asked = []

    def score(self, queries):
        self.asked += [(self.codec.decode(flat(q.path)), q.question, q.layer_exit) for q in queries]
        return super().score(queries)

    def judge(self, path, question):
        return 0.9 if CONTENT_FREE in "".join(path) + question else 0.6


def candidate(pool, text: str, complete: bool = True, problem: Problem = PROBLEM) -> Candidate:
    context = (pool.encode(ChatPrompt().messages(problem)), tuple(text.encode()))
    return Candidate(problem, f"r.{text}", context, (text,), complete)


def ask(verifier: SelfEvaluation, *batches):
    async def run():
        return [await verifier.score(batch) for batch in batches]

    return asyncio.run(run())


def test_continuation_asks_behind_the_branch_itself(lab):
    engine = Listening()
    pool = lab(engine).pool
    branches = [candidate(pool, "It is 42."), candidate(pool, "First, 6 * 7", complete=False)]
    verdicts = ask(SelfEvaluation(pool), branches)[0]
    assert [path.endswith(c.text) for c, (path, _, _) in zip(branches, engine.asked, strict=True)] == [True, True]
    assert [question for _, question, _ in engine.asked] == [
        pool.question(ANSWER_QUESTION),
        pool.question(STEP_QUESTION),
    ]
    assert [v.score for v in verdicts] == [0.6, 0.6]
    assert [v.cost.verified for v in verdicts] == [len(question.encode()) + 1 for _, question, _ in engine.asked]


def test_a_separate_prompt_reads_the_problem_once_for_all_branches_and_drops_the_rest(lab):
    engine = Listening()
    pool = lab(engine).pool
    verifier = SelfEvaluation(pool, prompt="separate")
    branches = [candidate(pool, f"It is {n}.") for n in (41, 42, 43)]
    first, second = ask(verifier, branches, branches[:1])
    shared = {path for path, _, _ in engine.asked}
    assert len(shared) == 1
    assert PROBLEM.text in shared.pop()
    assert all(branch.text in question for branch, (_, question, _) in zip(branches, engine.asked, strict=False))
    held = len(verifier.kept(PROBLEM)[0][0]) - 1
    assert [v.cost.prefilled for v in first] == [held, 0, 0]
    assert [v.cost.reused["exact"] for v in first] == [0, held, held]
    assert second[0].cost.prefilled == 0
    assert [v.cost.verified for v in first] == [len(question.encode()) + 1 for _, question, _ in engine.asked[:3]]
    assert engine.tree.num_tokens == held


WRAPS = {"alone": lambda v: v, "cached": Cached, "ensemble": lambda v: Ensemble((v, AnswerCheck()))}


@pytest.mark.parametrize("wrap", WRAPS)
def test_a_search_drops_the_verifiers_own_paths_when_it_ends(lab, wrap):
    engine = SimulatedEngine(seed=3)
    one = lab(engine)
    verifier = SelfEvaluation(one.pool, prompt="separate")
    result = one.solve("tot", PROBLEM, verifier=WRAPS[wrap](verifier))
    assert result.error is None
    assert result.cost.verified > 0
    checked, solved = flat(verifier.kept(PROBLEM)[0]), one.pool.encode(ChatPrompt().messages(PROBLEM))
    common = next(i for i, (a, b) in enumerate(zip(checked, solved, strict=False)) if a != b)
    assert engine.tree.held(checked) <= common < len(checked)


@pytest.mark.parametrize("wrap", WRAPS)
def test_what_skipping_saves_is_known_of_a_wrapped_verifier_too(lab, wrap):
    pool = lab(SimulatedEngine()).pool
    alone = SelfEvaluation(pool)
    wrapped, batch = WRAPS[wrap](alone), [candidate(pool, "It is 42."), candidate(pool, "It is 43.")]
    assert tokens_to_score(wrapped, batch) == alone.tokens_to_score(batch) > 0
    ask(wrapped, batch[:1])
    left = batch[1:] if wrap == "cached" else batch
    assert tokens_to_score(wrapped, batch) == alone.tokens_to_score(left)


def test_the_prior_is_read_once_a_question_counted_and_dropped(lab):
    engine = Listening()
    pool = lab(engine).pool
    branches = [candidate(pool, "It is 42."), candidate(pool, "It is 43.")]
    free = ask(SelfEvaluation(pool, debias=True), branches, branches)
    plain = ask(SelfEvaluation(pool), branches)[0]
    assert [CONTENT_FREE in path + question for path, question, _ in engine.asked] == [True] + [False] * 6
    for verdict in (*free[0], *free[1]):
        assert math.log(verdict.score / (1 - verdict.score)) == pytest.approx(math.log(0.6 / 0.4) - math.log(0.9 / 0.1))
    assert free[0][0].cost.verified > plain[0].cost.verified
    assert free[0][1].cost.verified == free[1][0].cost.verified == plain[0].cost.verified


def test_several_searches_share_one_reading_of_the_prior(lab):
    engine = Listening()
    pool = lab(engine).pool
    verifier = SelfEvaluation(pool, debias=True)

    async def run():
        return await asyncio.gather(*(verifier.score([candidate(pool, f"It is {n}.")]) for n in range(3)))

    assert len(asyncio.run(run())) == 3
    assert sum(CONTENT_FREE in path + question for path, question, _ in engine.asked) == 1


def test_a_prior_that_cannot_be_read_is_a_verdict_with_an_error(lab):
    engine = Listening(context_length=10)
    engine.judge = lambda path, question: 1 / 0 if CONTENT_FREE in "".join(path) + question else 0.6
    pool = lab(engine).pool
    verdict = ask(SelfEvaluation(pool, debias=True), [candidate(pool, "It is 42.")])[0][0]
    assert (verdict.score, verdict.error) == (None, "the content-free prior could not be read")


@pytest.mark.parametrize(("p", "prior", "wanted"), [(0.7, 0.7, 0.5), (0.7, 0.5, 0.7), (0.0, 0.9, 0.0), (1.0, 1.0, 1.0)])
def test_without_prior(p, prior, wanted):
    assert without_prior(p, prior) == pytest.approx(wanted)


def test_without_prior_keeps_the_order():
    scores = [without_prior(p / 100, 0.83) for p in range(101)]
    assert scores == sorted(set(scores))


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [(None, None), (ExitRule("paper"), LayerExit("paper", 8.0)), (ExitRule("margin", 1.5), LayerExit("margin", 1.5))],
)
def test_the_exit_rule_reaches_the_engine_with_the_questions_but_not_with_the_prior(lab, rule, wanted):
    engine = Listening()
    pool = lab(engine).pool
    ask(SelfEvaluation(pool, debias=True, layer_exit=rule), [candidate(pool, "It is 42.")])
    (_, _, of_prior), (_, _, of_question) = engine.asked
    assert of_prior is None
    assert (of_question and of_question.mode) == (wanted and wanted.mode)
    assert (of_question and of_question.limit) == (wanted and wanted.limit)


def test_unknown_choices_are_refused_by_name(lab):
    with pytest.raises(ValueError, match="no prompt 'fresh'; choices: continuation, separate"):
        SelfEvaluation(lab(Listening()).pool, prompt="fresh")
    with pytest.raises(ValueError, match="no mode 'entropy'; choices: paper, margin"):
        ExitRule("entropy")
    with pytest.raises(ValueError, match="threshold is a number of at least 0, got nan"):
        ExitRule("paper", math.nan)
