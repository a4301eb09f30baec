"""Configuration: defaults, mappings, the environment variable, and what is refused."""

import copy
import dataclasses
import json
import pickle
from pathlib import Path

import pytest

import guided_plugin as gp
from guided_plugin.compiling.compiler import shared_compiler
from guided_plugin.config import ENVIRONMENT_VARIABLE, GuidedConfig
from guided_plugin.errors import ConfigError
from guided_plugin.ipc import processors

TABLES = json.loads(Path(__file__).with_name("config.json").read_bytes())


@pytest.mark.parametrize(
    ("text", "config"),
    [
        (None, GuidedConfig()),
        ("", GuidedConfig()),
        ("  ", GuidedConfig()),
        ("1", GuidedConfig()),
        ("0", GuidedConfig(enabled=False)),
        (" 0\n", GuidedConfig(enabled=False)),
        ("{}", GuidedConfig()),
        (
            '{"enabled": false, "backend": "xgrammar", "cache_bytes": 9, "threads": 3,'
            ' "disabled_plugins": ["a", "b"]}',
            GuidedConfig(
                enabled=False,
                backend="xgrammar",
                cache_bytes=9,
                threads=3,
                disabled_plugins=("a", "b"),
            ),
        ),
    ],
)
def test_environment_variable(monkeypatch, text, config):
    if text is None:
        monkeypatch.delenv("GUIDED_PLUGIN", raising=False)
    else:
        monkeypatch.setenv("GUIDED_PLUGIN", text)
    assert GuidedConfig.from_environment() == config


FLAG = "additional_config.guided_plugin"


@pytest.mark.parametrize("off", ["0", " 0", "false"])
@pytest.mark.parametrize(
    "flag", [{"take_over": True}, True, {"enabled": True}, {"unknown": 1}]
)
def test_the_kill_switch_holds_whatever_the_flag_says(off, flag):
    found = GuidedConfig.read({"guided_plugin": flag}, {ENVIRONMENT_VARIABLE: off})
    assert found == (GuidedConfig(enabled=False), {"enabled": "GUIDED_PLUGIN=0"})


def test_flag_and_environment_merge_field_by_field_and_the_flag_wins():
    environment = {
        ENVIRONMENT_VARIABLE: '{"take_over": true, "threads": 2, "disabled_plugins": ["a"]}'
    }
    config, sources = GuidedConfig.read(
        {"guided_plugin": {"threads": 3, "tools_strict": False}}, environment
    )
    assert config == GuidedConfig(
        take_over=True, threads=3, tools_strict=False, disabled_plugins=("a",)
    )
    assert config.told(sources) == (
        f"take_over = true (GUIDED_PLUGIN), threads = 3 ({FLAG}), "
        f'disabled_plugins = ["a"] (GUIDED_PLUGIN), tools_strict = false ({FLAG})'
    )
    for nothing in (
        None,
        {},
        {"guided_plugin": None},
        {"another": 1, "guided_plugin_jump": True},
        "text",
    ):
        config, sources = GuidedConfig.read(nothing, {})
        assert (config, config.told(sources)) == (
            GuidedConfig(),
            "all options have their defaults",
        )
    assert not GuidedConfig.read({"guided_plugin": 0}, environment)[0].enabled
    assert GuidedConfig.read(
        {"guided_plugin": 1}, {ENVIRONMENT_VARIABLE: '{"enabled": false}'}
    )[0].enabled


@pytest.mark.parametrize(
    ("additional", "said"),
    TABLES["what_the_flag_gets_wrong"],
)
def test_what_the_flag_gets_wrong(additional, said):
    environment = {ENVIRONMENT_VARIABLE: '{"take_over": true, "tools_strict": false}'}
    with pytest.raises(ConfigError, match=said):
        GuidedConfig.read(additional, environment)


@pytest.mark.parametrize(
    "field", dataclasses.fields(GuidedConfig), ids=lambda field: field.name
)
def test_an_option_one_level_too_high_is_an_error(field):
    with pytest.raises(
        ConfigError, match=f"^additional_config: {field.name}: .*one level deeper"
    ):
        GuidedConfig.read({field.name: field.default}, {})


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: GuidedConfig(mode="proces"),
            "mode: unknown mode 'proces' .did you mean 'process'",
        ),
    ],
)
def test_what_code_gets_wrong(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


def test_a_config_is_copied_pickled_and_replaced():
    config = GuidedConfig(threads=3, unenforced_keywords=("uniqueItems", "x-mine"))
    assert (
        copy.deepcopy(config)
        == pickle.loads(pickle.dumps(config))
        == dataclasses.replace(config)
        == config
    )


def test_a_compiler_without_a_config_reads_the_environment(
    monkeypatch, byte_vocabulary
):
    vocabulary = byte_vocabulary
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, '{"max_nodes": 2}')
    for compiler in (gp.GrammarCompiler(vocabulary), shared_compiler(vocabulary)):
        with pytest.raises(gp.GuidedError, match="max_nodes"):
            compiler.compile(gp.OutputSpec.choice(["a", "b", "c"]))
    given = gp.GrammarCompiler(vocabulary, config=GuidedConfig())
    assert given.compile(gp.OutputSpec.choice(["a", "b", "c"]))
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "yes")
    for make in (gp.GrammarCompiler, shared_compiler):
        with pytest.raises(ConfigError, match="not 0, 1 or a JSON object"):
            make(vocabulary)


@pytest.mark.parametrize(
    ("text", "where", "what", "hint"),
    [
        ("yes", "GUIDED_PLUGIN", "not 0, 1 or a JSON object: 'yes'", "Expecting value"),
        ('{"threads": 3', "GUIDED_PLUGIN", "not 0, 1 or a JSON object", "delimiter"),
        ("[1]", "GUIDED_PLUGIN", "must be 0, 1 or a JSON object", ""),
        ("null", "GUIDED_PLUGIN", "must be 0, 1 or a JSON object", ""),
        ("2", "GUIDED_PLUGIN", "must be 0, 1 or a JSON object", ""),
        (
            '{"compile_seconds": NaN}',
            "GUIDED_PLUGIN",
            "not 0, 1 or a JSON object",
            "NaN is not JSON",
        ),
        ("[" * 200_000, "GUIDED_PLUGIN", "not 0, 1 or a JSON object", "recursion"),
        (
            '{"thread": 3}',
            "GUIDED_PLUGIN",
            "unknown option 'thread'",
            "did you mean 'threads'?",
        ),
        ('{"threads": "3"}', "GUIDED_PLUGIN: threads", "must be a whole number", ""),
        (
            '{"zzz": 3}',
            "GUIDED_PLUGIN",
            "unknown option 'zzz'",
            "known: answer_room, backend, cache_bytes",
        ),
    ],
)
def test_what_the_environment_gets_wrong(text, where, what, hint):
    with pytest.raises(ConfigError) as caught:
        GuidedConfig.read(None, {ENVIRONMENT_VARIABLE: text})
    assert caught.value.where == where
    assert what in caught.value.what
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("options", "what"),
    TABLES["wrong_values_name_their_option"],
)
def test_wrong_values_name_their_option(options, what):
    with pytest.raises(ConfigError) as caught:
        GuidedConfig.read({"guided_plugin": options}, {})
    assert [caught.value.where] == [f"{FLAG}: {name}" for name in options]
    assert caught.value.what == what


def test_a_keyword_to_leave_unenforced_may_be_one_of_a_backend(byte_vocabulary):
    gp.GrammarCompiler(
        byte_vocabulary,
        config=GuidedConfig(unenforced_keywords=("title", "of-a-backend")),
    )


@pytest.mark.parametrize(
    ("count", "threads"), [(1, 1), (2, 1), (6, 4), (16, 12), (64, 12)]
)
def test_zero_threads_leaves_processors_to_others(monkeypatch, count, threads):
    monkeypatch.setattr(processors, "_AT_IMPORT", set(range(count)))
    assert GuidedConfig().thread_count() == threads
    assert GuidedConfig(threads=5).thread_count() == 5


def test_what_is_refused_is_an_error_or_left_to_vllm():
    assert GuidedConfig(take_over=True, refused="vllm").refused == "vllm"
    with pytest.raises(
        ConfigError, match=r"unknown refused 'vlm'.*did you mean 'vllm'"
    ):
        GuidedConfig(take_over=True, refused="vlm")
    with pytest.raises(ConfigError, match="refused: has no effect without take_over"):
        GuidedConfig(refused="vllm")
    with pytest.raises(
        ConfigError, match="tools_strict: has no effect without take_over"
    ):
        GuidedConfig(tools_strict=False)
