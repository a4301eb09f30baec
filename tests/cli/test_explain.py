"""`guided-plugin explain`."""

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
