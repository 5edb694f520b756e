"""PyTorch jobs whose number of ranks changes: gloo on CPUs, NCCL where there are GPUs.

    from trimtab.training.torch import ElasticTraining, device

    model = Net().to(device())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = ElasticTraining(model, optimizer, dataset)
    for inputs, targets in training:
        training.step(loss_function(model(inputs), targets))

Each turn of the loop has this rank's samples of a step, or of one of its `micro_batches`; the loss is their
mean.
`step` adds the gradients of all ranks, counts each sample once, moves the optimiser, reports, and keeps a
checkpoint when that is due. When all samples were trained on the loop ends, and every rank goes on behind it:

    if training.job.rank == 0:
        torch.save(model.state_dict(), "model.pt")

A job that loses its slots, or whose run is stopped, ends inside the loop, at a checkpoint.

The noise of the gradient comes from the norms of local gradients and of their mean: with several ranks from
theirs, with one from its micro-batches, of which it then takes two at least.
Source: McCandlish et al., An Empirical Model of Large-Batch Training, 2018, appendix A.1.

Gradients are added in one all-reduce after the backward pass, without overlap with it. Buffers, such as the
running means of batch normalisation, are those of rank 0.
"""

from __future__ import annotations

import atexit
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from trimtab.errors import MissingExtra
from trimtab.training.elastic import ElasticJob
from trimtab.training.gradient_norms import NoiseScale
from trimtab.training.runner.rank_protocol import SAVE, STOP

try:
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader, default_collate
except ModuleNotFoundError as missing:
    raise MissingExtra("needs torch", expected="pip install torch") from missing

_STATE: Final = "state.pt"


def device() -> torch.device:
    """Where this rank computes: the GPU of its local rank, else the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    chosen = torch.device("cuda", ElasticJob().local_rank)
    torch.cuda.set_device(chosen)
    return chosen


class ElasticTraining:
    """A job's model, optimiser and data.

    Attributes:
        job: the rank's part of the job.
        loss: mean loss of the last step over all ranks.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        data: Any,
        *,
        samples: int = 0,
        batch: int = 0,
        micro_batches: int = 1,
        seed: int = 0,
        also: Mapping[str, Any] | None = None,
    ) -> None:
        """`data`: a dataset with length and items, or a DataLoader of one, whose batch size then holds.

        `samples` in all and `batch` of a step hold where the run's file says none. `also`: what else has a
        state, such as a schedule of learning rates.
        """
        is_loader = isinstance(data, DataLoader)
        self._data = data.dataset if is_loader else data
        self._collate = data.collate_fn if is_loader else default_collate
        self.job = ElasticJob(samples or len(self._data), batch or (data.batch_size or 1 if is_loader else 1))
        self._model, self._optimizer, self._also = model, optimizer, dict(also or {})
        self._seed, self._orders = seed, dict[int, Any]()
        self._micro_batches = max(micro_batches, self.job.accumulation + 1, 2 if self.job.world == 1 else 1)
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._device = self._parameters[0].device
        self._noise = NoiseScale()
        self.loss = math.nan
        self._part, self._sizes = 0, list[int]()
        self._step_loss, self._small_sqr = 0.0, list[float]()
        self._before: torch.Tensor | None = None  # gradient of the earlier micro-batches
        self._connect()
        self._load()

    def _connect(self) -> None:
        if self.job.world > 1 and not dist.is_initialized():
            dist.init_process_group("nccl" if self._device.type == "cuda" else "gloo")
            atexit.register(dist.destroy_process_group)

    def _load(self) -> None:
        if self.job.resume_from is not None:
            state = torch.load(self.job.resume_from / _STATE, map_location=self._device, weights_only=True)
            for name, part in self._parts().items():
                part.load_state_dict(state[name])
        elif self.job.world > 1:
            for tensor in (*self._model.parameters(), *self._model.buffers()):
                dist.broadcast(tensor.data, 0)

    def _parts(self) -> dict[str, Any]:
        return {"model": self._model, "optimizer": self._optimizer, **self._also}

    def _save(self, folder: Path) -> None:
        torch.save({name: part.state_dict() for name, part in self._parts().items()}, folder / _STATE)

    def __iter__(self) -> Iterator[Any]:
        """The batches of this rank, to the end of the job."""
        self._optimizer.zero_grad()
        while not self.job.is_done:
            numbers = self.job.shard()
            size = -(-len(numbers) // self._micro_batches) or 1
            parts = [numbers[k : k + size] for k in range(0, len(numbers), size)]
            self._sizes, self._part = [len(part) for part in parts], 0
            for k, part in enumerate(parts):
                yield self._moved(self._collate([self._data[self._item(n)] for n in part]))
                if self._part != k + 1:
                    raise RuntimeError("a batch without training.step(loss)")
            self._all_ranks()
        self.job.finish(self._save)

    def _item(self, number: int) -> int:
        """The item of a sample: all items once in each epoch, in an order of its own."""
        epoch, at = divmod(number, len(self._data))
        if epoch not in self._orders:
            generator = torch.Generator().manual_seed(self._seed + epoch)
            self._orders = {epoch: torch.randperm(len(self._data), generator=generator)}
        return int(self._orders[epoch][at])

    def _moved(self, batch: Any) -> Any:
        if isinstance(batch, torch.Tensor):
            return batch.to(self._device)
        if isinstance(batch, list | tuple):
            return [self._moved(part) for part in batch]
        if isinstance(batch, dict):
            return {key: self._moved(part) for key, part in batch.items()}
        return batch

    def step(self, loss: torch.Tensor) -> None:
        """The mean loss of the samples that were given: add its gradient."""
        share = self._sizes[self._part] / self.job.step_samples
        (loss * share).backward()
        self._step_loss += float(loss.detach()) * share
        self._part += 1
        if self.job.world == 1 and len(self._sizes) > 1:
            now = self._gradient()
            own = now if self._before is None else now - self._before
            self._small_sqr.append(float(own.square().sum()) / share**2)
            self._before = now

    def _gradient(self) -> torch.Tensor:
        """All gradients in one vector, a copy."""
        flat = (p.grad if p.grad is not None else torch.zeros_like(p) for p in self._parameters)
        return torch.cat([g.detach().reshape(-1).to(torch.float32) for g in flat])

    def _all_ranks(self) -> None:
        """Add gradients over the ranks, do the step, and what the ranks agree on."""
        job, total, own = self.job, self.job.step_samples, sum(self._sizes)
        wish, gradient = job.wish(), self._gradient()
        if job.world > 1:
            self._small_sqr = [float(gradient.square().sum()) * (total / own) ** 2] if own else []
        told = [self._step_loss, wish == STOP, wish == SAVE, sum(self._small_sqr), len(self._small_sqr)]
        vector = torch.cat([gradient, torch.tensor(told, dtype=torch.float32, device=self._device)])
        begun_s = time.perf_counter()
        if job.world > 1:
            dist.all_reduce(vector)
            self._scatter(vector)
        self.loss, stopping, saving, small_sqr, count = vector[-5:].tolist()
        sync_s = time.perf_counter() - begun_s
        noise = {}
        if count > 1:
            big_sqr = float(vector[:-5].square().sum())
            noise = self._noise.seen(small_sqr / count, total / count, big_sqr, total)
        self._optimizer_step()
        self._optimizer.zero_grad()
        self._step_loss, self._before, self._small_sqr = 0.0, None, []
        job.step_done(sync_s=sync_s if job.world > 1 else 0.0, **noise)
        job.obey(STOP if stopping else SAVE if saving else 0, self._save)

    def _optimizer_step(self) -> None:
        """With the learning rates of this batch; those that the program and its schedule know stay."""
        groups, factor = self._optimizer.param_groups, self.job.learning_rate_factor
        rates = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] *= factor
        self._optimizer.step()
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate

    def _scatter(self, vector: torch.Tensor) -> None:
        at = 0
        for parameter in self._parameters:
            part = vector[at : at + parameter.numel()].view_as(parameter).to(parameter.dtype)
            parameter.grad = part.clone()
            at += parameter.numel()
