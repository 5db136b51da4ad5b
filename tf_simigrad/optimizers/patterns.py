"""Patterns that name variables by their paths."""

import logging
import re
from collections.abc import Sequence

_LOG = logging.getLogger("tf_simigrad")

BIASES_AND_NORMS = (r"(^|/)(bias|beta|gamma|scale)$",)
"""Biases and parameters of normalisations: the last component of the path is one of these words.

Neither ``"relative_attention_bias/embeddings"`` nor ``"scaled_dense/kernel"`` is caught.
"""


class Patterns:
    """Regular expressions; a variable is meant if one of them is found anywhere in its path.

    A path ends in ``"dense/kernel"``; Keras 3 puts the names of the enclosing models before it, so patterns are not to be
    anchored with ``^`` alone.

    Args:
        patterns: The regular expressions; none of them means no variable.
        owner: Whose argument they are, for messages: "LARS".
        argument: Its name, for messages: "exclude_from_decay".
        default: Those of the patterns that nobody asked for, so that ``build`` does not warn of them.

    Raises:
        ValueError: If they are not a list of strings, or one is no regular expression.
    """

    def __init__(self, patterns: Sequence[str], owner: str, argument: str, default: Sequence[str] = ()) -> None:
        listed = isinstance(patterns, Sequence) and not isinstance(patterns, (str, bytes))
        if not listed or not all(isinstance(pattern, str) for pattern in patterns):
            raise ValueError(
                f"{owner}: {argument}={patterns!r} must be a list of patterns, such as ['bias']; [] names no variable."
            )
        self.patterns = tuple(patterns)
        self._owner, self._argument, self._default = owner, argument, tuple(default)
        self._compiled = [self._compile(pattern) for pattern in self.patterns]

    def match(self, path: str) -> bool:
        """Whether one of the patterns is found in the path of a variable."""
        return any(pattern.search(path) for pattern in self._compiled)

    def build(self, paths: Sequence[str]) -> None:
        """Warns of each pattern that matches none of the paths of the trainable variables."""
        for pattern in self._compiled:
            if pattern.pattern not in self._default and not any(pattern.search(path) for path in paths):
                _LOG.warning(
                    "%s: the pattern %r in %s matches no trainable variable. They are: %s",
                    self._owner,
                    pattern.pattern,
                    self._argument,
                    ", ".join(paths),
                )

    def _compile(self, pattern: str) -> re.Pattern:
        try:
            return re.compile(pattern)
        except re.error as error:
            raise ValueError(
                f"{self._owner}: the pattern {pattern!r} in {self._argument} is no regular expression: {error}. "
                f"Escape what is meant literally: {re.escape(pattern)!r}."
            ) from error
