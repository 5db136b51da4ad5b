"""Policies for tests."""

import dataclasses

import tf_simigrad as sg


@dataclasses.dataclass(frozen=True)
class Cycle(sg.Policy):
    """Batch sizes in turn, whatever the gradients say."""

    batch_sizes: tuple[int, ...]
    needs_similarity = False

    @property
    def min_batch_size(self):
        return min(self.batch_sizes)

    @property
    def max_batch_size(self):
        return max(self.batch_sizes)

    @property
    def initial_batch_size(self):
        return self.batch_sizes[0]

    def next_state(self, state, report):
        turn = int(state.memory.get("turn", 0)) + 1
        return dataclasses.replace(
            state, wanted_batch_size=self.batch_sizes[turn % len(self.batch_sizes)], memory={"turn": turn}
        )
