"""`guided-plugin explain`."""

import re
from html import escape

from command_line import PERSON


def test_explain(run, write):
    flexible = ("explain", write("s.json", PERSON), "--text", '{"name":"b"')
    found = {}
    for whitespace, more in (
        ("flexible", ()),
        ("compact", ("--whitespace", "compact")),
    ):
        result = run(*flexible, *more)
        assert result.code == 0
        lines = dict(line.split(maxsplit=1) for line in result.out.splitlines())
        assert lines["place"] == "#/name: a comma or }"
        assert lines["could"] == "end   ',\"on\":true}'"
        found[whitespace] = lines
    assert found["compact"]["forced"] == "',\"on\":'"
    assert found["compact"]["characters"] == ","
    assert "forced" not in found["flexible"]
    assert found["flexible"]["characters"] == r"'\n' '\r' ' ' ,"


def test_explain_as_json_and_standard_input(run, write, standard_input):
    standard_input('{"name":"é","on":1}'.encode())
    options = ("--json", "--whitespace", "compact")
    result = run("explain", write("s.json", PERSON), "--text-file", "-", *options)
    assert result.code == 1
    found = result.json
    assert (found["ok"], found["refused"]["position"]) == (False, 17)
    assert found["characters"] == ["f", "t"]


def test_a_continuation_that_is_refused(run, write):
    spec = write("s.json", PERSON)
    result = run("explain", spec, "--text", '{"name":"b"', "--next", ',"off')
    assert result.code == 1
    assert "refused at character 3" in result.out
    assert run("explain", spec, "--text", '{"name":"b"', "--next", ',"on').code == 0


def test_specs_that_get_no_drafts_jump_over_nothing(run, write):
    spec = write("s.lark", 'start: "hello there"')
    found = run("explain", spec, "--text", "hello there", "--jump", "--json").json
    assert found["jump"]["pieces"] == [["hello there", False]]


def test_options_that_do_not_go_together(run, write):
    spec = write("s.json", PERSON)
    run("explain", spec, "--text", "a", "--text-file", spec).is_error(
        2, "only one of --text and --text-file"
    )
    run("explain", "-", "--text-file", "-").is_error(
        2, "standard input: can be read only once"
    )
    run("explain", write("no.json", False), "--text", "a").is_error(
        1, "allows no output"
    )


def test_a_page_is_written_next_to_what_is_printed(run, write, tmp_path):
    spec = write("s.json", PERSON)
    page = tmp_path / "new" / "page.html"
    result = run("explain", spec, "--text", '{"name":"b"x', "--jump", "--html", page)
    assert result.code == 1
    text = page.read_text(encoding="utf-8")
    assert re.search(
        r'<span class="refused" title="refused at character 11: [^>]*>x</span>', text
    )
    assert "forward passes for" in text
    for line in result.out.splitlines():
        name = line[:11].rstrip()
        value = line[12:]
        assert (
            name in ("jump", "forwards")
            or f"<td>{name}</td><td>{escape(value)}</td>" in text
        )
    run("explain", spec, "--text", "a", "--html", tmp_path).is_error(2, "can't write")
