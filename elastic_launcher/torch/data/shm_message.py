"""Sends a batch from one process to another over a Unix socket, its large tensors and arrays in memory they share.

That memory has no name (memfd): nothing is left in /dev/shm or /tmp when either side is killed at any moment, and a
container's small /dev/shm is no limit. Each large tensor is mapped by itself, so that keeping one keeps no other.
"""

from __future__ import annotations

import ctypes
import errno
import io
import itertools
import mmap
import os
import pickle
import socket
import struct
import weakref
from typing import Any

import torch

INLINE_BYTES = 8 * 1024  # up to here a parcel goes through the socket itself
LARGE_BYTES = 64 * 1024  # from here on a tensor or array has pages of its own
_HEAD = struct.Struct("<QI")  # the parcel's number, and how many lengths its memory begins with (0: it has none)
_DESCRIPTOR = struct.Struct("i")
_PAGE = mmap.PAGESIZE

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_MAP_FAILED = ctypes.c_void_p(-1).value


def open_line() -> tuple[socket.socket, socket.socket]:
    """Returns the two ends of a line; each parcel is one message, which goes to exactly one of an end's readers."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class _Pickler(pickle.Pickler):
    """Leaves large tensors and arrays out of the stream, in ``large``."""

    def __init__(self, stream: io.BytesIO) -> None:
        self.large: list[memoryview] = []
        super().__init__(stream, protocol=5, buffer_callback=self._keep_in_stream)

    def _keep_in_stream(self, buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < LARGE_BYTES:
            return True
        self.large.append(view)
        return False

    def reducer_override(self, thing: Any) -> Any:
        plain = type(thing) is torch.Tensor and thing.layout is torch.strided and thing.device.type == "cpu"
        if not plain or thing.requires_grad or thing.is_quantized or thing.is_nested or not thing.numel():
            return NotImplemented
        tensor = thing.resolve_conj().resolve_neg()
        if not tensor.is_contiguous():
            tensor = tensor.clone()  # without gaps; the order of its dimensions in memory stays
        flat = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()
        return _tensor, (pickle.PickleBuffer(flat), tensor.dtype, tuple(tensor.shape), tensor.stride())


def _tensor(memory: Any, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(memory, dtype=dtype).as_strided(shape, stride)


def _mapped(memory: int, offset: int, length: int) -> Any:
    """Maps a part of the shared memory; the mapping goes when the last that uses it goes, and holds no descriptor."""
    address = _libc.mmap(None, length, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, memory, offset)
    if address == _MAP_FAILED:
        code = ctypes.get_errno()
        raise OSError(code, f"can't map {length} bytes of a batch: {os.strerror(code)}")
    mapping = (ctypes.c_ubyte * length).from_address(address)
    weakref.finalize(mapping, _libc.munmap, address, length).atexit = False
    return mapping


def _write(memory: int, data: bytes | memoryview, offset: int) -> None:
    rest = memoryview(data).cast("B")
    while rest:
        written = os.pwrite(memory, rest, offset)  # at most 2 GB at once
        rest, offset = rest[written:], offset + written


def _read(memory: int, length: int, offset: int) -> bytearray:
    data = bytearray(length)
    rest = memoryview(data)
    while rest:
        read = os.preadv(memory, [rest], offset)  # at most 2 GB at once
        if not read:
            raise EOFError("a batch in shared memory is cut short")
        rest, offset = rest[read:], offset + read
    return data


def _page_after(offset: int) -> int:
    return -(-offset // _PAGE) * _PAGE


def send(line: socket.socket, number: int, thing: Any, flags: int = 0) -> None:
    """Sends something that can be pickled, with a number of 64 bits; all of it or nothing.

    ``flags`` are those of `socket.send`; the line is one end of what `open_line` returned.

    Raises:
        BlockingIOError: With `socket.MSG_DONTWAIT`, if the line is full.
        OSError: If nobody can receive any more, or there is no memory.
        Exception: Whatever pickling ``thing`` raises.
    """
    stream = io.BytesIO()
    pickler = _Pickler(stream)
    pickler.dump(thing)
    flags |= socket.MSG_NOSIGNAL
    if not pickler.large and stream.tell() <= INLINE_BYTES:
        line.sendmsg([_HEAD.pack(number, 0), stream.getbuffer()], [], flags)
        return
    parts = [stream.getbuffer(), *pickler.large]
    memory = os.memfd_create("elastic-batch")
    try:
        lengths = struct.pack(f"<{len(parts)}Q", *(part.nbytes for part in parts))
        _write(memory, lengths, 0)
        offset = len(lengths)
        for part in parts:
            _write(memory, part, offset)
            offset = _page_after(offset + part.nbytes)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, _DESCRIPTOR.pack(memory))  # `socket.send_fds` drops its flags
        line.sendmsg([_HEAD.pack(number, len(parts))], [rights], flags)
    finally:
        os.close(memory)


def receive(line: socket.socket, flags: int = 0) -> ShmMessage:
    """Returns the next parcel, unopened, from one end of what `open_line` returned; for ``flags`` see `socket.recv`.

    Raises:
        BlockingIOError: With `socket.MSG_DONTWAIT`, if there is none.
        EOFError: If nobody can send any more.
        OSError: If this process can open no more files.
    """
    message, rights, _, _ = line.recvmsg(
        _HEAD.size + INLINE_BYTES, socket.CMSG_LEN(_DESCRIPTOR.size), flags | socket.MSG_CMSG_CLOEXEC
    )
    if not message:
        raise EOFError
    number, parts = _HEAD.unpack_from(message)
    if parts and not rights:
        raise OSError(errno.EMFILE, "a batch can't be had: this process has too many open files; raise `ulimit -n`")
    return ShmMessage(number, message[_HEAD.size :], _DESCRIPTOR.unpack(rights[0][2])[0] if parts else None, parts)


class ShmMessage:
    """Something received: its number, what came through the socket, and a descriptor of memory in so many parts."""

    def __init__(self, number: int, body: bytes, memory: int | None, parts: int) -> None:
        self.number = number
        self._body = body
        self._memory = memory
        self._parts = parts

    def open(self) -> Any:
        """Returns what was sent."""
        if self._memory is None:
            return pickle.loads(self._body)
        try:
            lengths = struct.unpack(f"<{self._parts}Q", os.pread(self._memory, 8 * self._parts, 0))
            offset = 8 * self._parts
            body = _read(self._memory, lengths[0], offset)
            large = []
            for before, length in itertools.pairwise(lengths):
                offset = _page_after(offset + before)
                large.append(_mapped(self._memory, offset, length))
            return pickle.loads(body, buffers=large)
        finally:
            self.drop()

    def drop(self) -> None:
        """Lets go of its memory; what was opened keeps its own."""
        if self._memory is not None:
            os.close(self._memory)
            self._memory = None

    def __del__(self) -> None:
        self.drop()
