"""Reward models: the values of the plain model on whole sequences, for the tokens of the new steps only."""

import json
import random
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import engine.reward
from engine import native
from engine.models import resolve
from engine.reward import RewardModel
from engine.reward_head import Head, NoHeadError
from engine.solution import RewardQuery
from tests.tiny import save_tiny_reward

PROBLEM = "What is 6 * 7?"
HEADS = {"token-2": ("token", 2), "token-1": ("token", 1), "sequence-1": ("sequence", 1), "labels": ("labels", 2)}
ALL = pytest.mark.parametrize("name", HEADS)
LABELS = ("+", "-")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("rewards")
    return {name: save_tiny_reward(root / name, head, outputs) for name, (head, outputs) in HEADS.items()}


def load(folder: Path, reading: str = "steps", **options) -> RewardModel:
    labels = LABELS if folder.name == "labels" else None
    options = {"device": "cpu", "dtype": "float32", "labels": labels, **options}
    return RewardModel.load(resolve(str(folder)), reading=reading, **options)


class Plain:
    """Stock transformers, whole sequences, nothing kept; tokens are put together here once more."""

    def __init__(self, folder: Path) -> None:
        auto = {
            "token": transformers.AutoModelForTokenClassification,
            "sequence": transformers.AutoModelForSequenceClassification,
            "labels": transformers.AutoModelForCausalLM,
        }
        self.head = HEADS[folder.name][0]
        self.model = auto[self.head].from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def prompt(self, problem: str = PROBLEM) -> list[int]:
        chat = [{"role": "user", "content": problem}]
        return self.encode(self.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))

    def value(self, tokens: list[int]) -> float:
        """At the last token; the sequence head by transformers' own pooling."""
        with torch.inference_mode():
            logits = self.model(torch.tensor([tokens])).logits[0].double()
        last = logits if self.head == "sequence" else logits[-1]
        if self.head == "labels":
            good, bad = (self.encode(label)[0] for label in LABELS)
            return float(last[[good, bad]].softmax(-1)[0])
        return float(torch.sigmoid(last[0]) if len(last) == 1 else last.softmax(-1)[1])

    def steps(self, steps, problem: str = PROBLEM, mark: str = "\n", between: str = "") -> list[float]:
        tokens, values = self.prompt(problem), []
        for i, step in enumerate(steps):
            tokens += self.encode((between if i else "") + step.strip()) + self.encode(mark)
            values.append(self.value(tokens))
        return values


def grown(seed: int, waves: int = 5) -> list[list[RewardQuery]]:
    """Waves of a search: ragged steps, several branches of two problems, deeper and deeper."""
    rng = random.Random(seed)
    paths: list[tuple[str, tuple[str, ...]]] = [(PROBLEM, ()), ("Is 91 a prime number, and why?", ())]
    found = []
    for _ in range(waves):
        parents = rng.sample(paths, min(3, len(paths)))
        new = [(p, (*s, "ab1+=? "[rng.randrange(6)] * rng.randint(1, 40) + "\n\n")) for p, s in parents for _ in "123"]
        found.append([RewardQuery(problem, steps) for problem, steps in new])
        paths = new
    return found


@pytest.mark.parametrize("budget", ["unbounded", "tight", "nothing kept"])
@ALL
def test_scores_are_those_of_the_plain_model_on_whole_sequences(folders, name, budget):
    """Ragged, several branches, and with KV that was evicted in between."""
    plain = Plain(folders[name])
    longest = max(len(plain.prompt(q.problem)) + sum(map(len, q.steps)) for wave in grown(1) for q in wave)
    unit = 2 * 3 * 2 * 16 * 4
    given = {"unbounded": None, "tight": longest * unit, "nothing kept": 0}[budget]
    model = load(folders[name], kv_budget_bytes=given)
    assert model.stats()["path"] == "tree"
    for wave in grown(1):
        for query, found in zip(wave, model.score(wave), strict=True):
            assert found.error is None
            assert list(found.values) == pytest.approx(plain.steps(query.steps, query.problem), abs=1e-4)
        model.check_integrity()
    for query in random.Random(2).sample([query for wave in grown(1) for query in wave], 12):
        (found,) = model.score([query])
        assert list(found.values) == pytest.approx(plain.steps(query.steps, query.problem), abs=1e-4)
    model.check_integrity()
    assert (model.stats()["evicted"] > 0) == (budget != "unbounded")
    assert given is None or given == 0 or model.stats()["kv_peak_bytes"] <= given


@ALL
def test_a_whole_solution_has_one_score_behind_the_end_of_the_turn(folders, name):
    plain, model = Plain(folders[name]), load(folders[name], "whole")
    for steps in (("one step\n\n",), ("one step\n\n", "and 42"), ("one step\n\n", "no, 41. \n")):
        (found,) = model.score([RewardQuery(PROBLEM, steps)])
        chat = [{"role": "user", "content": PROBLEM}, {"role": "assistant", "content": "".join(steps).strip()}]
        tokens = plain.encode(plain.tokenizer.apply_chat_template(chat, tokenize=False))
        assert found.values == pytest.approx((plain.value(tokens),), abs=1e-4)
    assert model.stats()["processed"] < len(tokens) + 30
    model.check_integrity()


def test_tokens_processed_grow_linearly_with_steps(folders):
    """Acceptance: every step is read once, whatever the length of the path it stands on."""
    plain = Plain(folders["token-2"])
    step = "17 and 25 makes 42"
    size = len(plain.encode(step)) + 1
    for count in (8, 16, 32):
        model = load(folders["token-2"])
        for n in range(1, count + 1):
            steps = tuple(f"{step}\n\n" for _ in range(n))
            (found,) = model.score([RewardQuery(PROBLEM, steps)])
            assert len(found.values) == n
            assert found.usage.scored == size
            assert found.usage.prefilled == (len(plain.prompt()) if n == 1 else 0)
        counts = model.stats()
        assert counts["processed"] == len(plain.prompt()) + count * size
        assert counts["reads"] == count


def test_without_its_kv_they_would_grow_with_the_square(folders):
    """What the counter above would show if nothing were kept."""
    plain, model = Plain(folders["token-2"]), load(folders["token-2"], kv_budget_bytes=0)
    size, prompt = len(plain.encode("a step")) + 1, len(plain.prompt())
    for n in range(1, 9):
        model.score([RewardQuery(PROBLEM, ("a step\n\n",) * n)])
    assert model.stats()["processed"] == sum(prompt + n * size for n in range(1, 9))


@pytest.mark.skipif(
    native.kernels(torch.float32) is None, reason="equal bits need the own CPU kernels: no C++ compiler"
)
def test_the_bits_do_not_depend_on_the_batch(folders):
    together, alone = load(folders["token-2"]), load(folders["token-2"], kv_budget_bytes=0)
    for wave in grown(3, waves=3):
        assert [found.values for found in together.score(wave)] == [alone.score([q])[0].values for q in wave]


def test_branches_share_what_they_have_in_common(folders):
    plain, model = Plain(folders["token-2"]), load(folders["token-2"])
    first = ("first\n\n", "second\n\n")
    ends = [f"third {i}\n\n" for i in range(6)]
    found = model.score([RewardQuery(PROBLEM, (*first, end)) for end in ends])
    once = len(plain.prompt()) + sum(len(plain.encode(s.strip())) + 1 for s in (*first, *ends))
    assert model.stats()["processed"] == once == sum(f.usage.scored + f.usage.prefilled for f in found)
    assert len({f.values[:2] for f in found}) == 1 and len({f.values[2] for f in found}) == 6
    again = model.score([RewardQuery(PROBLEM, (*first, end)) for end in ends])
    assert [f.values for f in again] == [f.values for f in found]
    assert model.stats()["processed"] == once


def test_evicted_kv_is_computed_anew_and_counted(folders):
    plain = Plain(folders["token-2"])
    unit = 2 * 3 * 2 * 16 * 4
    model = load(folders["token-2"], kv_budget_bytes=120 * unit)
    a, b = ("a" * 40 + "\n\n", "b" * 20), ("c" * 50 + "\n\n", "d" * 20)
    model.score([RewardQuery(PROBLEM, a[:1])])
    model.score([RewardQuery("Another problem?", b)])
    (found,) = model.score([RewardQuery(PROBLEM, a)])
    assert list(found.values) == pytest.approx(plain.steps(a), abs=1e-4)
    assert model.stats()["recomputed_tokens"] > 0
    assert found.usage.prefilled > 0 and found.usage.scored == 21
    model.check_integrity()


def test_a_path_that_can_never_fit_is_an_error_and_the_others_are_read(folders):
    unit = 2 * 3 * 2 * 16 * 4
    model = load(folders["token-2"], kv_budget_bytes=80 * unit)
    short, long = model.score([RewardQuery(PROBLEM, ("ok",)), RewardQuery(PROBLEM, ("x" * 100,))])
    assert short.error is None and len(short.values) == 1
    assert "bytes of KV" in long.error and long.values == ()
    (too_long,) = model.score([RewardQuery(PROBLEM, ("x" * 2000,))])
    assert "context of 1024" in too_long.error
    model.check_integrity()


def test_long_steps_are_read_in_parts(folders, monkeypatch):
    plain, steps = Plain(folders["token-2"]), ("y" * 300, "z" * 70, "w")
    monkeypatch.setattr(engine.reward, "PASS_TOKENS", 32)
    model = load(folders["token-2"])
    (found,) = model.score([RewardQuery(PROBLEM, steps)])
    assert list(found.values) == pytest.approx(plain.steps(steps), abs=1e-4)
    assert model.stats()["passes"] >= 300 // 32 + 70 // 32


def test_a_model_that_the_tree_attention_cannot_serve_is_read_whole(folders, monkeypatch, caplog):
    monkeypatch.setattr(engine.reward, "unsupported", lambda *parts: ("it is too odd", None))
    model, plain = load(folders["token-2"]), Plain(folders["token-2"])
    queries = [RewardQuery(PROBLEM, steps) for steps in (("a\n\n", "b\n\n"), ("a\n\n", "cc\n\n", "d"))]
    for query, found in zip(queries, model.score(queries), strict=True):
        assert list(found.values) == pytest.approx(plain.steps(query.steps), abs=1e-4)
    assert model.stats()["path"] == "plain" and "it is too odd" in caplog.text


def test_the_place_behind_a_step_is_where_the_separator_says(folders):
    """Math-Shepherd's way: a mark behind each step is read, and the line break behind it opens the next step."""
    plain, steps = Plain(folders["labels"]), ("first\n\n", "second\n\n")
    model = load(folders["labels"], separator=" ки\n")
    (found,) = model.score([RewardQuery(PROBLEM, steps)])
    assert list(found.values) == pytest.approx(plain.steps(steps, mark=" ки", between="\n"), abs=1e-4)


# -- checkpoints ---------------------------------------------------------------------------------------------------
def only_config(folder: Path, architecture: str | None, **more) -> Path:
    """A checkpoint whose weights are not there: whatever is refused is refused before they are looked for."""
    folder.mkdir()
    config = {"model_type": "llama", "architectures": [architecture] if architecture else None, **more}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("architecture", "more", "options", "message"),
    [
        ("LlamaForCausalLM", {}, {}, "without a reward head; give the two words .* as reward_labels"),
        ("LlamaForCausalLM", {}, {"asked": "token"}, "LlamaForCausalLM, which does not serve as reward_head='token'"),
        ("LlamaForTokenClassification", {}, {"asked": "sequence"}, "does not serve as reward_head='sequence'"),
        ("LlamaForTokenClassification", {}, {"labels": LABELS}, r"reward_labels=\('\+', '-'\) go with a language"),
        ("LlamaForSequenceClassification", {"id2label": {str(i): "x" for i in range(5)}}, {}, "a head of 5 outputs"),
        ("BertForTokenClassification", {}, {}, "BertForTokenClassification, which does not serve as a reward model"),
        ("Qwen2ForProcessRewardModel", {}, {}, "Qwen2ForProcessRewardModel, which does not serve as a reward model"),
        (None, {}, {}, "names no architecture, which does not serve as a reward model"),
    ],
)
def test_a_checkpoint_without_a_fitting_head_is_refused_by_its_configuration(
    tmp_path, architecture, more, options, message
):
    source = resolve(str(only_config(tmp_path / "model", architecture, **more)))
    with pytest.raises(NoHeadError, match=message):
        Head.of(source, **options)


def test_heads_are_found_by_the_configuration(tmp_path):
    for i, (architecture, kind) in enumerate(
        {"Qwen2ForTokenClassification": "token", "MistralForSequenceClassification": "sequence"}.items()
    ):
        assert Head.of(resolve(str(only_config(tmp_path / str(i), architecture)))) == Head(kind)
    assert Head.of(resolve(str(only_config(tmp_path / "lm", "Gemma2ForCausalLM"))), labels=LABELS).labels == LABELS


def test_files_without_the_promised_head_are_refused(tmp_path):
    folder = save_tiny_reward(tmp_path / "token-2", "token")
    config = json.loads((folder / "config.json").read_text())
    save_tiny_reward(folder, "labels")
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(NoHeadError, match=r"have no weights for score\.bias, score\.weight"):
        load(folder)


def test_label_words_have_to_be_single_tokens(folders):
    with pytest.raises(NoHeadError, match="'good' is 4 tokens"):
        load(folders["labels"], labels=("good", "-"))
    with pytest.raises(NoHeadError, match="are one token"):
        load(folders["labels"], labels=("+", "+"))
