"""What pages take for granted in their Python blocks: names of the reader's own
program, as text that runs first."""

_LOADED = """
from transformers import AutoModelForCausalLM, AutoTokenizer
from guided_plugin.demo import MODEL_DIR
from pydantic import BaseModel

class User(BaseModel):
    name: str
    age: int

folder = str(MODEL_DIR)
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder)
inputs = tokenizer("Person as JSON: ", return_tensors="pt", return_token_type_ids=False)
"""

SETUP = {
    "docs/specs.md": "class MyPydanticModel(__import__('pydantic').BaseModel):\n    age: int\n",
    "docs/transformers.md": _LOADED
    + """
import pathlib, shutil, tempfile
import transformers
from guided_plugin import OutputSpec

spec = OutputSpec.json_schema(User)
prompts = ["Person as JSON: "] * 2
tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
inputs_of_three_prompts = tokenizer(["A: "] * 3, return_tensors="pt", return_token_type_ids=False)
token_ids = tokenizer.encode("A: ")
chatting = tempfile.TemporaryDirectory()
folder = shutil.copytree(folder, chatting.name + "/model")
template = "{% for message in messages %}{{ message.content }} {% endfor %}"
pathlib.Path(folder, "chat_template.jinja").write_text(template)
""",
}

AFTER = {"docs/transformers.md": "guide.close()\nchatting.cleanup()\n"}
"""What ends threads and processes that a page leaves running, as a reader's program
would at its end."""
