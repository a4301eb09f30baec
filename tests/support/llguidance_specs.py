"""A vocabulary, and questions to the llguidance backend, which its tests share."""

import numpy as np

from guided_plugin import Vocabulary

__all__ = ["CONTROL", "END", "OTHER_END", "PERSON", "VOCABULARY", "allowed", "takes"]

END, OTHER_END, CONTROL = 256, 257, 258
VOCABULARY = Vocabulary.from_tokens(
    [*(bytes([byte]) for byte in range(256)), b"</s>", b"<other>", b"<ctrl>"], [END], [OTHER_END, CONTROL]
)


def takes(backend, spec, text):
    matcher = backend.start(backend.compile(spec), VOCABULARY.stop_token_ids)
    return matcher.accept_text(text.encode()) and matcher.complete


def allowed(backend, matchers):
    mask = np.zeros((len(matchers), VOCABULARY.words), np.int32)
    backend.batch(matchers).fill(mask, list(range(len(matchers))))
    bits = np.unpackbits(mask.view(np.uint8), axis=1, bitorder="little")
    return [set(np.flatnonzero(row).tolist()) for row in bits]


PERSON = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
