"""What deploy/ tells others to run: options that exist, and files that are what they seem."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from draftline.engine.config import EngineConfig
from draftline.engine.server.config import ServerConfig

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"
OPTIONS = {*EngineConfig.model_fields, *ServerConfig.model_fields, "config"}


def test_the_example_configuration_is_valid() -> None:
    values = yaml.safe_load((DEPLOY / "draftline.yaml").read_text())
    assert values.keys() <= OPTIONS
    ServerConfig(**{name: value for name, value in values.items() if name in ServerConfig.model_fields})
    EngineConfig(**{name: value for name, value in values.items() if name in EngineConfig.model_fields})


def test_every_flag_exists() -> None:
    deployment, service = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    text = " ".join(
        [*container["args"], (DEPLOY / "draftline.service").read_text(), (DEPLOY / "Dockerfile").read_text()]
    )
    flags = {flag.replace("-", "_") for flag in re.findall(r"(?<![\w-])--([a-z][a-z-]+)", text)}
    foreign = {"gpus", "yes", "no_install_recommends", "no_cache_dir", "create_home", "uid"}
    assert flags - foreign <= OPTIONS
    assert service["spec"]["ports"][0]["port"] == container["ports"][0]["containerPort"] == 50051


def test_the_grace_period_is_longer_than_the_drain() -> None:
    deployment, _ = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    pod = deployment["spec"]["template"]["spec"]
    [drain] = re.findall(r"--drain-timeout=(\d+)", " ".join(pod["containers"][0]["args"]))
    assert pod["terminationGracePeriodSeconds"] > int(drain)
    [stop] = re.findall(r"^TimeoutStopSec=(\d+)$", (DEPLOY / "draftline.service").read_text(), re.MULTILINE)
    assert int(stop) > yaml.safe_load((DEPLOY / "draftline.yaml").read_text())["drain_timeout"]


def test_envoy_s_file_is_yaml_with_health_checks() -> None:
    envoy = yaml.safe_load((DEPLOY / "envoy.yaml").read_text())
    [cluster] = envoy["static_resources"]["clusters"]
    assert cluster["health_checks"][0]["grpc_health_check"] == {}


def test_the_links_of_the_page_lead_somewhere() -> None:
    page = ROOT / "docs" / "deploy.md"
    links = re.findall(r"\]\((?!https?://)([^)#]+)\)", page.read_text())
    assert links
    assert [link for link in links if not (page.parent / link).exists()] == []
