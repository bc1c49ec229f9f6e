"""Inference engines that are not ours, for tests: xpyd-sim, and real llama.cpp with a tiny random model.

Starts and kills processes, writes the model file. Those processes run `python -m
forebay_sandbox.testing.foreign_engines`: each engine lives inside a Python process of ours and ends with its parent.
"""

from __future__ import annotations

import importlib.util
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from forebay_sandbox.engine.process import read_line, wait_until_healthy
from forebay_sandbox.errors import PrerequisiteMissingError
from forebay_sandbox.parent import exit_with_parent

if TYPE_CHECKING:
    from collections.abc import Iterator

XPYD_MODEL = "xpyd"
LLAMACPP_MODEL = "tiny"
_MODULE = "forebay_sandbox.testing.foreign_engines"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignEngine:
    """A running engine. `url` is without /v1; both engines have /health, /v1/models and /metrics."""

    url: str
    model: str
    process: subprocess.Popen[bytes]


@contextmanager
def running_xpyd(
    *, max_num_seqs: int = 8, decode_delay_per_token_ms: float = 5.0, prefill_delay_ms: float = 10.0
) -> Iterator[ForeignEngine]:
    """xpyd-sim with its batching scheduler, model XPYD_MODEL. It keeps a slot after its client has left."""
    _require("xpyd_sim")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-P", "-m", _MODULE, "xpyd", "serve", "--scheduling", "--host=127.0.0.1"]
    command += [f"--port={port}", f"--model={XPYD_MODEL}", f"--max-num-seqs={max_num_seqs}"]
    command += [f"--decode-delay-per-token-ms={decode_delay_per_token_ms}", f"--prefill-delay-ms={prefill_delay_ms}"]
    # Its log, a line for each request, goes nowhere.
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_healthy(url, process)
        yield ForeignEngine(url=url, model=XPYD_MODEL, process=process)
    finally:
        _kill(process)


@contextmanager
def running_llamacpp(folder: Path, *, slots: int = 4, width: int = 64, layers: int = 2) -> Iterator[ForeignEngine]:
    """llama.cpp's own server, model LLAMACPP_MODEL, whose file is written into `folder`.

    The text is noise: ask with max_tokens and ignore_eos. Width 64 and 2 layers put out some 2,600 tokens a second,
    1024 and 8 (539 MB) 14 a second. A disconnect frees the slot.
    """
    _require("xllamacpp")
    _require("gguf")
    model_path = folder / f"random-{width}x{layers}.gguf"
    if not model_path.exists():
        write_random_model(model_path, width=width, layers=layers)
    command = [sys.executable, "-P", "-m", _MODULE, "llamacpp", str(model_path), str(slots)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    try:
        url = read_line(process)
        wait_until_healthy(url, process)
        yield ForeignEngine(url=url, model=LLAMACPP_MODEL, process=process)
    finally:
        _kill(process)


def write_random_model(path: Path, *, width: int, layers: int) -> None:
    """A llama model in GGUF, f32, random weights from a fixed seed, a vocabulary of bytes and a-z."""
    import numpy as np
    from gguf import GGUFWriter, TokenType

    control = [("<unk>", TokenType.UNKNOWN), ("<s>", TokenType.CONTROL), ("</s>", TokenType.CONTROL)]
    byte_tokens = [(f"<0x{byte:02X}>", TokenType.BYTE) for byte in range(256)]
    letters = [(chr(code), TokenType.NORMAL) for code in range(ord("a"), ord("z") + 1)]
    vocabulary = control + byte_tokens + letters
    heads, inner = 4, 2 * width

    writer = GGUFWriter(path, "llama")
    writer.add_name("random")
    writer.add_context_length(4096)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // heads)
    writer.add_vocab_size(len(vocabulary))
    writer.add_tokenizer_model("llama")
    writer.add_token_list([text for text, _ in vocabulary])
    writer.add_token_scores([0.0] * len(vocabulary))
    writer.add_token_types([kind for _, kind in vocabulary])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{% for message in messages %}{{ message['content'] }} {% endfor %}")

    chance = np.random.default_rng(0)
    shapes = {"token_embd": (len(vocabulary), width), "output": (len(vocabulary), width), "output_norm": (width,)}
    for layer in range(layers):
        block = f"blk.{layer}."
        shapes |= {block + name: (width, width) for name in ("attn_q", "attn_k", "attn_v", "attn_output")}
        shapes |= {block + "ffn_gate": (inner, width), block + "ffn_up": (inner, width)}
        shapes |= {block + "ffn_down": (width, inner), block + "attn_norm": (width,), block + "ffn_norm": (width,)}
    for name, shape in shapes.items():
        values = np.ones(shape) if name.endswith("norm") else chance.standard_normal(shape) * 0.02
        writer.add_tensor(f"{name}.weight", values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _require(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise PrerequisiteMissingError(f"the package {package} is not installed; it is part of requirements/dev.in")


def _kill(process: subprocess.Popen[bytes]) -> None:
    """At once: they have nothing to lose, and a polite end waits for open connections."""
    process.kill()
    process.communicate()


def _serve_llamacpp(model_path: str, slots: int) -> None:
    from xllamacpp import CommonParams, Server  # type: ignore[import-untyped]

    params = CommonParams()
    params.model.path = model_path
    params.model_alias = {LLAMACPP_MODEL}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx = 2048 * slots
    params.n_parallel = slots
    params.n_threads_http = slots + 4
    params.endpoint_metrics = True
    params.offline = True
    params.ui = False
    params.warmup = False
    params.verbosity = 1
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    server = Server(params)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    signal.pause()


def main() -> None:
    """Be the engine that the arguments name, until told to stop or the parent is gone."""
    exit_with_parent()
    match sys.argv[1:]:
        case ["xpyd", *arguments]:
            from xpyd_sim.cli import main as xpyd_main  # type: ignore[import-untyped]

            xpyd_main(arguments)
        case ["llamacpp", model_path, slots]:
            _serve_llamacpp(model_path, int(slots))
        case arguments:
            sys.exit(f"usage: xpyd ARGUMENTS | llamacpp MODEL SLOTS, not {arguments}")


if __name__ == "__main__":
    main()
