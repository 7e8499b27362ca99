"""Commands that start vLLM themselves: `serve`, `coldstart`, `kv-scaling`."""

from __future__ import annotations

from pathlib import Path

from harness.cli.parsing import Subparsers, add_command
from harness.lifecycle.serve_presets import NIXL, PRESETS, gpu_parts
from harness.run.option import Option, declare, level_list, number_option
from harness.run.option_table import OUTPUT, START


def add_serve(commands: Subparsers) -> None:
    parser = add_command(commands, "serve", "harness.cli.serve_work:serve")
    options = (
        *START,
        Option(
            "--preset",
            "Start with this preset. Default: vLLM's own settings.",
            choices=tuple(PRESETS),
        ),
        number_option(
            "--port", "Serve on this port; 0 takes any free port.", 8000, min_value=0, example=8000
        ),
        Option(
            "--prefill-gpus",
            "With --preset disaggregated: prefill on these GPUs, a server for each part: 0,1/2,3.",
            gpu_parts,
            "GPUS",
            "0",
        ),
        Option(
            "--decode-gpus",
            "With --preset disaggregated: decode on these GPUs.",
            gpu_parts,
            "GPUS",
            "1",
        ),
        Option(
            "--connector",
            "With --preset disaggregated: hand over KV caches with this connector of vLLM's.",
            str,
            "NAME",
            NIXL,
        ),
        Option("--log", "Write vLLM's log to this file.", Path, "FILE", "vllm.log"),
    )
    declare(parser, options)


def add_coldstart(commands: Subparsers) -> None:
    parser = add_command(commands, "coldstart", "harness.cli.serve_work:coldstart")
    drop_caches = "Empty the page cache first, and start again when it is warm."
    options = (
        *START,
        Option("--drop-caches", drop_caches, None),
        number_option("--prompt-tokens", "Send prompts of N tokens.", 512),
        number_option("--output-tokens", "Ask for N tokens.", 32),
        OUTPUT[0],
    )
    declare(parser, options)


def add_kv_scaling(commands: Subparsers) -> None:
    parser = add_command(commands, "kv-scaling", "harness.cli.serve_work:kv_scaling")
    lengths = level_list("--lengths")
    options = (
        *START,
        Option(
            "--lengths",
            "Start with each of these --max-model-len.",
            lengths,
            "N,N,...",
            "512,1024,2048,4096",
        ),
        OUTPUT[0],
    )
    declare(parser, options)
