"""The stack's files agree with each other: variables, images, secrets, what Compose is given."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

TOP = Path(__file__).parents[1]
COMPOSE = (TOP / "docker-compose.yml").read_text()
SERVICES = yaml.safe_load(COMPOSE)["services"]
EXAMPLE = dict(re.findall(r"^([A-Z_]+)=(.*)$", (TOP / ".env.example").read_text(), re.MULTILINE))
ONLY_COMPOSE = {"COMPOSE_PROFILES"}  # Compose reads it itself


def test_every_variable_is_described() -> None:
    """What docker-compose.yml reads stands in .env.example, and the other way round."""
    assert set(re.findall(r"\$\{([A-Z_]+)", COMPOSE)) | ONLY_COMPOSE == set(EXAMPLE)


def test_defaults_are_the_examples() -> None:
    """Where both give a value, they give the same one."""
    given = dict(re.findall(r"\$\{([A-Z_]+):-([^}]+)\}", COMPOSE))
    differs = {}
    for name, value in given.items():
        if EXAMPLE[name] != value:
            differs[name] = (value, EXAMPLE[name])
    assert differs == {}


def test_images_are_pinned_by_version() -> None:
    """No `latest`, and no tag that moves with it."""
    images = [service["image"] for service in SERVICES.values()]
    images = [image for image in images if not image.startswith("vllm-harness")]
    for name in ("Dockerfile", "Dockerfile.vllm"):
        text = (TOP / name).read_text()
        for variable, value in re.findall(r"^ARG (\w+)=(\S+)", text, re.MULTILINE):
            text = text.replace(f"${{{variable}}}", value)
        images += re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert [image for image in images if not re.search(r":v?\d+\.\d+\.\d+", image)] == []
    assert len(images) == 5


def test_every_service_is_watched_and_bounded() -> None:
    """A health check of its own or of its image, a limit of memory, few rights."""
    for name, service in SERVICES.items():
        has_own = service["image"].startswith("vllm-harness")
        assert "healthcheck" in service or has_own, name
        assert service["deploy"]["resources"]["limits"]["memory"], name
        assert service["cap_drop"] == ["ALL"]
        assert service["read_only"] is (name != "vllm")
    for name in ("Dockerfile", "Dockerfile.vllm"):
        assert "\nHEALTHCHECK " in (TOP / name).read_text()


def test_only_two_ports_are_published() -> None:
    """Locust's page and Grafana, on the loopback unless somebody says otherwise."""
    published = {name: s["ports"] for name, s in SERVICES.items() if "ports" in s}
    assert set(published) == {"locust-master", "grafana"}
    addresses = [address for (address,) in published.values()]
    assert all(address.startswith("${HARNESS_BIND:-127.0.0.1}:") for address in addresses)
    assert EXAMPLE["HARNESS_BIND"] == "127.0.0.1"


def test_gpus_are_reserved_in_profile_gpu_only() -> None:
    """So that the rest starts on a host without any."""
    reserve = {n for n, s in SERVICES.items() if "reservations" in s["deploy"]["resources"]}
    on_gpu = {name for name, s in SERVICES.items() if s.get("profiles") == ["gpu"]}
    assert reserve == on_gpu


def test_services_of_each_profile() -> None:
    """What no profile names starts always; neither server comes without its own."""
    found = {name: set(s.get("profiles", ())) for name, s in SERVICES.items()}
    assert found == {
        "locust-master": set(),
        "locust-worker": set(),
        "prometheus": set(),
        "vllm": {"gpu"},
        "exporter-gpu": {"gpu"},
        "engine": {"engine"},
        "exporter": {"engine", "url"},
        "grafana": {"grafana"},
        "knee": {"ci"},
    }


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """In a copy of what `make .env` reads."""
    for name in ("Makefile", ".env.example"):
        shutil.copy(TOP / name, folder)
    command = ("make", *arguments)
    return subprocess.run(command, cwd=folder, text=True, capture_output=True, check=False)


ELSEWHERE = ("PROFILES=url,grafana", "URL=http://a:8000")


@pytest.mark.parametrize(
    ("old", "new", "want"),
    [
        ("", "", [{"targets": ["a:8000"], "labels": {"__scheme__": "http"}}]),
        ("=http://a:8000", "=https://b:8001/v1/",
         [{"targets": ["b:8001"], "labels": {"__scheme__": "https"}}]),
        ("=url,grafana", "=grafana,engine", None),
    ],
)  # fmt: skip
def test_prometheus_scrapes_what_env_says_now(old, new, want, tmp_path: Path) -> None:
    """The target elsewhere follows .env after an edit, and goes with profile url."""
    assert make(tmp_path, ".env", *ELSEWHERE).returncode == 0
    env = tmp_path / ".env"
    env.write_text(env.read_text().replace(old, new) if old else env.read_text())
    assert make(tmp_path, "targets").returncode == 0
    file = tmp_path / "prometheus/targets/vllm.yml"
    assert (yaml.safe_load(file.read_text()) if file.exists() else None) == want


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("PROFILES=gpu",), "PROFILES is gpu, and .env has others"),
        (("PROFILES=url,grafana", "URL=http://b:8000"), "URL is http://b:8000, and .env has"),
        (("URL=http://b:8000",), "URL is http://b:8000, and .env has another HARNESS_TARGET"),
    ],
)
def test_make_up_measures_what_it_was_told(arguments, says, tmp_path: Path) -> None:
    """Another server than that of .env is refused, and nothing is started."""
    assert make(tmp_path, ".env", *ELSEWHERE).returncode == 0
    done = make(tmp_path, "up", *arguments)
    assert done.returncode != 0
    assert says in done.stdout


def test_a_search_waits_for_what_it_asks() -> None:
    """`docker compose run knee` starts a server and the exporter, of those in the profiles."""
    optional = {"condition": "service_healthy", "required": False}
    for name in ("knee", "locust-master"):
        want = dict.fromkeys(("vllm", "engine", "exporter", "exporter-gpu"), optional)
        assert SERVICES[name]["depends_on"] == want


def test_a_search_is_given_time_to_end() -> None:
    """`make down` leaves those who write results more than Docker's ten seconds."""
    given = {name for name, s in SERVICES.items() if s.get("stop_grace_period") == "60s"}
    assert given == {"locust-master", "locust-worker", "knee", "vllm"}


def test_the_documented_override_fits() -> None:
    """For a Prometheus of one's own: services that exist, on the loopback, where they listen."""
    text = (TOP / "docs/stack.md").read_text()
    [block] = re.findall(r"^    services:\n(?:      .*\n)+", text, re.MULTILINE)
    published = {n: s["ports"] for n, s in yaml.safe_load(block)["services"].items()}
    ports = {"vllm": 8000, "engine": 8000, "exporter": 9400, "exporter-gpu": 9400}
    assert published == {name: [f"127.0.0.1:{port}:{port}"] for name, port in ports.items()}
    assert set(ports) <= set(SERVICES)


@pytest.mark.parametrize(
    ("profiles", "wants"),
    [
        ("gpu,grafana", ("http://exporter:9400", " --gpu-metrics http://exporter:9400")),
        ("engine", ("none", "")),
    ],
)
def test_a_search_asks_about_gpus_where_there_are_any(profiles, wants, tmp_path: Path) -> None:
    """Headless and from the page alike, with profile gpu and only then."""
    assert make(tmp_path, ".env", f"PROFILES={profiles}").returncode == 0
    env = dict(re.findall(r"^([A-Z_]+)=(.*)$", (tmp_path / ".env").read_text(), re.MULTILINE))
    got = env["HARNESS_GPU_METRICS"], env["LOCUST_FLAGS"].removeprefix(EXAMPLE["LOCUST_FLAGS"])
    assert got == wants
