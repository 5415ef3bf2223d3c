"""The engine of a worker's history behind the live shell: a ``Backend`` whose KV are token ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headway.engine import Buffer, EngineInfo, IncomingKv, PassFailure
from headway.errors import invalid
from headway.forward_pass import ForwardPass, PassResult
from proof.vopr.paged import PagedEngine
from proof.vopr.scenario import BLOCK_SIZE
from proof.vopr.world import DEVICE_FAILED, ShellWorld, VirtualMachine

TOKEN_BYTES = 4
_BLOCKS_A_PIECE = 4


class MemoryEngine:
    """One worker's device, on virtual time: its thread says how long a pass takes."""

    def __init__(self, world: ShellWorld, machine: VirtualMachine) -> None:
        shape = world.scenario.shape
        units = shape.num_units
        self.info = EngineInfo(
            num_blocks=units * shape.num_blocks,
            num_host_blocks=units * shape.host_blocks,
            block_size=BLOCK_SIZE,
            kv_bytes_per_token=TOKEN_BYTES,
            max_model_len=shape.num_blocks * BLOCK_SIZE,
            eos_token_ids=(),
            dtype="float32",
            kernels="memory",
            swaps_beside=shape.swaps_beside,
        )
        self._world = world
        self._machine = machine
        self._paged = PagedEngine(self.info.num_blocks, self.info.num_host_blocks, BLOCK_SIZE)
        self._num_expected = 0

    def expect(self, forward_pass: ForwardPass) -> None:
        """Save what leaves its blocks at once: nobody writes into them before."""
        hit = self._world.hit
        if forward_pass.swapped_out:
            hit("KV goes to host memory")
        if forward_pass.swapped_in:
            hit("KV comes back from host memory")
        if forward_pass.saved:
            hit("a prefix is saved to host memory")
        if self._num_expected:
            hit("a pass is planned ahead")
        self._num_expected += 1
        self._paged.begin(forward_pass)

    def run(self, forward_pass: ForwardPass) -> PassResult:
        """Compute a pass, at its end."""
        self._num_expected -= 1
        self._world.num_passes += 1
        machine, world = self._machine, self._world
        self._paged.bring_back(forward_pass)
        try:
            if machine.pass_failures:
                machine.pass_failures -= 1
                keys = [item.key for item in forward_pass.items[:1]]
                raise PassFailure(keys, DEVICE_FAILED)
            return self._paged.run(forward_pass, machine.pass_seconds(forward_pass))
        except PassFailure:
            world.hit("a pass fails")
            world.failures.append(world.loop.time())
            self._paged.failed()
            raise

    def kv_shape(self, num_blocks: int) -> tuple[int, ...]:
        """Return (layers, keys, tokens, heads, width) of blocks."""
        return 1, 1, num_blocks * BLOCK_SIZE, 1, 1

    def read_kv(self, block_ids: Sequence[int], *, from_host: bool = False) -> Iterator[memoryview]:
        """Yield the blocks' tokens in pieces, each read when it is asked for."""
        for start in range(0, len(block_ids), _BLOCKS_A_PIECE):
            part = block_ids[start : start + _BLOCKS_A_PIECE]
            yield memoryview(self._paged.read(part, from_host=from_host))

    def kv_writer(self, kv: IncomingKv) -> _Sink:
        """Return a sink for ``kv``."""
        if kv.to_host:
            self._world.hit("KV arrives in host memory")
        return _Sink(self._paged, kv)

    def close(self) -> None:
        """Do nothing."""


class _Sink:
    def __init__(self, paged: PagedEngine, kv: IncomingKv) -> None:
        self._paged, self._kv = paged, kv
        self._num_bytes = kv.shape[2] * TOKEN_BYTES
        self._data = bytearray()

    def feed(self, data: Buffer) -> None:
        """Take the next bytes."""
        self._data += data
        self._require(len(self._data) <= self._num_bytes)

    def finish(self) -> None:
        """Write all of it."""
        self._require(len(self._data) == self._num_bytes)
        kv, data = self._kv, bytes(self._data)
        self._paged.write(kv.block_ids, data, kv.first_token, kv.num_tokens, to_host=kv.to_host)

    def _require(self, holds: bool) -> None:
        if not holds:
            raise invalid("the number of KV bytes", len(self._data), str(self._num_bytes))
