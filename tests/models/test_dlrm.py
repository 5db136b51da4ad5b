"""DLRM and its task: the forward pass against NumPy, the loss of a micro-batch, how a model is judged and served."""

import json

import numpy as np
import pytest

from configs.experiment import Experiment
from models.tasks import Dlrm
from models.tasks.dlrm import measures
from tf_simigrad import FixedBatch
from tf_simigrad.compat.keras_private import KERAS_3
from tools import prepare_data
from tools.overrides import apply_overrides

one_keras = pytest.mark.one_keras
needs_tf_keras = pytest.mark.skipif(KERAS_3, reason="its models are tf_keras's")

SIZES = tuple(3 + number % 5 for number in range(26))
TASK = Dlrm(table_sizes=SIZES, embedding_dimension=4, bottom_mlp=(6, 4), top_mlp=(5, 3, 1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Prepared clicks: 600 for training, 103 for validation."""
    where = tmp_path_factory.mktemp("clicks")
    generate = ["--examples", 600, "--validation-examples", 103, "--largest-vocabulary", 8, "--output", where]
    prepare_data.main([str(part) for part in ["clicks", *generate]])
    lines = ["--train", where / "train.tsv", "--validation", where / "validation.tsv", "--ceiling", where / "ceiling.json"]
    made = ["--table-sizes", *SIZES, "--processes", 1, "--shards", 2, "--output", where / "data"]
    prepare_data.main([str(part) for part in ["criteo", *lines, *made]])
    return where / "data"


def batch(examples, seed=0):
    """({"dense_features", "sparse_features"}, labels) as arrays."""
    rng = np.random.default_rng(seed)
    sparse = {str(i): rng.integers(0, size, examples).astype("int32") for i, size in enumerate(SIZES)}
    features = {"dense_features": rng.random((examples, 13)).astype("float32"), "sparse_features": sparse}
    return features, rng.integers(0, 2, examples).astype("float32")


def tensors(tf, arrays):
    return tf.nest.map_structure(tf.constant, arrays)


def built():
    """The model with weights of its own, among which are biases: with those of the beginning little may pass its few ReLUs."""
    model = TASK.build()
    rng = np.random.default_rng(5)
    model.set_weights([rng.normal(0, 0.5, weight.shape) for weight in model.get_weights()])
    return model


def logits_in_numpy(model, features):
    """The forward pass: vectors in the order in which TensorFlow flattens a dictionary, that of the names as text."""
    weights = [variable.numpy() for variable in model.weights]
    tables, layers = weights[:26], list(zip(weights[26::2], weights[27::2], strict=True))
    x = features["dense_features"]
    for kernel, bias in layers[:2]:
        x = np.maximum(x @ kernel + bias, 0)
    vectors = [tables[int(name)][features["sparse_features"][name]] for name in sorted(map(str, range(26)))] + [x]
    products = np.zeros((len(x), 27, 27))
    for i in range(27):
        for j in range(i):
            products[:, i, j] = (vectors[i] * vectors[j]).sum(axis=1)
    top = np.concatenate([x, products.reshape(len(x), -1)], axis=1)
    for kernel, bias in layers[2:4]:
        top = np.maximum(top @ kernel + bias, 0)
    kernel, bias = layers[4]
    return (top @ kernel + bias)[:, 0]


def cross_entropy(labels, logits):
    p = 1 / (1 + np.exp(-np.asarray(logits, np.float64)))
    return -(labels * np.log(p) + (1 - labels) * np.log(1 - p))


@needs_tf_keras
@pytest.mark.parametrize("examples", [1, 2, 9])
def test_logits_are_those_of_numpy(tf, examples):
    model = built()
    features, _ = batch(examples)
    expected = logits_in_numpy(model, features)
    found = model(tensors(tf, features))
    assert found.shape == [examples] and len(set(expected.tolist())) == examples
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@needs_tf_keras
def test_all_variables_are_there_and_each_table_has_its_number(tf):
    tf.keras.backend.clear_session()
    model = built()
    tables = [variable for variable in model.trainable_variables if variable.name.endswith("embeddings:0")]
    assert [variable.name.split("/")[-2] for variable in tables] == [f"table_{number:02d}" for number in range(26)]
    assert [tuple(variable.shape) for variable in tables] == [(size, 4) for size in SIZES]
    top = 4 + 27 * 27
    dense = [13 * 6 + 6, 6 * 4 + 4, top * 5 + 5, 5 * 3 + 3, 3 + 1]
    assert model.count_params() == sum(SIZES) * 4 + sum(dense)
    model(tensors(tf, batch(3)[0]))
    assert len(model.weights) == 26 + 10 and model.embedding_trainable_variables == tables


@needs_tf_keras
def test_tables_begin_as_those_of_official(tf):
    """Normal, standard deviation 1 / sqrt(dimension), cut off at two of these; no two tables alike."""
    model = Dlrm(table_sizes=4000, embedding_dimension=16, bottom_mlp=(16,), top_mlp=(1,)).build()
    tables = [variable.numpy() for variable in model.embedding_trainable_variables]
    for table in tables:
        assert np.abs(table).max() <= 2 * 0.25 + 1e-6
        # What is left of a normal distribution within two standard deviations has 0.8796 of its own.
        assert table.std() == pytest.approx(0.25 * 0.8796, rel=0.02)
    assert abs(np.corrcoef(tables[0].ravel(), tables[1].ravel())[0, 1]) < 0.03


@needs_tf_keras
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_the_loss_is_the_mean_of_each_replica(tf, strategies, replicas):
    """Not divided by their number, whatever it is."""
    from models import dlrm

    strategy = strategies(replicas)
    with strategy.scope():
        model = built()
    features, labels = batch(4 * replicas, seed=1)
    dataset = tf.data.Dataset.from_tensor_slices((features, labels)).batch(4 * replicas, drop_remainder=True)
    (element,) = strategy.experimental_distribute_dataset(dataset)
    losses = tf.function(lambda element: strategy.run(lambda part: TASK.loss_fn(model, part), (element,)))(element)
    logits = dlrm.logits(model, tensors(tf, features)).numpy()
    expected = cross_entropy(labels, logits).reshape(replicas, 4).mean(axis=1)
    assert len(set(expected)) == replicas
    found = [float(loss) for loss in strategy.experimental_local_results(losses)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@needs_tf_keras
def test_gradients_reach_every_weight_but_those_that_see_zeros(tf):
    model = built()
    data = tensors(tf, batch(64))
    with tf.GradientTape() as tape:
        loss = TASK.loss_fn(model, data)
    gradients = [tf.convert_to_tensor(gradient).numpy() for gradient in tape.gradient(loss, model.trainable_variables)]
    assert all(np.abs(gradient).max() > 0 for gradient in gradients)
    (first,) = [gradient for gradient in gradients if gradient.shape == (4 + 27 * 27, 5)]
    below = np.tril(np.ones((27, 27)), -1).ravel() > 0
    assert not first[4:][~below].any() and (np.abs(first[4:][below]).max(axis=1) > 0).mean() > 0.5


@needs_tf_keras
@pytest.mark.parametrize("examples", [0, 1, 5])
def test_logits_of_any_number_of_examples(tf, examples):
    from models import dlrm

    model = built()
    features, _ = batch(5)
    whole = model(tensors(tf, features)).numpy()
    part = tf.nest.map_structure(lambda array: tf.constant(array[:examples]), features)
    found = tf.function(lambda some: dlrm.logits(model, some))(part)
    np.testing.assert_allclose(found, whole[:examples], rtol=1e-5, atol=1e-6)


@needs_tf_keras
def test_it_trains_compiled_by_xla(tf):
    """As on a TPU: shapes are static."""
    model = built()
    data = tensors(tf, batch(4))
    compiled = tf.function(lambda part: TASK.loss_fn(model, part), jit_compile=True)(data)
    assert float(compiled) == pytest.approx(float(TASK.loss_fn(model, data)), rel=1e-5)


def auc_by_counting(labels, scores):
    pairs = [(s > o) + 0.5 * (s == o) for s in scores[labels == 1] for o in scores[labels == 0]]
    return np.mean(pairs)


@one_keras
def test_measures_are_exact():
    rng = np.random.default_rng(0)
    labels, logits = rng.integers(0, 2, 200).astype("float32"), rng.normal(size=200).round(1).astype("float32")
    found = measures(labels, logits)
    assert found["auc"] == pytest.approx(auc_by_counting(labels, logits), rel=1e-12)
    assert found["loss"] == pytest.approx(cross_entropy(labels, logits).mean(), rel=1e-9)
    assert found["click_rate"] == labels.mean()
    assert found["predicted_click_rate"] == pytest.approx(np.mean(1 / (1 + np.exp(-logits.astype(float)))), rel=1e-9)
    far = measures(np.array([0.0, 1.0]), np.array([-2000.0, 2000.0]))
    assert (far["auc"], far["loss"], far["predicted_click_rate"]) == (1.0, 0.0, 0.5)


@one_keras
def test_a_diverged_model_is_judged_as_such():
    found = measures(np.array([0.0, 1.0]), np.array([np.nan, 1.0]))
    assert found["click_rate"] == 0.5 and all(np.isnan(found[name]) for name in ("auc", "loss", "predicted_click_rate"))


@one_keras
@pytest.mark.parametrize(("label", "what"), [(0.0, "none"), (1.0, "all")])
def test_labels_that_are_all_the_same_have_no_auc(label, what):
    with pytest.raises(ValueError, match=f"validation_examples=3: {what} of them are clicks, and an AUC needs both"):
        measures(np.full(3, label), np.zeros(3))


@needs_tf_keras
@pytest.mark.parametrize(("replicas", "examples"), [(1, 103), (2, 103), (2, 81), (3, 41)])
def test_a_model_is_judged_by_all_examples_over_all_replicas(tf, strategies, folder, replicas, examples):
    """Also where the last element, of 1 or 3 examples, leaves some replica nothing."""
    strategy = strategies(replicas)
    with strategy.scope():
        model = built()
    data = TASK.load(folder)
    seen = []
    found = TASK.judge(model, strategy)(data, 20, examples, seen.append)
    assert seen == [20] * (examples // 20) + [examples % 20]
    elements = list(data.validation(examples, examples).as_numpy_iterator())
    ((features, labels),) = elements
    expected = measures(labels, model(tensors(tf, features)).numpy())
    assert found == pytest.approx(expected, rel=1e-5)


@needs_tf_keras
def test_the_task_reads_what_was_prepared(folder):
    TASK.check_data(folder)
    data = TASK.load(folder)
    assert (data.examples, data.validation_examples) == (600, 103)
    assert data.training(8, 0, 0, 16).element_spec == TASK.element_spec(8)
    metadata = json.loads((folder / "metadata.json").read_text())
    assert TASK.ceiling(folder) == metadata["ceiling"]["expected_auc"] == pytest.approx(0.8, abs=0.05)
    assert TASK.data_fingerprint(folder) is not None


@one_keras
def test_data_of_other_tables_are_refused(folder):
    with pytest.raises(ValueError, match=r"table_sizes=\[9, 9, .* prepared with \[3, 4, "):
        Dlrm(table_sizes=9).check_data(folder)
    with pytest.raises(ValueError, match="--data-dir is missing"):
        TASK.check_data(None)


@needs_tf_keras
def test_the_signature_gives_what_the_model_does(tf, folder):
    model, data = TASK.build(), TASK.load(folder)
    inputs = TASK.serving_inputs(data)["serving_default"]
    assert inputs["dense_features"].shape == (8, 13) and inputs["sparse_features"].shape == (8, 26)
    ((features, _),) = data.validation(8, 8).as_numpy_iterator()
    answers = TASK.signatures(model)["serving_default"](**{name: tf.constant(value) for name, value in inputs.items()})
    np.testing.assert_allclose(answers["logits"], model(tensors(tf, features)), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(answers["probabilities"], 1 / (1 + np.exp(-answers["logits"].numpy())), rtol=1e-5)
    one = {name: tf.constant(value[:1]) for name, value in inputs.items()}
    np.testing.assert_allclose(TASK.signatures(model)["serving_default"](**one)["logits"], answers["logits"][:1], rtol=1e-5)


def experiment(task):
    return Experiment(name="clicks", task=task, policy=FixedBatch(batch_size=64), epochs=1, micro_batch_size=8,
                      reference_batch_size=64, learning_rate=0.1)  # fmt: skip


@one_keras
def test_settings_survive_json():
    made = experiment(TASK)
    again = Experiment.from_dict(json.loads(json.dumps(made.as_dict())))
    assert again == made and again.task.table_sizes == SIZES and again.task.top_mlp == (5, 3, 1)


@one_keras
def test_settings_are_set_from_the_command_line():
    made = apply_overrides(experiment(Dlrm()), ["task.table_sizes=100", "task.bottom_mlp=(32, 64)"])
    assert made.task.table_sizes == (100,) * 26 and made.task.bottom_mlp == (32, 64)
    assert apply_overrides(made, [f"task.table_sizes={SIZES}"]).task.table_sizes == SIZES
    whole = apply_overrides(made, ["task=Dlrm(table_sizes=7, embedding_dimension=2, bottom_mlp=(2,), top_mlp=(1,))"])
    assert whole.task == Dlrm(table_sizes=(7,) * 26, embedding_dimension=2, bottom_mlp=(2,), top_mlp=(1,))


@one_keras
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"table_sizes": 1}, "1 among the table sizes"),
        ({"table_sizes": (5, 5)}, "2 table sizes: expected 26"),
        ({"embedding_dimension": 16}, r"bottom_mlp=\(512, 256, 64\): expected widths of layers, the last one 16"),
        ({"bottom_mlp": ()}, r"bottom_mlp=\(\): expected widths of layers, the last one 64"),
        ({"bottom_mlp": (0, 64)}, r"bottom_mlp=\(0, 64\): expected widths"),
        ({"top_mlp": (512, 2)}, r"top_mlp=\(512, 2\): expected widths of layers, the last one 1"),
    ],
)
def test_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Dlrm(**settings)
