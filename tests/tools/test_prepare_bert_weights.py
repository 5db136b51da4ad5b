"""python -m tools.prepare_data bert-weights."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from models import bert, bert_weights
from tests.models.bert_oracle import CONFIG, random_arrays
from tests.tools.command_line import refused
from tools import prepare_data

pytestmark = pytest.mark.one_keras


def published(folder, arrays):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file(arrays, folder / "model.safetensors")
    return folder


def run(capsys, *arguments):
    prepare_data.main(["bert-weights", *map(str, arguments)])
    return capsys.readouterr().out


def test_one_line_sums_up(tmp_path, capsys):
    arrays = random_arrays() | {"embeddings.position_ids": np.arange(9)[None]}
    output = tmp_path / "out"
    line = run(capsys, published(tmp_path / "model", arrays), "--output", output)
    assert line == f"{output}: 2 layers, width 8, 2 heads, 1,328 parameters; not used of the source: embeddings.position_ids\n"
    encoder = bert.encoder(*bert_weights.read_config(output))
    bert_weights.load(encoder, output)
    np.testing.assert_array_equal(encoder.get_embedding_table(), arrays["embeddings.word_embeddings.weight"])


def test_a_second_run_replaces_the_first(tmp_path, capsys):
    for seed in (0, 1):
        arrays = random_arrays(seed)
        run(capsys, published(tmp_path / f"model{seed}", arrays), "--output", tmp_path / "out")
    encoder = bert.encoder(*bert_weights.read_config(tmp_path / "out"))
    bert_weights.load(encoder, tmp_path / "out")
    np.testing.assert_array_equal(encoder.get_embedding_table(), arrays["embeddings.word_embeddings.weight"])


def test_a_missing_pooler_is_said(tmp_path, capsys):
    arrays = {name: array for name, array in random_arrays().items() if not name.startswith("pooler")}
    line = run(capsys, published(tmp_path / "model", arrays), "--output", tmp_path / "out")
    assert "no pooler in the source: the encoder's is as it was initialised" in line and line.count("\n") == 1


def test_the_configuration_may_lie_elsewhere(tmp_path, capsys):
    source = published(tmp_path / "model", random_arrays())
    config = (source / "config.json").rename(tmp_path / "mine.json")
    assert "--config" in refused(prepare_data.main, capsys, "bert-weights", source, "--output", tmp_path / "out")
    assert "2 layers" in run(capsys, source, "--output", tmp_path / "out", "--config", config)


def test_what_is_no_bert_is_refused(tmp_path, capsys):
    error = refused(prepare_data.main, capsys, "bert-weights", tmp_path, "--output", tmp_path / "out")
    assert f"{tmp_path} holds no such weights: expected a folder with config.json and model.safetensors" in error
    assert "--output" in refused(prepare_data.main, capsys, "bert-weights", tmp_path)
