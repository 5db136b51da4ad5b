"""Epochs whose order and augmentation are a function of (seed, epoch): a resumed run continues with the same batches.

Everything is drawn and done for a whole batch at a time, so that the pipeline keeps up with a small network.
"""

import tensorflow as tf

# Of the 50,000 training images, in units of 255.
CIFAR10_MEAN = (0.49140, 0.48216, 0.44653)
CIFAR10_STD = (0.24703, 0.24349, 0.26159)
PADDING = 4
NOISE_PER_EXAMPLE = 3


def standardise_cifar10(images):
    """uint8 [batch, 32, 32, 3] -> float32 with mean 0 and standard deviation 1 a channel over the training images."""
    mean, std = (tf.constant(values) * 255.0 for values in (CIFAR10_MEAN, CIFAR10_STD))
    return (tf.cast(images, tf.float32) - mean) / std


def crop_and_flip(images, noise):
    """The usual augmentation of CIFAR: pad by 4 pixels of zero, crop to the old size, mirror every other image.

    Args:
        images: uint8 or float32 [batch, height, width, channels].
        noise: float32 [batch, 3], uniform in [0, 1): vertical and horizontal shift, and whether to mirror.

    Returns:
        Images of the same shape and dtype.
    """
    height, width = images.shape[1:3]
    shift = tf.floor(noise[:, :2] * (2 * PADDING + 1)) - PADDING
    mirrored = noise[:, 2] < 0.5
    one, zero = tf.ones_like(noise[:, 0]), tf.zeros_like(noise[:, 0])
    # Rows of the map from output to input pixels: x' = a0 x + a2, y' = y + b2. Integers, so nothing is interpolated.
    a0 = tf.where(mirrored, -one, one)
    a2 = shift[:, 1] + tf.where(mirrored, (width - 1) * one, zero)
    transforms = tf.stack([a0, zero, a2, zero, one, shift[:, 0], zero, zero], axis=1)
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=images,
        transforms=transforms,
        output_shape=[height, width],
        fill_value=0.0,
        interpolation="NEAREST",
        fill_mode="CONSTANT",
    )


def _batches(x, y, order, noise, batch_size, drop_remainder, augment, standardise):
    def batch(indices, batch_noise):
        images = tf.gather(x, indices)
        images = augment(images, batch_noise) if augment else images
        return standardise(images) if standardise else images, tf.gather(y, indices)

    dataset = tf.data.Dataset.from_tensor_slices((order, noise)).batch(batch_size, drop_remainder)
    return dataset.map(batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def epochs_dataset(x, y, batch_size, seed, initial_epoch=0, augment=None, standardise=None, drop_remainder=True):
    """Endless epochs, each in its own order; used with `steps_per_epoch`.

    Epoch e is the same in every dataset built with the same seed, whichever epoch that dataset starts at: its order
    depends on (seed, e) only, and the noise of an example on (seed, e, index of the example) only.

    Args:
        x: Examples [n, ...].
        y: Labels [n].
        batch_size: Examples in one element, over all replicas.
        seed: Any integer.
        initial_epoch: The epoch the dataset starts with.
        augment: augment(examples, noise), see `crop_and_flip`, or None.
        standardise: standardise(examples), see `standardise_cifar10`, or None.
        drop_remainder: Whether an epoch ends with its last full batch.

    Returns:
        A `tf.data.Dataset` of (examples, labels).

    Raises:
        ValueError: If `batch_size` is not between 1 and the number of examples.
    """
    if not 1 <= batch_size <= len(x):
        raise ValueError(f"batch_size={batch_size}: expected 1 to {len(x)}, the number of examples")
    # Eager tensors are captured by reference; as NumPy arrays they would be copied into the graph.
    x, y = tf.convert_to_tensor(x), tf.convert_to_tensor(y)
    indices = tf.range(len(x))

    def epoch_batches(epoch):
        epoch_seed = tf.stack([tf.constant(seed, tf.int64), epoch])
        order = tf.random.experimental.stateless_shuffle(indices, epoch_seed)
        noise_seed = tf.random.experimental.stateless_fold_in(epoch_seed, tf.constant(1, tf.int64))
        noise = tf.random.stateless_uniform([len(x), NOISE_PER_EXAMPLE], noise_seed)
        return _batches(x, y, order, tf.gather(noise, order), batch_size, drop_remainder, augment, standardise)

    return shared_by_element(tf.data.Dataset.counter(initial_epoch).flat_map(epoch_batches).prefetch(tf.data.AUTOTUNE))


def shared_by_element(dataset):
    """Where several workers train together, each takes its part of every element: the elements are those of one process."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return dataset.with_options(options)


def evaluation_dataset(x, y, batch_size, standardise=None):
    """Every example once, in order.

    Args:
        x: Examples [n, ...].
        y: Labels [n].
        batch_size: Examples in one element, over all replicas; the last element may hold fewer.
        standardise: As for `epochs_dataset`.

    Returns:
        A `tf.data.Dataset` of (examples, labels).
    """
    x, y = tf.convert_to_tensor(x), tf.convert_to_tensor(y)
    # Where nothing remains, shapes are static.
    dataset = tf.data.Dataset.range(len(x)).batch(batch_size, drop_remainder=len(x) % batch_size == 0)

    def batch(indices):
        images = tf.gather(x, indices)
        return standardise(images) if standardise else images, tf.gather(y, indices)

    return shared_by_element(dataset.map(batch, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE))
