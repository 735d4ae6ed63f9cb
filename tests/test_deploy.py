"""What deploy/ tells others to run: options that exist, and files that are what they seem."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from draftline.engine.cli import serve
from draftline.engine.config import EngineConfig
from draftline.engine.server.config import ServerConfig
from draftline.engine.server.telemetry import tracing

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"
OPTIONS = {*EngineConfig.model_fields, *ServerConfig.model_fields, "config"}


def test_the_example_configuration_is_valid() -> None:
    values = yaml.safe_load((DEPLOY / "draftline.yaml").read_text())
    assert values.keys() <= OPTIONS
    ServerConfig(**{name: value for name, value in values.items() if name in ServerConfig.model_fields})
    EngineConfig(**{name: value for name, value in values.items() if name in EngineConfig.model_fields})


@pytest.mark.parametrize("name", ["kubernetes.yaml", "kubernetes-tls.yaml"])
def test_every_flag_exists(name: str) -> None:
    deployment, service, policy = yaml.safe_load_all((DEPLOY / name).read_text())
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    text = " ".join(
        [*container["args"], (DEPLOY / "draftline.service").read_text(), (DEPLOY / "Dockerfile").read_text()]
    )
    flags = {flag.replace("-", "_") for flag in re.findall(r"(?<![\w-])--([a-z][a-z-]+)", text)}
    foreign = {"gpus", "yes", "no_install_recommends", "no_cache_dir", "create_home", "uid", "directory", "owner"}
    assert flags - foreign <= OPTIONS
    assert service["spec"]["ports"][0]["port"] == container["ports"][0]["containerPort"] == 50051
    # The port of the metrics, which have no token, is open to some only.
    by_port = {rule["ports"][0]["port"]: rule for rule in policy["spec"]["ingress"]}
    assert by_port.keys() == {50051, 9400}
    assert "from" in by_port[9400]
    assert ("from" in by_port[50051]) == ("--insecure" in container["args"])
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in deployment["spec"]["template"]["spec"]["volumes"]}
    image = (DEPLOY / "Dockerfile").read_text()
    [cache] = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "cache"]
    assert f"VOLUME {cache}" in image
    assert f"TRITON_CACHE_DIR={cache}/" in image


def test_the_image_s_context_has_the_package_and_nothing_else() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    kept = {line[1:] for line in ignored if line.startswith("!")}
    package = {path.name for path in (ROOT / "src" / "draftline").iterdir() if path.is_symlink()}
    assert kept == {*package, "src", "pyproject.toml", "setup.py", "README.md", "LICENSE"}
    assert ignored.index("*") < min(ignored.index(line) for line in ignored if line.startswith("!"))


def test_the_image_has_all_that_a_server_can_use() -> None:
    """Such as what the dashboard's panels of the GPU show."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()
    [installed] = re.findall(r"'\.\[([\w,]+)\]'", (DEPLOY / "Dockerfile").read_text())
    assert set(installed.split(",")) == extras - {"dev", "bench"}


@pytest.mark.parametrize("name", ["kubernetes.yaml", "kubernetes-tls.yaml"])
def test_the_grace_period_is_longer_than_the_drain_and_a_close(name: str) -> None:
    deployment, *_ = yaml.safe_load_all((DEPLOY / name).read_text())
    pod = deployment["spec"]["template"]["spec"]
    [drain] = re.findall(r"--drain-timeout=(\d+)", " ".join(pod["containers"][0]["args"]))
    after = serve.CLOSE_S + tracing.CLOSE_S
    assert pod["terminationGracePeriodSeconds"] > int(drain) + after
    [stop] = re.findall(r"^TimeoutStopSec=(\d+)$", (DEPLOY / "draftline.service").read_text(), re.MULTILINE)
    assert int(stop) > yaml.safe_load((DEPLOY / "draftline.yaml").read_text())["drain_timeout"] + after


def test_the_unit_does_not_restart_a_server_whose_options_are_wrong() -> None:
    unit = (DEPLOY / "draftline.service").read_text()
    [code] = re.findall(r"^RestartPreventExitStatus=(\d+)$", unit, re.MULTILINE)
    wrong = subprocess.run(
        [sys.executable, "-m", "draftline", "serve", "--port", "none"], stderr=subprocess.PIPE, check=False
    )
    assert wrong.returncode == int(code), wrong.stderr


def test_envoy_s_file_is_yaml_with_health_checks() -> None:
    envoy = yaml.safe_load((DEPLOY / "envoy.yaml").read_text())
    [cluster] = envoy["static_resources"]["clusters"]
    assert cluster["health_checks"][0]["grpc_health_check"] == {}


def test_the_links_of_the_page_lead_somewhere() -> None:
    page = ROOT / "docs" / "deploy.md"
    links = re.findall(r"\]\((?!https?://)([^)#]+)\)", page.read_text())
    assert links
    assert [link for link in links if not (page.parent / link).exists()] == []
