"""`examples/compose.yaml` and `examples/helm-values.yaml`: what they name exists."""

import typer
import yaml
from script_files import ROOT
from vllm.utils.argparse_utils import FlexibleArgumentParser

try:
    from vllm.entrypoints.common.cli_args import make_arg_parser
except ImportError:  # before 0.33
    from vllm.entrypoints.launchers.cli_args import make_arg_parser

from guided_plugin.cli import app
from guided_plugin.config import ENVIRONMENT_VARIABLE, GuidedConfig
from guided_plugin.diagnose.server import SECONDS

COMPOSE = yaml.safe_load((ROOT / "examples/compose.yaml").read_text())
VALUES = yaml.safe_load((ROOT / "examples/helm-values.yaml").read_text())[
    "servingEngineSpec"
]
TOP = "containerPort modelSpec startupProbe serviceMonitor"
MODEL = (
    "name repository tag modelURL replicaCount requestCPU requestMemory requestGPU "
    "shmSize vllmConfig env"
)
"""Keys of the chart's `modelSpec` that are used. The chart ignores a key that it does
not know."""


def served(arguments):
    """What vLLM's server reads from a command line. It exits at a flag that does not
    exist."""
    return make_arg_parser(FlexibleArgumentParser()).parse_args(arguments)


def options(name, value):
    """The plugin's options as a variable of the environment has them."""
    assert name == ENVIRONMENT_VARIABLE
    found, _ = GuidedConfig.read(None, {name: value})
    assert found.take_over
    return found


def test_the_server_of_compose_is_the_image_of_the_repository_with_flags_that_exist():
    server = COMPOSE["services"]["vllm"]
    assert (ROOT / "examples" / server["build"] / "Dockerfile").is_file()
    found = served(
        [one.replace("${MODEL:?set MODEL}", "a/model") for one in server["command"]]
    )
    assert (found.model, found.max_num_seqs) == ("a/model", 256)
    assert server["ports"] == [f"{found.port}:{found.port}"]
    ((name, value),) = server["environment"].items()
    options(name, value)


def test_the_server_of_compose_is_healthy_when_doctor_says_so():
    check = COMPOSE["services"]["vllm"]["healthcheck"]
    kind, program, command, *arguments = check["test"]
    assert (kind, program) == ("CMD", app.info.name)
    context = (
        typer.main.get_command(app).commands[command].make_context(command, arguments)
    )
    assert context.params["server"] == f"http://localhost:{served([]).port}"
    assert int(check["timeout"].removesuffix("s")) > SECONDS


def test_prometheus_of_compose_has_the_rules_and_asks_the_server():
    prometheus = COMPOSE["services"]["prometheus"]
    (volume,) = prometheus["volumes"]
    rules, target, mode = volume.split(":")
    assert (ROOT / "examples" / rules).is_file()
    assert mode == "ro"
    ((source, place),) = [
        (one["source"], one["target"]) for one in prometheus["configs"]
    ]
    read = yaml.safe_load(COMPOSE["configs"][source]["content"])
    assert [f"{place.rsplit('/', 1)[0]}/{name}" for name in read["rule_files"]] == [
        target
    ]
    (job,) = read["scrape_configs"]
    (asked,) = job["static_configs"][0]["targets"]
    name, port = asked.split(":")
    assert name in COMPOSE["services"]
    assert int(port) == served([]).port


def test_values_of_helm_have_keys_of_the_chart_and_flags_that_exist():
    (model,) = VALUES["modelSpec"]
    assert set(model) == {*MODEL.split()}
    assert set(VALUES) == {*TOP.split()}
    assert set(model["vllmConfig"]) == {"tensorParallelSize", "extraArgs"}
    assert (
        model["tag"]
        == (ROOT / "Dockerfile").read_text().partition("VLLM=")[2].split()[0]
    )
    found = served(model["vllmConfig"]["extraArgs"])
    assert found.max_num_seqs == 256
    assert (
        VALUES["containerPort"]
        == VALUES["startupProbe"]["httpGet"]["port"]
        == found.port
    )
    ((name, value),) = [(one["name"], one["value"]) for one in model["env"]]
    options(name, value)
