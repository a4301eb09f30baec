"""Configuration: defaults, mappings, the environment variable, and what is refused."""

import copy
import dataclasses
import pickle

import pytest

import guided_plugin as gp
from guided_plugin.compiling.compiler import shared_compiler
from guided_plugin.config import ENVIRONMENT_VARIABLE, GuidedConfig
from guided_plugin.errors import ConfigError
from guided_plugin.hosts.fake import small_vocabulary
from guided_plugin.ipc import processors


def test_defaults():
    assert dataclasses.asdict(GuidedConfig()) == {
        "enabled": True,
        "whitespace": "flexible",
        "strict": True,
        "backend": "auto",
        "cache_bytes": 512 * 1024 * 1024,
        "learnt_bytes": 1024**3,
        "threads": 0,
        "isolate_compiles": True,
        "compile_seconds": 10.0,
        "compile_bytes": 2 * 1024**3,
        "compile_processes": 4,
        "compile_queue": 32,
        "max_spec_bytes": 1024**2,
        "max_nodes": 50_000,
        "max_spec_depth": 200,
        "max_enum": 20_000,
        "max_spec_properties": 5_000,
        "max_repetition": 1_000_000,
        "max_whitespace": 40,
        "max_digits": 20,
        "unenforced_keywords": (),
        "disabled_plugins": (),
        "worker_step_ms": 2_000,
        "worker_grammar_ms": 10_000,
        "row_ms": 200,
        "worker_spin_us": 50,
        "take_over": False,
        "tools_strict": True,
        "refused": "error",
        "mode": "auto",
        "jump_forward": False,
        "close_before_length": False,
        "answer_room": 0.2,
        "jump_drafts": 7,
        "jump_rows": 128,
    }


def test_a_config_is_a_frozen_value():
    config = GuidedConfig.from_mapping({"disabled_plugins": ["a", "b"]})
    assert config == GuidedConfig(disabled_plugins=("a", "b"))
    assert hash(config) == hash(GuidedConfig(disabled_plugins=("a", "b")))
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.threads = 3


def test_the_mode_is_one_of_three():
    assert GuidedConfig.from_mapping({"mode": "inline"}).mode == "inline"
    with pytest.raises(
        ConfigError, match=r"mode: unknown mode 'proces' \(did you mean 'process'"
    ):
        GuidedConfig.from_mapping({"mode": "proces"})


def test_whitespace_is_one_of_three_and_strict_is_a_flag():
    found = GuidedConfig.from_environment(
        {ENVIRONMENT_VARIABLE: '{"whitespace": "spaced", "strict": false}'}
    )
    assert (found.whitespace, found.strict) == ("spaced", False)
    with pytest.raises(
        ConfigError, match=r"unknown whitespace 'space' \(did you mean 'spaced'"
    ):
        GuidedConfig(whitespace="space")
    with pytest.raises(ConfigError, match="strict: must be true or false, not 'no'"):
        GuidedConfig.from_mapping({"strict": "no"})


def test_zero_is_a_legal_bound():
    assert GuidedConfig.from_mapping({"cache_bytes": 0, "threads": 0}).cache_bytes == 0


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
    [
        (
            {"guided_plugn": {}},
            r"additional_config: unknown key 'guided_plugn' \(did you mean 'guided_plugin",
        ),
        (
            {"guided-plugin": {}, "guided_plugin": {}},
            "additional_config: unknown key 'guided-plugin'",
        ),
        ({"guided_plugins": {}}, "additional_config: unknown key 'guided_plugins'"),
        (
            {"guided_plugin": {"takeover": 1}},
            f"{FLAG}: unknown option 'takeover' .*'take_over'",
        ),
        (
            {"guided_plugin": {"threads": "3"}},
            f"{FLAG}: threads: must be a whole number",
        ),
        (
            {"guided_plugin": {"take_over": False}},
            "GUIDED_PLUGIN: tools_strict: has no effect without take",
        ),
        ({"guided_plugin": "on"}, f"{FLAG}: must be 0, 1 or a JSON object, not 'on'"),
        (
            {
                "other": 1,
                "take_over": True,
                "mode": "inline",
                "guided_plugin": {"threads": 2},
            },
            r"^additional_config: take_over, mode: .* one level deeper, under guided_plugin "
            r'\(write {"guided_plugin": {"take_over": true, "mode": "inline"}}\)',
        ),
    ],
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
            lambda: GuidedConfig(treads=3),
            "unknown option 'treads' .did you mean 'threads'",
        ),
        (
            lambda: GuidedConfig({"threads": 3}),
            "by their names .*from_mapping takes a mapping",
        ),
        (
            lambda: dataclasses.replace(GuidedConfig(), modes="inline"),
            "did you mean 'mode'",
        ),
        (
            lambda: GuidedConfig(mode="proces"),
            "mode: unknown mode 'proces' .did you mean 'process'",
        ),
        (
            lambda: GuidedConfig(unenforced_keywords=("uniqeItems",)),
            "did you mean 'uniqueItems'",
        ),
        (
            lambda: GuidedConfig.from_mapping({"unenforced_keywords": ["uniqeItems"]}),
            "unenforced_keywords: unknown keyword 'uniqeItems' .did you mean 'uniqueItems'",
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


def test_a_given_environment_replaces_the_process_environment(monkeypatch):
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "0")
    assert GuidedConfig.from_environment({}).enabled
    assert (
        GuidedConfig.from_environment({ENVIRONMENT_VARIABLE: '{"threads": 2}'}).threads
        == 2
    )


def test_a_compiler_without_a_config_reads_the_environment(monkeypatch):
    vocabulary = small_vocabulary()
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, '{"max_enum": 2}')
    for compiler in (gp.GrammarCompiler(vocabulary), shared_compiler(vocabulary)):
        with pytest.raises(gp.GuidedError, match="max_enum"):
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
        GuidedConfig.from_environment({ENVIRONMENT_VARIABLE: text})
    assert caught.value.where == where
    assert what in caught.value.what
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"enabled": 1}, "must be true or false, not 1"),
        ({"enabled": "true"}, "must be true or false, not 'true'"),
        ({"backend": None}, "must be a string, not None"),
        ({"cache_bytes": 1.5}, "must be a whole number, not 1.5"),
        ({"cache_bytes": -1}, "must be at least 0"),
        ({"learnt_bytes": 1 << 20}, "must be at least 67,108,864"),
        ({"compile_seconds": 0}, "must be at least 0.001"),
        ({"row_ms": 0}, "must be at least 1"),
        ({"answer_room": -0.1}, "must be at least 0"),
        ({"answer_room": 256}, "must be at most 1"),
        ({"threads": "3"}, "must be a whole number, not '3'"),
        ({"threads": True}, "must be a whole number, not True"),
        ({"threads": -1}, "must be at least 0"),
        ({"disabled_plugins": "a"}, "must be a list of strings, not 'a'"),
        ({"disabled_plugins": ["a", 1]}, "must be a list of strings, not ('a', 1)"),
    ],
)
def test_wrong_values_name_their_option(options, what):
    with pytest.raises(ConfigError) as caught:
        GuidedConfig.from_mapping(options)
    assert [caught.value.where] == list(options)
    assert caught.value.what == what


def test_option_names_that_are_no_text_are_refused_as_options():
    with pytest.raises(ConfigError, match="unknown option 7"):
        GuidedConfig.from_mapping({7: "x"})


def test_a_keyword_to_leave_unenforced_may_be_one_of_a_backend():
    gp.GrammarCompiler(
        small_vocabulary(),
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
