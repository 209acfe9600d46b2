"""Checks the manifests of deploy/kubernetes and deploy/envoy: manifests_check.py KVASIR

What it can see without a cluster: the files are YAML without repeated keys; objects have the fields that Kubernetes
requires, and no others where the list of fields is short; names, labels and ports agree; options of the configuration
are options of `kvasir serve`; times fit each other. It does not replace `kubectl apply --dry-run=server` or
`envoy --mode validate`.
"""

import os
import re
import subprocess
import sys
import tomllib

import yaml

DEPLOY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "deploy")
API = {"ConfigMap": "v1", "Service": "v1", "Deployment": "apps/v1", "StatefulSet": "apps/v1",
       "PodDisruptionBudget": "policy/v1", "NetworkPolicy": "networking.k8s.io/v1"}
POD_FIELDS = {"securityContext", "automountServiceAccountToken", "terminationGracePeriodSeconds", "containers",
              "volumes", "topologySpreadConstraints"}
CONTAINER_FIELDS = {"name", "image", "args", "env", "ports", "startupProbe", "readinessProbe", "livenessProbe",
                    "lifecycle", "resources", "securityContext", "volumeMounts"}
PROBE_FIELDS = {"httpGet", "periodSeconds", "failureThreshold", "timeoutSeconds", "initialDelaySeconds",
                "successThreshold"}
VOLUME_KINDS = {"configMap", "secret", "persistentVolumeClaim", "emptyDir"}


class Strict(yaml.SafeLoader):
    """YAML in which no key is given twice."""


def mapping_of(loader, node):
    keys = [loader.construct_object(key) for key, _ in node.value]
    assert len(keys) == len(set(keys)), f"a key is repeated: {sorted(keys)} in {node.start_mark}"
    return loader.construct_mapping(node, deep=True)


Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping_of)


def read(path):
    with open(os.path.join(DEPLOY, path)) as file:
        return list(yaml.load_all(file, Strict))


def includes(labels, selector):
    return all(labels.get(key) == value for key, value in selector.items())


def check_object(thing):
    kind = thing["kind"]
    assert thing["apiVersion"] == API[kind], thing["apiVersion"]
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", thing["metadata"]["name"])
    assert set(thing) <= {"apiVersion", "kind", "metadata", "spec", "data"}, set(thing)
    return f"{kind}/{thing['metadata']['name']}"


def check_probe(probe, ports, paths):
    assert set(probe) <= PROBE_FIELDS, set(probe) - PROBE_FIELDS
    assert probe["httpGet"]["path"] in paths and probe["httpGet"]["port"] in ports


def check_workload(workload, objects, config):
    spec = workload["spec"]
    template = spec["template"]
    assert includes(template["metadata"]["labels"], spec["selector"]["matchLabels"])
    pod = template["spec"]
    assert set(pod) <= POD_FIELDS, set(pod) - POD_FIELDS
    container, = pod["containers"]
    assert set(container) <= CONTAINER_FIELDS, set(container) - CONTAINER_FIELDS
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert len(ports) == len(container["ports"]) and all(len(name) <= 15 for name in ports)
    assert ports["http"] == config["port"]
    assert ports["kv-events"] == int(config["kv-events"].rsplit(":", 1)[1])
    assert ports["kv-replay"] == int(config["kv-events-replay"].rsplit(":", 1)[1])
    for name, path in (("startupProbe", "/ready"), ("readinessProbe", "/ready"), ("livenessProbe", "/health")):
        check_probe(container[name], ports, {path})
    before_stop = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert before_stop > 2 * container["readinessProbe"]["periodSeconds"]
    assert pod["terminationGracePeriodSeconds"] > before_stop + config["drain"], "answers would be cut off"
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    claims = {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", [])}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert mounts == set(volumes) | claims and not set(volumes) & claims, (mounts, volumes, claims)
    for volume in volumes.values():
        kind, = set(volume) - {"name"}
        assert kind in VOLUME_KINDS, kind
    assert "ConfigMap/" + volumes["config"]["configMap"]["name"] in objects
    # The operator makes it: one in these files would replace the operator's keys whenever they are applied.
    assert volumes["keys"]["secret"]["secretName"] == "kvasir-keys"
    places = [mount["mountPath"] for mount in container["volumeMounts"]]
    for option in ("model", "api-keys", "usage-db", "sessions"):
        assert any(config[option].startswith(place + "/") for place in places), option
    index = container["args"].index("--config")
    assert container["args"][0] == "serve" and container["args"][index + 1] in places
    named = {each["name"] for each in container["env"]}
    assert set(re.findall(r"\$\((\w+)\)", " ".join(container["args"]))) <= named
    for amount in ("cpu", "memory"):
        assert container["resources"]["requests"][amount] == container["resources"]["limits"][amount]
    memory = re.fullmatch(r"(\d+)Gi", container["resources"]["limits"]["memory"])
    kv = re.fullmatch(r"(\d+)GiB", config["kv-memory"])
    assert int(memory[1]) >= int(kv[1]) + 2
    if workload["kind"] == "StatefulSet":
        service = objects["Service/" + spec["serviceName"]]
        assert service["spec"]["clusterIP"] == "None"
    return template["metadata"]["labels"], ports


def check_kubernetes():
    things = [thing for name in sorted(os.listdir(os.path.join(DEPLOY, "kubernetes"))) if name.endswith(".yaml")
              for thing in read("kubernetes/" + name)]
    objects = {check_object(thing): thing for thing in things}
    assert len(objects) == len(things), "two objects have one name"
    config = tomllib.loads(objects["ConfigMap/kvasir"]["data"]["kvasir.toml"])
    for kind in ("Deployment", "StatefulSet"):
        labels, ports = check_workload(objects[kind + "/kvasir"], objects, config)
        for name in ("kvasir", "kvasir-replicas"):
            service = objects["Service/" + name]["spec"]
            assert includes(labels, service["selector"])
            assert all(port["targetPort"] in ports and ports[port["targetPort"]] == port["port"]
                       for port in service["ports"])
        assert includes(labels, objects["PodDisruptionBudget/kvasir"]["spec"]["selector"]["matchLabels"])
        policy = objects["NetworkPolicy/kvasir"]["spec"]
        assert includes(labels, policy["podSelector"]["matchLabels"])
        open_ports = {port["port"]: "from" in rule for rule in policy["ingress"] for port in rule["ports"]}
        assert open_ports == {"http": False, "kv-events": True, "kv-replay": True}, open_ports
    guide = open(os.path.join(DEPLOY, "..", "docs", "operations", "replicas.md")).read()
    assert f"secret generic kvasir-keys --from-file={os.path.basename(config['api-keys'])}" in guide
    return config


def check_envoy():
    resources = read("envoy/envoy.yaml")[0]["static_resources"]
    clusters = {cluster["name"]: cluster for cluster in resources["clusters"]}
    manager = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    routes = manager["route_config"]["virtual_hosts"][0]["routes"]
    for route in routes:
        assert route["route"]["cluster"] in clusters and route["route"]["timeout"] == "0s"
    cluster = clusters["kvasir"]
    assert cluster["lb_policy"] == "RING_HASH"
    assert cluster["load_assignment"]["cluster_name"] == "kvasir"
    assert cluster["health_checks"][0]["http_health_check"]["path"] == "/ready"
    assert [each["name"] for each in manager["http_filters"]][-1] == "envoy.filters.http.router"


def main(kvasir):
    config = check_kubernetes()
    check_envoy()
    known = subprocess.run([kvasir, "serve", "--help"], capture_output=True, text=True, check=True).stdout
    unknown = [option for option in config if not re.search(rf"--{option}\b", known)]
    assert not unknown, unknown
    print("manifests agree with each other")


if __name__ == "__main__":
    main(*sys.argv[1:2])
