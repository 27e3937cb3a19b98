"""llama.cpp's C interface, from the wheel of xllamacpp, which exports its functions.

The wheel is used because it is the only one on the package index that has the C functions, needs no
compiler, and fits every version of Python (abi3). Its releases follow llama.cpp's every few weeks,
and llama.cpp's structures change without notice. Therefore the extra pins one release, and
`Library` refuses any other: it compares the bytes of the default parameters with the bytes of the
pinned release, and later the sizes of a new context with the requested sizes.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections import deque
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy

from app.extensions.llm.errors import LLMError, ModelLoadError
from app.extensions.llm.llama_cpp.package import PACKAGE, VERSION

MAX_SEQUENCES: Final = 256
"""Maximum sequences of a context, which is a constant of the library."""
PARAMETER_BYTES: Final = 512
"""Room for a structure of parameters, which is smaller.

A function reads only the part that it knows of an argument passed by value.
"""
CONTEXT_DEFAULTS: Final = bytes.fromhex(
    "0002000000080000000200000100000000000000000000000100000004000000"
    "0400000000000000ffffffffffffffffffffffffffffffff0000000000000000"
)
"""First bytes of the default parameters of a context: sizes, threads, and kinds."""
CONTEXT_FLAGS: Final = bytes.fromhex("000101010100")
"""Flags of the default parameters of a context; the last is `kv_unified`."""
CONTEXT_FLAGS_AT: Final = 136
UNIFIED_AT: Final = CONTEXT_FLAGS_AT + len(CONTEXT_FLAGS) - 1
MODEL_DEFAULTS: Final = bytes.fromhex("ffffffff01000000ffffffff")
"""Part of the default parameters of a model; the last number is `load_mode`: the library's choice.
"""
MODEL_DEFAULTS_AT: Final = 16
LOAD_MODE_AT: Final = MODEL_DEFAULTS_AT + len(MODEL_DEFAULTS) - 4
LOAD_COPY: Final = 0
"""The `load_mode` that copies the file."""
N_CTX_AT: Final = 0
N_BATCH_AT: Final = 4
N_UBATCH_AT: Final = 8
N_SEQ_MAX_AT: Final = 12
FLOAT_BYTES: Final = 4
LOG_ERROR: Final = 4
"""Level of errors in the library's log."""
MAX_LOG_LINES: Final = 20
MAX_LINE_LENGTH: Final = 300

Pointer = ctypes.c_void_p
Number = ctypes.c_int32
Size = ctypes.c_size_t

Bytes: TypeAlias = numpy.ndarray[Any, numpy.dtype[numpy.uint8]]
Logits: TypeAlias = numpy.ndarray[Any, numpy.dtype[numpy.float32]]

logger = logging.getLogger(__name__)


class Parameters(ctypes.Structure):
    """Parameters of a model or a context, as bytes; the engine knows a few of them."""

    _fields_ = (("content", ctypes.c_uint8 * PARAMETER_BYTES),)

    def set(self, position: int, value: int) -> None:
        """Sets a 32-bit number."""
        self.content[position : position + 4] = list(value.to_bytes(4, "little", signed=True))


class Batch(ctypes.Structure):
    """The library's `llama_batch`."""

    _fields_ = (
        ("n_tokens", Number),
        ("token", Pointer),
        ("embd", Pointer),
        ("pos", Pointer),
        ("n_seq_id", Pointer),
        ("seq_id", Pointer),
        ("logits", Pointer),
    )


LogCallback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, Pointer)


class Library:
    """The functions that the engine uses. `load_library` returns the only one.

    Raises:
        ModelLoadError: The wheel is missing, or not the pinned release.
    """

    def __init__(self) -> None:
        self._errors: deque[str] = deque(maxlen=MAX_LOG_LINES)
        try:
            installed = version(PACKAGE)
        except PackageNotFoundError:
            installed = None
        if installed != VERSION:
            raise ModelLoadError(
                f"llama.cpp is used from {PACKAGE} {VERSION}, but {installed or 'none'} is "
                f"installed: pip install {PACKAGE}=={VERSION}."
            )
        spec = find_spec(PACKAGE)
        assert spec is not None and spec.origin is not None
        [*files] = Path(spec.origin).parent.glob(f"{PACKAGE}.*.so")
        # Without it, a failed assertion of the library prints fifty lines from a debugger.
        os.environ.setdefault("GGML_NO_BACKTRACE", "1")
        try:
            self._functions = ctypes.CDLL(str(files[0]))
            self._declare()
        except (OSError, IndexError, AttributeError) as error:
            raise ModelLoadError(f"{PACKAGE} {VERSION} cannot be loaded: {error}.") from error
        self._check_structures()
        self._log = LogCallback(self._add_log_line)
        self.log_set(ctypes.cast(self._log, Pointer), None)
        self.backend_init()

    def take_errors(self) -> str:
        """Returns the library's latest errors as one line, and forgets them."""
        lines = [line for line in self._errors if line]
        self._errors.clear()
        return "; ".join(dict.fromkeys(lines))[:MAX_LINE_LENGTH] or "no reason was given"

    def _declare(self) -> None:
        declare = self._function
        self.log_set = declare("llama_log_set", None, Pointer, Pointer)
        self.backend_init = declare("llama_backend_init", None)
        self.model_default_params = declare("llama_model_default_params", Parameters)
        self.context_default_params = declare("llama_context_default_params", Parameters)
        self.model_load = declare(
            "llama_model_load_from_file", Pointer, ctypes.c_char_p, Parameters
        )
        self.model_free = declare("llama_model_free", None, Pointer)
        self.model_vocab = declare("llama_model_get_vocab", Pointer, Pointer)
        self.vocab_size = declare("llama_vocab_n_tokens", Number, Pointer)
        self.is_end = declare("llama_vocab_is_eog", ctypes.c_bool, Pointer, Number)
        self.has_encoder = declare("llama_model_has_encoder", ctypes.c_bool, Pointer)
        self.has_decoder = declare("llama_model_has_decoder", ctypes.c_bool, Pointer)
        self.window = declare("llama_model_n_swa", Number, Pointer)
        self.is_recurrent = declare("llama_model_is_recurrent", ctypes.c_bool, Pointer)
        self.is_hybrid = declare("llama_model_is_hybrid", ctypes.c_bool, Pointer)
        self.is_diffusion = declare("llama_model_is_diffusion", ctypes.c_bool, Pointer)
        self.context_init = declare("llama_init_from_model", Pointer, Pointer, Parameters)
        self.context_free = declare("llama_free", None, Pointer)
        self.memory = declare("llama_get_memory", Pointer, Pointer)
        self.n_ctx = declare("llama_n_ctx", ctypes.c_uint32, Pointer)
        self.n_ctx_seq = declare("llama_n_ctx_seq", ctypes.c_uint32, Pointer)
        self.n_batch = declare("llama_n_batch", ctypes.c_uint32, Pointer)
        self.n_seq_max = declare("llama_n_seq_max", ctypes.c_uint32, Pointer)
        self.set_threads = declare("llama_set_n_threads", None, Pointer, Number, Number)
        self.decode = declare("llama_decode", Number, Pointer, Batch)
        self.logits = declare("llama_get_logits", Pointer, Pointer)
        self.copy_cells = declare(
            "llama_memory_seq_cp", None, Pointer, Number, Number, Number, Number
        )
        self.remove_cells = declare(
            "llama_memory_seq_rm", ctypes.c_bool, Pointer, Number, Number, Number
        )
        self.state_size = declare("llama_state_seq_get_size", Size, Pointer, Number)
        self.get_state = declare("llama_state_seq_get_data", Size, Pointer, Pointer, Size, Number)
        self.set_state = declare("llama_state_seq_set_data", Size, Pointer, Pointer, Size, Number)

    def _function(self, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
        function: Any = getattr(self._functions, name)
        function.restype = result
        function.argtypes = arguments
        called: Callable[..., Any] = function
        return called

    def _check_structures(self) -> None:
        model = bytes(self.model_default_params().content)
        context = bytes(self.context_default_params().content)
        is_known = (
            model.startswith(MODEL_DEFAULTS, MODEL_DEFAULTS_AT)
            and context.startswith(CONTEXT_DEFAULTS)
            and context.startswith(CONTEXT_FLAGS, CONTEXT_FLAGS_AT)
        )
        if not is_known:
            raise ModelLoadError(
                f"The structures of {PACKAGE} {VERSION} on this machine are not the known ones."
            )

    def _add_log_line(self, level: int, text: bytes, _user_data: object) -> None:
        line = text.decode("utf-8", "replace").strip()
        if level == LOG_ERROR:
            self._errors.append(line)
        elif line:
            logger.debug("%s", line)


@cache
def load_library() -> Library:
    """Returns the library, loaded once, as it cannot be unloaded. Raises ModelLoadError."""
    return Library()


class Context:
    """A model, and room for the keys and values of `cells` tokens in some `sequences`.

    Raises:
        ModelLoadError: The library cannot load the model, or does not have the memory.
    """

    def __init__(
        self, library: Library, model: Pointer, cells: int, batch_tokens: int, sequences: int
    ) -> None:
        self._library = library
        parameters = library.context_default_params()
        parameters.set(N_CTX_AT, cells)
        parameters.set(N_BATCH_AT, batch_tokens)
        parameters.set(N_UBATCH_AT, batch_tokens)
        parameters.set(N_SEQ_MAX_AT, sequences)
        # One buffer for all sequences, so that a copied prefix takes no room.
        parameters.content[UNIFIED_AT] = 1
        pointer = library.context_init(model, parameters)
        if not pointer:
            raise ModelLoadError(
                f"llama.cpp cannot hold {cells} tokens: {library.take_errors()}. "
                "Use a smaller kv-cache-size."
            )
        self._pointer = pointer
        self.batch_tokens = batch_tokens
        """Maximum tokens of a decode."""
        sizes = (
            library.n_ctx(pointer) >= cells,
            library.n_ctx_seq(pointer) == library.n_ctx(pointer),  # unified
            library.n_batch(pointer) == batch_tokens,
            library.n_seq_max(pointer) == sequences,
        )
        if not all(sizes):
            self.close()
            raise ModelLoadError(f"{PACKAGE} {VERSION} did not take the sizes of a context.")
        self._memory = library.memory(pointer)
        self._vocab_size = library.vocab_size(library.model_vocab(model))
        self._tokens = numpy.zeros(batch_tokens, numpy.int32)
        self._positions = numpy.zeros(batch_tokens, numpy.int32)
        self._wanted = numpy.zeros(batch_tokens, numpy.int8)
        self._sequences = numpy.zeros(batch_tokens, numpy.int32)
        self._counts = numpy.ones(batch_tokens, numpy.int32)
        addresses = self._sequences.ctypes.data + 4 * numpy.arange(batch_tokens)
        self._addresses = addresses.astype(numpy.uint64)
        self._batch = Batch(
            token=self._tokens.ctypes.data,
            pos=self._positions.ctypes.data,
            n_seq_id=self._counts.ctypes.data,
            seq_id=self._addresses.ctypes.data,
            logits=self._wanted.ctypes.data,
        )
        """The arrays above, as the library takes them."""
        self._filled = 0
        self._threads = 0
        self._logits_address = 0
        self._logits = numpy.empty((0, self._vocab_size), numpy.float32)
        """The logits of the latest decode, whose place and size seldom change."""

    def close(self) -> None:
        """Frees the memory."""
        self._library.context_free(self._pointer)

    def use_threads(self, count: int) -> None:
        """Sets the number of threads of the next decodes."""
        if count != self._threads:
            self._library.set_threads(self._pointer, count, count)
            self._threads = count

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Lets the sequence `target` share the tokens `start` to `end` of `source`."""
        self._library.copy_cells(self._memory, source, target, start, end)

    def remove(self, sequence: int, start: int = 0, end: int = -1) -> None:
        """Removes the tokens `start` to `end` of a sequence; -1 is all that follow."""
        self._library.remove_cells(self._memory, sequence, start, end)

    def save(self, sequence: int) -> Bytes | None:
        """Returns the keys and values of a sequence, or None if the library fails."""
        size = self._library.state_size(self._pointer, sequence)
        content = numpy.empty(size, numpy.uint8)
        if self._library.get_state(self._pointer, content.ctypes.data, size, sequence) != size:
            return None
        return content

    def load(self, content: Bytes, sequence: int) -> bool:
        """Gives a sequence the tokens that `save` returned; returns False without room."""
        size = len(content)
        read = self._library.set_state(self._pointer, content.ctypes.data, size, sequence)
        return bool(read == size)

    @property
    def room(self) -> int:
        """Tokens that the batch can still take."""
        return self.batch_tokens - self._filled

    @property
    def has_tokens(self) -> bool:
        """True if the batch has tokens."""
        return self._filled > 0

    def add(self, sequence: int, start: int, tokens: list[int], first_wanted: int) -> None:
        """Adds tokens of a sequence to the batch.

        The logits after the tokens from `first_wanted` on are wanted.
        """
        first = self._filled
        last = first + len(tokens)
        self._filled = last
        if len(tokens) == 1:  # a decode: items take a fraction of the time of slices
            self._tokens[first] = tokens[0]
            self._positions[first] = start
            self._sequences[first] = sequence
            self._wanted[first] = first_wanted == 0
            return
        self._tokens[first:last] = tokens
        self._positions[first:last] = numpy.arange(start, start + len(tokens))
        self._sequences[first:last] = sequence
        self._wanted[first:last] = 0
        self._wanted[first + first_wanted : last] = 1

    def decode(self) -> int:
        """Computes the batch, and returns 0 or an error, after which the batch stays."""
        self._batch.n_tokens = self._filled
        status = int(self._library.decode(self._pointer, self._batch))
        if status == 0:
            self._filled = 0
        return status

    def drop_batch(self) -> None:
        """Removes all tokens from the batch."""
        self._filled = 0

    def logits(self, rows: int) -> Logits:
        """Returns the logits [rows, vocabulary] of the latest decode, valid until the next."""
        address = self._library.logits(self._pointer)
        if not address:
            raise LLMError(f"llama.cpp has no logits: {self._library.take_errors()}.")
        if address != self._logits_address or rows != len(self._logits):
            size = rows * self._vocab_size * FLOAT_BYTES
            content = (ctypes.c_char * size).from_address(address)
            logits = numpy.frombuffer(content, numpy.float32)
            self._logits = logits.reshape(rows, self._vocab_size)
            self._logits_address = address
        return self._logits
