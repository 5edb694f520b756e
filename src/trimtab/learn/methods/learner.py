"""What methods share: training in segments, checkpoints, networks over flat observations and rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from trimtab.errors import TrimtabError, UsageError

Floats = NDArray[np.float32]
Masks = NDArray[np.bool_]
Actions = NDArray[np.int64]
Env = VectorEnv[Any, Any, Any]


@dataclass(frozen=True)
class Progress:
    """One segment of training."""

    steps: int  # of all copies of the environment together, since the start
    reward: float  # mean of a step in this segment, as the environment gave it
    losses: Mapping[str, float]  # means over the updates of this segment


@dataclass(frozen=True)
class Step:
    """What one action in each of n copies led to."""

    observations: NDArray[Any]  # (n, …) before the actions
    masks: Masks  # (n, actions) what was allowed
    actions: Actions  # (n,)
    rewards: NDArray[np.float64]  # (n,) as the environment gave them
    ended: Masks  # (n,) the episode ended: nothing comes after
    cut: Masks  # (n,) the episode was cut off; `final` is where it would go on from
    final: NDArray[Any]  # (cut copies, …)


class Learner(ABC):
    """A method in training on a Gymnasium vector environment.

    Training runs in segments. Each resets the environment and takes its random numbers from the seed and the
    number of the segment, so a run that goes on from a checkpoint at the end of a segment gives the same
    weights, bit for bit, as one that was never interrupted.

    A discount of 1 with `average_reward` is the differential form, for tasks without an end: the average
    reward is estimated and subtracted from each reward. With a discount below 1 that is reward centring
    (Naik, Wan, Tomar and Sutton, Reinforcement Learning Conference 2024), which keeps values small.
    """

    def __init__(
        self,
        observations: gym.Space[Any],
        actions: gym.Space[Any],
        *,
        seed: int = 0,
        discount: float = 0.99,
        average_reward: bool = False,
        segment_steps: int = 65_536,
    ) -> None:
        """A new learner.

        Args:
            observations: space of one copy: flat (features,), rows (nodes, features), or discrete.
            actions: space of one copy, discrete.
            seed: of everything random, the environment included.
            discount: of the reward a step later, above 0, at most 1.
            average_reward: subtract the average reward.
            segment_steps: steps of all copies together in a segment.
        """
        if not isinstance(actions, gym.spaces.Discrete):
            raise UsageError("actions that are not numbered", value=actions, expected="a Discrete space")
        if not 0 < discount <= 1:
            raise UsageError("no discount", field="discount", value=discount, expected="above 0, at most 1")
        self.n_actions, self.shape = int(actions.n), tuple(observations.shape or ())
        self.seed, self.discount, self.average_reward = seed, discount, average_reward
        self.segment_steps = segment_steps
        self.steps = self.segment = 0
        self.average = 0.0  # reward of a step
        self._rng = np.random.default_rng(seed)
        self._left = 1.0  # share of the training still to come
        self._rewards: list[float] = []

    def train(self, env: Env, steps: int) -> Iterator[Progress]:
        """Train until `steps` have been made since the start; yields after each segment.

        Schedules (learning rate, exploration) run over `steps`: a run that goes on needs the same number.
        PyTorch is set to one thread, as sums over several threads differ from run to run.

        Raises:
            UsageError: the environment does not start a new episode in the step that ends one.
            TrimtabError: a loss or weight is not finite.
        """
        if env.metadata.get("autoreset_mode") is not AutoresetMode.SAME_STEP:
            raise UsageError(
                "the environment starts episodes late",
                field="autoreset_mode",
                value=env.metadata.get("autoreset_mode"),
                expected="AutoresetMode.SAME_STEP",
            )
        torch.set_num_threads(1)
        while self.steps < steps:
            self._rng = np.random.default_rng((self.seed, self.segment))
            observations, info = env.reset(seed=int(self._rng.integers(2**31)))
            self._now = observations, self._mask(info, len(observations))
            until, losses, self._rewards = min(self.steps + self.segment_steps, steps), [], []
            while self.steps < until:
                self._left = 1 - self.steps / steps
                losses.append(self._iterate(env))
            self.segment += 1
            means = {name: float(np.mean([loss[name] for loss in losses])) for name in losses[-1]}
            yield Progress(self.steps, float(np.mean(self._rewards)), means)

    @abstractmethod
    def _iterate(self, env: Env) -> dict[str, float]:
        """Some steps in the environment and the updates that belong to them; losses by name."""

    @abstractmethod
    def act(self, observations: NDArray[Any], masks: Masks) -> Actions:
        """(n,) the best actions as far as is learned, without exploring."""

    @abstractmethod
    def arrays(self) -> dict[str, NDArray[Any]]:
        """All that was learned and that training needs to go on."""

    @abstractmethod
    def _take(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `arrays` gave."""

    def checkpoint(self) -> dict[str, Any]:
        """All that a run needs to go on: `arrays` by name and `state`, plain numbers."""
        state = {"steps": self.steps, "segment": self.segment, "average": self.average}
        return {"arrays": {name: array.copy() for name, array in self.arrays().items()}, "state": state}

    def restore(self, checkpoint: Mapping[str, Any]) -> None:
        """Go on from a checkpoint of a learner with the same settings.

        Raises UsageError where an array is missing, too much, or of another shape.
        """
        own = {name: array.shape for name, array in self.arrays().items()}
        given = {name: array.shape for name, array in checkpoint["arrays"].items()}
        for name in own.keys() | given.keys():
            if own.get(name) != given.get(name):
                raise UsageError(
                    "a checkpoint of other settings",
                    field=name,
                    value=given.get(name),
                    expected=f"{own.get(name)}",
                )
        self.steps, self.segment = checkpoint["state"]["steps"], checkpoint["state"]["segment"]
        self.average = checkpoint["state"]["average"]
        self._take(checkpoint["arrays"])

    def _mask(self, info: Mapping[str, Any], n: int) -> Masks:
        """(n, actions) what is allowed; everything where the environment does not say."""
        mask = info.get("action_mask")
        return np.ones((n, self.n_actions), np.bool_) if mask is None else np.asarray(mask, np.bool_)

    def _step(self, env: Env, actions: Actions) -> Step:
        """Act in all copies."""
        before, masks = self._now
        observations, rewards, ended, cut, info = env.step(actions)
        final = np.stack(info["final_obs"][cut]) if cut.any() else observations[:0]
        self._now = observations, self._mask(info, len(observations))
        self.steps += len(actions)
        self._rewards.append(float(rewards.mean()))
        return Step(before, masks, actions, rewards, ended, cut & ~ended, final)

    def _explore(self, greedy: Actions, masks: Masks, share: float) -> Actions:
        """`greedy` actions, but for a `share` of them any that is allowed."""
        keys = self._rng.random(masks.shape)
        at_random = np.where(masks, keys, -1.0).argmax(axis=1)
        return np.where(self._rng.random(len(greedy)) < share, at_random, greedy)


class Network(torch.nn.Module):
    """Scores of actions, or a value, from observations of either shape.

    Flat observations (n, features) pass a perceptron. Rows (n, nodes, features) pass the same perceptron
    each; a node's score is made of its own outcome and the mean over all nodes, other scores of the mean
    alone, so the number of weights does not depend on the number of nodes.

    Scores that predict rewards are made of normalised ones by `level` and `spread`, which follow the targets
    while the scores stay what they were (Pop-Art: van Hasselt et al., Learning values across many orders of
    magnitude, NeurIPS 2016).
    """

    def __init__(self, shape: tuple[int, ...], n_scores: int, hidden: tuple[int, ...], seed: int) -> None:
        """A network with small last weights, so that all scores are nearly equal at first.

        Args:
            shape: of one observation.
            n_scores: actions, or 1 for a value.
            hidden: widths of the layers.
            seed: of the first weights.
        """
        super().__init__()
        of_rows = len(shape) == 2 and n_scores >= shape[0]  # a value, of all nodes, is none of theirs
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            widths = [shape[-1], *hidden]
            layers = [
                layer for a, b in pairwise(widths) for layer in (torch.nn.Linear(a, b), torch.nn.Tanh())
            ]
            self.body = torch.nn.Sequential(*layers)
            self.of_node = _last_layer(2 * widths[-1], 1) if of_rows else None
            n_others = n_scores - shape[0] if of_rows else n_scores
            self.of_all = _last_layer(widths[-1], n_others) if n_others else None
        self.register_buffer("range", torch.tensor([0.0, 0.0]))  # level, spread; no spread: none seen yet

    def predict(self, observations: NDArray[Any]) -> Any:
        """(n, scores) in units of the reward, without a gradient."""
        with torch.no_grad():
            return self(torch.from_numpy(observations)) * self.range[1] + self.range[0]

    @torch.no_grad()
    def normalise(self, targets: Any, share: float) -> Any:
        """`targets` in units of the network, whose range moves towards theirs by `share`; at first wholly."""
        now = torch.stack([targets.mean(), targets.std() + 1e-6])
        old = self.range.clone()
        self.range.lerp_(now, share if old[1] else 1.0)
        for layer in (self.of_all, self.of_node):
            if layer is not None and old[1]:
                layer.weight.mul_(old[1] / self.range[1])
                layer.bias.mul_(old[1]).add_(old[0] - self.range[0]).div_(self.range[1])
        return (targets - self.range[0]) / self.range[1]

    def forward(self, observations: Any) -> Any:
        """(n, scores)."""
        features = self.body(observations)
        mean = features.mean(dim=-2) if features.dim() == 3 else features
        scores = [] if self.of_all is None else [self.of_all(mean)]
        if self.of_node is not None:
            both = torch.cat([features, mean.unsqueeze(-2).expand_as(features)], dim=-1)
            scores.insert(0, self.of_node(both).squeeze(-1))
        return torch.cat(scores, dim=-1)


def _last_layer(inputs: int, outputs: int) -> Any:
    layer = torch.nn.Linear(inputs, outputs)
    with torch.no_grad():
        layer.weight.mul_(0.01)
        layer.bias.zero_()
    return layer


def masked(scores: Any, masks: Any) -> Any:
    """`scores` with those of forbidden actions so low that they are never chosen."""
    return torch.where(masks, scores, torch.full_like(scores, -1e9))


class Adam:
    """The weights of networks as one vector, improved by Adam (Kingma and Ba, ICLR 2015, algorithm 1)."""

    DECAY_MEAN, DECAY_SQUARE, LEAST = 0.9, 0.999, 1e-8

    def __init__(self, *networks: Any, largest_norm: float = np.inf) -> None:
        """Adam on all weights of `networks`; gradients longer than `largest_norm` are shortened to it."""
        self._parameters = [p for network in networks for p in network.parameters()]
        self._largest_norm = largest_norm
        self.weights = torch.nn.utils.parameters_to_vector(self._parameters).detach().clone()
        torch.nn.utils.vector_to_parameters(
            self.weights, self._parameters
        )  # they are views of it from now on
        self._mean, self._square = torch.zeros_like(self.weights), torch.zeros_like(self.weights)
        self._count = 0

    def descend(self, loss: Any, rate: float) -> None:
        """One step against the gradient of `loss`. Raises TrimtabError where the gradient is not finite."""
        gradients = torch.autograd.grad(loss, self._parameters)
        self.step(torch.cat([gradient.reshape(-1) for gradient in gradients]), rate)

    def step(self, gradient: Any, rate: float) -> None:
        """One step against `gradient` (weights,)."""
        norm = float(gradient.norm())
        if not np.isfinite(norm):
            raise TrimtabError(
                f"training has failed: the gradient of update {self._count + 1} is {norm}, for rewards "
                "that are not finite or too high a rate; go on from the last checkpoint with a lower rate"
            )
        gradient = gradient * min(1.0, self._largest_norm / max(norm, self.LEAST))
        self._count += 1
        self._mean.lerp_(gradient, 1 - self.DECAY_MEAN)
        self._square.lerp_(gradient * gradient, 1 - self.DECAY_SQUARE)
        mean = self._mean / (1 - self.DECAY_MEAN**self._count)
        root = (self._square / (1 - self.DECAY_SQUARE**self._count)).sqrt_()
        self.weights.sub_(rate * mean / root.add_(self.LEAST))

    def arrays(self, name: str) -> dict[str, NDArray[Any]]:
        """Weights, moments and number of updates, by names that start with `name`."""
        found = {"weights": self.weights, "mean": self._mean, "square": self._square}
        arrays = {f"{name}.{key}": value.numpy() for key, value in found.items()}
        return arrays | {f"{name}.count": np.array(self._count)}

    def take(self, arrays: Mapping[str, NDArray[Any]], name: str) -> None:
        """Go on from what `arrays` gave."""
        self.weights.copy_(torch.from_numpy(arrays[f"{name}.weights"]))
        self._mean.copy_(torch.from_numpy(arrays[f"{name}.mean"]))
        self._square.copy_(torch.from_numpy(arrays[f"{name}.square"]))
        self._count = int(arrays[f"{name}.count"])
