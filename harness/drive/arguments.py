"""The harness's own options on Locust's command line, and DriveOptions made of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.drive.clock import now_ns
from harness.drive.options import DriveOptions
from harness.errors import ConfigError
from harness.load.workloads import WORKLOADS, workload
from harness.measure.slo import Slo

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from locust.env import Environment

PREPARED = "harness_prepared"  # the master's finished options, on their way to the workers


def add_arguments(parser: ArgumentParser, **_: Any) -> None:
    """Listener of Locust's `init_command_line_parser`."""
    group = parser.add_argument_group("vllm-harness")
    group.add_argument(
        "--model", default="", help="the only one that the server lists, if left out"
    )
    group.add_argument(
        "--workload", default="", choices=["", *WORKLOADS], help="what is sent: lengths, prefixes"
    )
    group.add_argument("--prompt-tokens", type=int, default=0, help="mean; 0: the workload's own")
    group.add_argument("--output-tokens", type=int, default=0, help="mean; 0: the workload's own")
    group.add_argument(
        "--slo", action="append", default=[], help="such as ttft_p95=500ms; may be given again"
    )
    group.add_argument("--seed", type=int, default=1, help="of prompts, lengths and stagger")
    group.add_argument(
        "--api-key-env", default="VLLM_API_KEY", help="environment variable that holds the API key"
    )
    group.add_argument("--run-folder", default="", help="a new folder for the records")
    group.add_argument("--ca-file", default="", help="certificates to trust, PEM")
    group.add_argument("--insecure", action="store_true", help="do not verify the certificate")


def drive_options(environment: Environment) -> DriveOptions:
    """What the command line (or the web form) asks for. Raises ConfigError."""
    given: Any = environment.parsed_options
    if not environment.host:
        raise ConfigError(
            "no target was given: expected --host with the server's URL; "
            "try --host http://127.0.0.1:8000."
        )
    apis = {getattr(user_class, "api", "") for user_class in environment.user_classes} - {""}
    api = apis.pop() if len(apis) == 1 else "chat"
    row = workload(given.workload or api).sized(
        given.prompt_tokens or None, given.output_tokens or None
    )
    return DriveOptions(
        url=environment.host,
        model=given.model,
        workload=row.through(api),
        seed=given.seed,
        run_id=f"{now_ns():x}",
        key_source=given.api_key_env,
        ca_file=given.ca_file,
        insecure=given.insecure,
        run_folder=str(Path(given.run_folder).absolute()) if given.run_folder else "",
    )


def slos(environment: Environment) -> list[Slo]:
    """Every --slo, read. Raises ConfigError."""
    given: Any = environment.parsed_options
    return [Slo.parse(text) for text in given.slo]


def hand_over(environment: Environment, options: DriveOptions) -> None:
    """Locust sends unknown options from the master to its workers: so travel ours."""
    setattr(environment.parsed_options, PREPARED, options.to_json())


def forget(environment: Environment) -> None:
    """Before preparing anew: workers must not start with the options of the test before."""
    setattr(environment.parsed_options, PREPARED, None)


def handed_over(environment: Environment) -> DriveOptions | None:
    """What the master prepared; None when it could not."""
    data = getattr(environment.parsed_options, PREPARED, None)
    return DriveOptions.from_json(data) if data else None
