"""The files of `deploy/` are whole: they parse, refer to what exists, and agree with each other.

That they work is not seen here: `docs/deploying.md` says which were run.
"""

import json
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from slipstream.engine.plugin import SPECULATE_VARIABLE
from slipstream.ops.host import SUPPORTED_VLLM

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RUN = {"prometheus/prometheus.yml", "prometheus/rules.yml", "prometheus/rules_test.yml"}
"""By `e2e/test_monitoring.py`. JSON has no comments, so that it cannot say so either."""
FILES = sorted(file for file in DEPLOY.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
YAML = [file for file in FILES if file.suffix in (".yml", ".yaml")]
WORKLOADS = {"Deployment"}
COMPOSE = DEPLOY / "docker" / "docker-compose.yml"
KUBERNETES = "1.37"
KEY_VARIABLE = "VLLM_API_KEY"
WRITABLE = ("/cache", "/tmp", "/dev/shm")


def name_of(file: Path) -> str:
    return str(file.relative_to(DEPLOY))


def documents(*folders: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the Kubernetes objects in these folders, or in all, each with its file."""
    files = [file for file in YAML if not folders or name_of(file).startswith(folders)]
    loaded = [(name_of(file), each) for file in files for each in yaml.safe_load_all(file.read_text())]
    return [(name, each) for name, each in loaded if "kind" in each]


def merged_server(*patches: str) -> dict[str, Any]:
    """Return the pod of the server, with patches put over it as kustomize does with what is used here."""
    (pod,) = [pod_of(each) for _, each in documents("kubernetes/base") if each["kind"] in WORKLOADS]
    for patch in patches:
        ((_, over),) = [(name, each) for name, each in documents(patch) if each["kind"] in WORKLOADS]
        pod = merge(pod, pod_of(over))
    return pod


def merge(under: Any, over: Any) -> Any:
    """Merge as a strategic merge patch: lists of what has names, or mount paths, by these."""
    if isinstance(under, dict) and isinstance(over, dict):
        return {key: merge(under.get(key), over.get(key, under.get(key))) for key in {**under, **over}}
    if not (isinstance(under, list) and isinstance(over, list) and over and isinstance(over[0], dict)):
        return over
    key = "mountPath" if "mountPath" in over[0] else "name"
    named = {each[key]: each for each in under}
    for each in over:
        named[each[key]] = merge(named.get(each[key]), each)
    return list(named.values())


def pod_of(workload: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = workload["spec"]["template"]["spec"]
    return pod


def variables(container: dict[str, Any]) -> dict[str, str]:
    """Return those whose value stands in the file."""
    return {each["name"]: each["value"] for each in container["env"] if "value" in each}


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_a_file_says_in_its_first_line_that_it_was_not_run(file: Path) -> None:
    if name_of(file) not in RUN and file.suffix != ".json":
        assert re.match(r"# .*\bnot run\b", file.read_text().splitlines()[0], re.IGNORECASE)


@pytest.mark.parametrize("patches", [(), ("kubernetes/init-container",), ("llm-d",)], ids=str)
def test_objects_follow_the_schemas_of_kubernetes(patches: tuple[str, ...]) -> None:
    """With each patch put over the server, as kustomize does."""
    for _, each in documents("kubernetes/base"):
        if each["kind"] == "Kustomization":
            continue
        if each["kind"] in WORKLOADS:
            each["spec"]["template"]["spec"] = merged_server(*patches)
        kubernetes_validate.validate(each, KUBERNETES, strict=True)


@pytest.mark.parametrize("file", YAML, ids=name_of)
def test_yaml_parses_and_names_no_registry(file: Path) -> None:
    text = file.read_text()
    assert list(yaml.safe_load_all(text))
    assert not re.search(r"https?://(?!prometheus:)", text)


def test_json_parses() -> None:
    assert all(json.loads(file.read_text()) for file in FILES if file.suffix == ".json")


def test_kubernetes_objects_are_whole() -> None:
    versions = {
        "Deployment": "apps/v1", "Service": "v1", "PodMonitor": "monitoring.coreos.com/v1",
        "ServiceMonitor": "monitoring.coreos.com/v1", "RayService": "ray.io/v1",
        "Kustomization": "kustomize.config.k8s.io/v1beta1", "Component": "kustomize.config.k8s.io/v1alpha1",
    }  # fmt: skip
    found = documents()
    assert {each["kind"] for _, each in found} == set(versions)
    for name, each in found:
        assert each["apiVersion"] == versions[each["kind"]], name
        if each["kind"] not in ("Kustomization", "Component"):
            assert re.fullmatch(r"[a-z][a-z0-9-]*", each["metadata"]["name"]), name


def test_no_service_is_called_vllm() -> None:
    """Kubernetes would set VLLM_PORT to its address, and vLLM dies on that; so does a pod with its links."""
    for name, each in documents():
        if each["kind"] in ("Service", "RayService"):
            assert each["metadata"]["name"] != "vllm", name
    assert merged_server()["enableServiceLinks"] is False
    assert "vllm" not in yaml.safe_load(COMPOSE.read_text())["services"]


def test_selectors_find_the_pod_and_its_port() -> None:
    found = {each["kind"]: each for _, each in documents("kubernetes/base", "kubernetes/monitoring")}
    template = found["Deployment"]["spec"]["template"]
    labels = template["metadata"]["labels"].items()
    (container,) = template["spec"]["containers"]
    ports = {port["name"] for port in container["ports"]}
    service = found["Service"]
    selectors = [
        found["Deployment"]["spec"]["selector"]["matchLabels"], service["spec"]["selector"],
        found["PodMonitor"]["spec"]["selector"]["matchLabels"],
    ]  # fmt: skip
    assert all(selector and selector.items() <= labels for selector in selectors)
    monitored = found["ServiceMonitor"]["spec"]["selector"]["matchLabels"]
    assert monitored.items() <= service["metadata"]["labels"].items()
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    assert {end["port"] for end in found["PodMonitor"]["spec"]["podMetricsEndpoints"]} <= ports
    named = {port["name"] for port in service["spec"]["ports"]}
    assert {end["port"] for end in found["ServiceMonitor"]["spec"]["endpoints"]} <= named


@pytest.mark.parametrize("patches", [(), ("kubernetes/init-container",)], ids=["image", "init container"])
def test_the_pod_runs_without_root_and_writes_where_it_may(patches: tuple[str, ...]) -> None:
    pod = merged_server(*patches)
    assert pod["securityContext"]["runAsNonRoot"] is True
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    for container in (*pod.get("initContainers", []), *pod["containers"]):
        allowed = container["securityContext"]
        assert allowed["readOnlyRootFilesystem"] is True
        assert allowed["allowPrivilegeEscalation"] is False
        assert allowed["capabilities"] == {"drop": ["ALL"]}
        assert {mount["name"] for mount in container["volumeMounts"]} <= set(volumes)
    (server,) = pod["containers"]
    mounts = {mount["mountPath"]: mount for mount in server["volumeMounts"]}
    assert all("emptyDir" in volumes[mounts[path]["name"]] for path in WRITABLE)
    assert not any(mounts[path].get("readOnly") for path in WRITABLE)
    environment = variables(server)
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "NUMBA_CACHE_DIR", "SLIPSTREAM_CACHE"):
        assert environment[name].startswith("/cache")
    assert environment[SPECULATE_VARIABLE] == "auto"
    assert server["args"][1:3] == ["--host", "0.0.0.0"], "the probes come from outside of the container"


def test_who_is_served_has_a_key_which_no_file_holds() -> None:
    (container,) = merged_server()["containers"]
    (of_pod,) = [each["valueFrom"] for each in container["env"] if each["name"] == KEY_VARIABLE]
    values = yaml.safe_load((DEPLOY / "production-stack" / "values.yaml").read_text())
    of_chart = values["servingEngineSpec"]["vllmApiKey"]
    expected = {"name": of_chart["secretName"], "key": of_chart["secretKey"]}
    assert of_pod == {"secretKeyRef": expected}
    for file in ("kubernetes/base/server.yaml", "production-stack/values.yaml"):
        made = f"create secret generic {expected['name']} --from-literal={expected['key']}=..."
        assert made in (DEPLOY / file).read_text()
    composed = yaml.safe_load(COMPOSE.read_text())["services"]["llm-server"]["environment"]
    assert composed[KEY_VARIABLE].startswith("${API_KEY:?"), "without a key it does not start"


def test_the_pod_is_probed() -> None:
    (server,) = merged_server()["containers"]
    ports = {port["name"] for port in server["ports"]}
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert server[kind]["httpGet"]["path"] == "/health"
        assert server[kind]["httpGet"]["port"] in ports


@pytest.mark.parametrize("folder", ["kubernetes/init-container", "llm-d"])
def test_what_is_added_is_on_the_path_of_the_server(folder: str) -> None:
    (pod,) = [pod_of(each) for _, each in documents(folder) if each["kind"] == "Deployment"]
    (adding,), (server,) = pod["initContainers"], pod["containers"]
    path = variables(server)["PYTHONPATH"]
    assert f"--target {path} " in adding["args"][0]
    for container in (adding, server):
        assert path in {mount["mountPath"] for mount in container["volumeMounts"]}
    assert variables(server)[SPECULATE_VARIABLE] == "auto"


def test_kustomizations_name_files_that_exist() -> None:
    for file in (file for file in YAML if file.name == "kustomization.yaml"):
        content = yaml.safe_load(file.read_text())
        named = [*content.get("resources", []), *(patch["path"] for patch in content.get("patches", []))]
        assert named
        for each in named:
            assert (file.parent / each).exists(), each
            assert (file.parent / each).resolve() not in file.parent.resolve().parents, "a cycle to kustomize"


def test_compose_mounts_what_exists() -> None:
    composed = yaml.safe_load(COMPOSE.read_text())
    for name, service in composed["services"].items():
        for mount in service["volumes"]:
            source = re.sub(r"\$\{.*?\}", "$", mount).partition(":")[0]
            if source.startswith("."):
                assert (COMPOSE.parent / source).exists(), mount
            else:
                assert source == "$" or source in composed["volumes"], mount
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
        assert service["cap_drop"] == ["ALL"]
    server = composed["services"]["llm-server"]
    assert (COMPOSE.parent / server["build"]["context"] / server["build"]["dockerfile"]).exists()
    assert server["command"][1:3] == ["--host", "0.0.0.0"]
    assert server["read_only"] is True
    assert any(mount.endswith(":/cache") for mount in server["volumes"])


def test_prometheus_and_grafana_of_the_composition_see_the_server() -> None:
    composed = yaml.safe_load(COMPOSE.read_text())["services"]
    scraped = yaml.safe_load((DEPLOY / "docker" / "prometheus.yml").read_text())
    ours = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    (job,) = scraped["scrape_configs"]
    assert [target.partition(":")[0] for target in job["static_configs"][0]["targets"]] == ["llm-server"]
    assert scraped["rule_files"] == ours["rule_files"]
    provisioning = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "slipstream.yml").read_text())["providers"]
    folder = provider["options"]["path"]
    assert any(folder in mount for mount in composed["grafana"]["volumes"])


def test_images_are_of_the_supported_vllm() -> None:
    for file in FILES:
        for tag in re.findall(r"vllm/vllm-openai(?::|, newTag: )v([\w.]+)", file.read_text()):
            assert tag.startswith(SUPPORTED_VLLM), file


def test_the_cpu_image_has_a_compiler_no_root_and_a_health_check() -> None:
    text = (DEPLOY / "docker" / "Dockerfile.cpu").read_text()
    assert re.search(r"apt-get install .*\bg\+\+", text)
    assert re.search(r"^USER 10001", text, re.M)
    assert "HEALTHCHECK" in text
    for name in ("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR", "SLIPSTREAM_CACHE", "HF_HOME"):
        assert re.search(rf"\b{name}=/cache", text)
    for copied in re.findall(r"^COPY (.+) \S+$", text, re.M):
        assert all((ROOT / each).exists() for each in copied.split())


def test_helm_and_ray_set_the_variable() -> None:
    values = yaml.safe_load((DEPLOY / "production-stack" / "values.yaml").read_text())
    (model,) = values["servingEngineSpec"]["modelSpec"]
    assert variables(model)[SPECULATE_VARIABLE] == "auto"
    app = (DEPLOY / "ray-serve" / "openai_app.py").read_text()
    assert f'"env_vars": {{"{SPECULATE_VARIABLE}": "auto"}}' in app
    service = yaml.safe_load((DEPLOY / "ray-serve" / "rayservice.yaml").read_text())
    (application,) = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    (head,) = service["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]["containers"]
    assert {port["containerPort"] for port in head["ports"]} >= {6379, 8000, 8265}, "workers join at 6379"
    module, _, name = application["import_path"].partition(":")
    assert re.search(rf"^{name} = ", (DEPLOY / "ray-serve" / f"{module}.py").read_text(), re.M)


def test_triton_leaves_the_devices_to_vllm() -> None:
    """That vLLM knows the keys of model.json is checked in engine/test_contract.py."""
    text = (DEPLOY / "triton" / "model_repository" / "slipstream" / "config.pbtxt").read_text()
    assert 'backend: "vllm"' in text
    assert "KIND_MODEL" in text
    assert text.count("{") == text.count("}")
