"""What names a model's weights: other weights, another name; and which conversion of a GGUF file is whose."""

import json
import os
from pathlib import Path

import pytest

from engine.models import ModelNotFoundError, ModelSource, resolve
from engine.tokenizer import converted_folder

RESULTS = Path(__file__).parents[2] / "bench" / "results"
SIZE = 6 << 20


def model(folder: Path, *changes: int) -> ModelSource:
    """A GGUF file whose bytes differ from the plain one's at these offsets."""
    folder.mkdir(exist_ok=True)
    content = bytearray(SIZE)
    for at in changes:
        content[at] = 1
    (folder / "model.gguf").write_bytes(content)
    os.utime(folder / "model.gguf", ns=(7, 7))
    return ModelSource("m", "gguf", folder / "model.gguf")


def test_weights_that_differ_behind_the_header_or_at_the_end_have_another_fingerprint(tmp_path: Path):
    plain = model(tmp_path / "a")
    assert model(tmp_path / "b").fingerprint == plain.fingerprint
    tuned = range(SIZE // 3, SIZE // 3 + SIZE // 16)
    others = [model(tmp_path / "c", SIZE - 1), model(tmp_path / "d", *tuned), model(tmp_path / "e", 0)]
    assert len({plain.fingerprint, *(other.fingerprint for other in others)}) == 4


def test_a_small_file_is_read_whole(tmp_path: Path):
    names = set()
    for at in (0, 100_000, 2_345_678, 3_999_999):
        content = bytearray(4_000_000)
        content[at] = 1
        (tmp_path / "config.json").write_bytes(content)
        os.utime(tmp_path / "config.json", ns=(at, at))
        names.add(ModelSource("m", "folder", tmp_path).fingerprint)
    assert len(names) == 4


def test_other_weights_in_the_same_file_are_converted_again_and_a_copy_is_not(tmp_path: Path):
    source = model(tmp_path / "a")
    before = converted_folder(source)
    os.utime(source.path, ns=(8, 8))
    assert converted_folder(source) == before == converted_folder(model(tmp_path / "b"))
    model(tmp_path / "a", *range(SIZE // 2, SIZE // 2 + SIZE // 16))
    os.utime(source.path, ns=(9, 9))
    assert converted_folder(source) != before


@pytest.mark.parametrize("name", ["embedded-arithmetic.json", "embedded-arithmetic-fresh.json"])
def test_the_calibration_records_of_the_embedded_model_are_for_its_weights(name: str):
    try:
        fingerprint = resolve("embedded").fingerprint
    except ModelNotFoundError:
        pytest.skip("the embedded model is not installed")
    assert json.loads((RESULTS / name).read_text())["setting"]["model"] == fingerprint
