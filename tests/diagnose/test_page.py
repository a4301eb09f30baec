"""The page of `explain --html`: what it marks, that it stays inert whatever a client
wrote, and how a browser shows it, where one is installed: `pip install
PySide6-Addons==6.8.3` brings Chromium as Qt has it."""

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

import guided_plugin as gp
from guided_plugin.diagnose import page as pages
from guided_plugin.diagnose.explain import explain_output
from guided_plugin.diagnose.page import page, stretches

EVIL = "</pre><script>document.title='owned'</script><img src=x onerror=alert(1)>\" onfocus=\"alert(2)"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "role": {"enum": ["nurse", "chef"]},
        "tag": {"const": EVIL},
    },
    "required": ["name", "role", "tag"],
}
TEXT = '{"name":"Aé","role":"chef","tag":'
VOID = {"meta", "br", "img", "link", "input"}


class Read(HTMLParser):
    """Reads a page as browsers do, and fails where tags are not balanced."""

    def __init__(self, text):
        super().__init__()
        self.stack = []
        self.tags = []
        self.spans = []
        self.attributes = []
        self.blocks = []
        self.feed(text)
        self.close()
        assert not self.stack

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.stack.append(tag)
        if tag == "pre":
            self.blocks.append("")
        if tag == "span":
            self.spans.append(
                [len(self.blocks) * ("pre" in self.stack), dict(attrs), ""]
            )

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        if "pre" in self.stack:
            self.blocks[-1] += data
        if "span" in self.stack:
            self.spans[-1][2] += data

    def marks(self, block=1):
        """Kind and text of each part of a block, and the title."""
        return [
            (one["class"], text, one.get("title"))
            for at, one, text in self.spans
            if at == block
        ]


@pytest.fixture(scope="module")
def compiler(demo_vocabulary, config):
    return gp.GrammarCompiler(demo_vocabulary, config=config)


def made(compiler, spec, text, **options):
    found = explain_output(compiler, spec, text, **options)
    return page(compiler, spec, text, found, [("note", EVIL), ("jump", "\u202e<b>")])


def test_each_part_is_marked_at_its_place(compiler):
    spec = gp.OutputSpec.json_schema(SCHEMA, whitespace="compact")
    read = Read(made(compiler, spec, TEXT + "1 and more"))
    marks = read.marks()
    assert "".join(text for _, text, _ in marks) == TEXT + "1 and more"
    kinds = [(kind, text) for kind, text, _ in marks]
    assert kinds[:4] == [
        ("forced", '{"name":"'),
        ("free", 'Aé"'),
        ("forced", ',"role":"'),
        ("free", "c"),
    ]
    assert kinds[4:] == [
        ("forced", 'hef","tag":'),
        ("refused", "1"),
        ("rest", " and more"),
    ]
    assert marks[3][2] == "expected: c n"
    assert "beyond ASCII" in marks[1][2]
    assert marks[5][2].startswith("refused at character 33: ")
    assert json.loads(read.blocks[1]) == SCHEMA


def test_what_must_come_next_and_where_an_output_may_end(compiler):
    spec = gp.OutputSpec.json_schema(SCHEMA, whitespace="compact")
    marks = Read(made(compiler, spec, TEXT[:10])).marks()
    assert [kind for kind, _, _ in marks] == ["forced", "free"]
    marks = Read(made(compiler, spec, TEXT)).marks()
    assert marks[-1][:2] == ("forced next", json.dumps(EVIL) + "}")
    marks = Read(made(compiler, gp.OutputSpec.regex("[0-9]{2,3}"), "12")).marks()
    assert marks == [("free", "12", "expected: 0-9")]
    marks = Read(made(compiler, gp.OutputSpec.regex("[0-9]{2,3}"), "123")).marks()
    assert marks == [
        ("free", "12", "expected: 0-9"),
        ("free", "3", "expected: 0-9 or the end"),
    ]
    assert Read(made(compiler, gp.OutputSpec.regex("a"), "")).marks() == [
        ("forced next", "a", "must come next")
    ]


def test_stretches_are_the_text_and_forced_ones_have_no_other_way(compiler):
    schema = {
        **SCHEMA,
        "properties": {**SCHEMA["properties"], "name": {"type": "string"}},
    }
    spec = gp.OutputSpec.json_schema(schema, whitespace="compact")
    text = TEXT + json.dumps(EVIL) + "}"
    parts = stretches(compiler, spec, text)
    assert "".join(one.text for one in parts) == text
    assert parts[-1].forced
    at = 0
    for one in parts:
        changed = text[:at] + ("z" if one.text[0] != "z" else "y")
        assert (explain_output(compiler, spec, changed).refused is not None) == (
            one.forced or one.text[0] == "c"
        )
        at += len(one.text)


def test_a_long_text_is_marked_as_far_as_it_was_looked_at(compiler, monkeypatch):
    monkeypatch.setattr(pages, "_MOST_CHARACTERS", 10)
    marks = Read(made(compiler, gp.OutputSpec.regex("[a-c]{1,99}"), "abc" * 5)).marks()
    assert [(kind, len(text)) for kind, text, _ in marks] == [
        ("free", 1),
        ("free", 9),
        ("rest", 5),
    ]


def test_forward_passes(compiler):
    read = Read(made(compiler, gp.OutputSpec.json_schema(SCHEMA), TEXT, jump=True))
    assert read.blocks[1] == TEXT
    assert {kind for kind, _, _ in read.marks(2)} == {"forced", "free"}


@pytest.mark.parametrize("text", ["", TEXT, EVIL, TEXT + EVIL, "\x00\ud800\u202e<b>"])
def test_what_clients_write_is_text_and_nothing_else(compiler, text):
    html = made(compiler, gp.OutputSpec.json_schema(SCHEMA), text, jump=True)
    html.encode()
    read = Read(html)
    assert set(read.tags) <= {
        *(
            "html",
            "head",
            "meta",
            "title",
            "style",
            "body",
            "main",
            "h1",
            "h2",
            "p",
            "pre",
            "span",
        ),
        *("details", "summary", "table", "tr", "td"),
    }
    names = {name for name, _ in read.attributes}
    assert names <= {
        "lang",
        "charset",
        "http-equiv",
        "content",
        "name",
        "class",
        "title",
        "tabindex",
    }
    assert "default-src 'none'" in html
    assert not re.search(r"url\(|@import|https?:", html.split("</style>")[0])
    assert not re.search("[\x00-\x08\u202a-\u202e\ud800-\udfff]", html)


LOOK = """
import json, sys
from PySide6.QtCore import QUrl
from PySide6.QtWebEngineCore import QWebEnginePage, QWebEngineProfile, QWebEngineUrlRequestInterceptor
from PySide6.QtWidgets import QApplication
class Requests(QWebEngineUrlRequestInterceptor):
    found = []
    def interceptRequest(self, info):
        self.found.append(info.requestUrl().toString())
class Page(QWebEnginePage):
    alerts = 0
    def javaScriptAlert(self, *told):
        self.alerts += 1
application, profile, requests = QApplication([]), QWebEngineProfile(), Requests()
profile.setUrlRequestInterceptor(requests)
page = Page(profile)
def tell(found):
    print(json.dumps({**json.loads(found), "requests": requests.found, "alerts": page.alerts}))
    application.quit()
def look(ok):
    page.runJavaScript(sys.argv[2], tell)
page.loadFinished.connect(look)
page.load(QUrl.fromLocalFile(sys.argv[1]))
application.exec()
"""
SCRIPT = """
document.querySelectorAll('[tabindex]').forEach(one => one.focus());
document.querySelector('details').open = true;
const colour = (kind, what) => getComputedStyle(document.querySelector(kind))[what];
JSON.stringify({title: document.title, text: document.querySelector('pre').innerText,
  scripts: document.scripts.length, images: document.images.length,
  rows: document.querySelectorAll('details tr').length, width: document.documentElement.scrollWidth,
  back: colour('pre', 'backgroundColor'), forced: colour('.forced', 'color'), dark:
  matchMedia('(prefers-color-scheme: dark)').matches, spans: document.querySelectorAll('pre span').length})
"""


@pytest.mark.parametrize("dark", [False, True])
def test_in_a_browser(compiler, tmp_path, dark):
    pytest.importorskip(
        "PySide6.QtWebEngineCore", reason="no browser", exc_type=ImportError
    )
    file = tmp_path / "page.html"
    text = TEXT + json.dumps(EVIL) + "x" * 500
    file.write_text(
        made(compiler, gp.OutputSpec.json_schema(SCHEMA), text), encoding="utf-8"
    )
    flags = f"--no-sandbox --disable-gpu --blink-settings=preferredColorScheme={0 if dark else 1}"
    environment = {
        **os.environ,
        "QT_QPA_PLATFORM": "offscreen",
        "QTWEBENGINE_CHROMIUM_FLAGS": flags,
    }
    command = [sys.executable, "-c", LOOK, file, SCRIPT]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=100
    )
    seen = json.loads(done.stdout)
    assert seen["text"] == text
    assert (seen["scripts"], seen["images"], seen["alerts"]) == (0, 0, 0)
    assert seen["title"] == "Where an output stands"
    assert seen["requests"] == [file.as_uri()]
    assert seen["rows"] == len(
        stretches(compiler, gp.OutputSpec.json_schema(SCHEMA), text[:-500])
    )
    assert seen["width"] <= 1024, "a long word makes the page wider than its window"
    assert seen["dark"] is dark
    sums = [
        sum(map(int, re.findall(r"\d+", seen[what]))) for what in ("back", "forced")
    ]
    assert (sums[0] < sums[1]) is dark
    assert abs(sums[0] - sums[1]) > 250, "text that is hard to read"
