"""V2's runner as a game with a speculator, whose outputs are known. Needs vLLM."""

from types import SimpleNamespace

import torch
from compilers import allowed, start
from vllm_games import COMPILER, DRAFTS, V2DraftGame
from vllm_support import END, WIDTH

from guided_plugin.hosts.vllm.jump import init_speculator


class V2ProposeGame(V2DraftGame):
    """The same where a speculator proposes what is drafted, and where each token is the
    likeliest one: the output is known. vLLM verifies as many drafts as it likes, and
    now and then asks for none."""

    def __init__(self, vllm_config, seed, *, own=False, drawn=False):
        """`own`: the speculator is the plugin's. `drawn`: another's, whose guesses are
        drawn from what the sampler knows."""
        super().__init__(vllm_config, seed)
        if own:
            vllm_config.additional_config["guided_plugin_jump"] = True
            vllm_config.speculative_config.num_speculative_tokens = DRAFTS
        states = self.guide.runner.requests.states
        guesses = SimpleNamespace(
            propose=self.guess, draft_logits=self.tokens if drawn else None
        )
        self.speculator = init_speculator(
            vllm_config, states.device, states, original=lambda *_: guesses
        )
        self.proposed = {}
        """What is verified, by index."""
        self.offered = 0
        """How many of these the plugin's own speculator has."""

    def apply(self, logits, context):
        masked = super().apply(logits, context)
        unguided = [
            self.running[index].spec is None
            for index in context.expanded_idx_mapping.tolist()
        ]
        # as of vLLM's own grammars
        known = torch.tensor(unguided) if self.rng.random() < 0.5 else None
        cut = self.guide.runner.invalid_drafts(context, known)
        if cut is not None:
            context.input_ids.masked_fill_(cut & (context.expanded_local_pos > 0), -1)
        return masked

    def enter(self, request):
        super().enter(request)
        self.proposed.pop(index_of(self.running, request), None)

    def decode(self, batch):
        super().decode(batch)
        mapping = torch.tensor(batch, dtype=torch.int32)
        shown = SimpleNamespace(
            idx_mapping=mapping, idx_mapping_np=mapping.numpy(), num_reqs=len(batch)
        )
        asked = 0 if self.rng.random() < 0.1 else DRAFTS
        drafts = self.speculator.propose(shown, num_speculative_tokens=asked).tolist()
        sure = getattr(self.speculator, "draft_token_confidence_probs", None)
        for row, index in enumerate(batch):
            self.proposed[index] = drafts[row][:asked]
            if sure is not None:
                self.proposed[index] = drafts[row][
                    : min(asked, int((sure[index] > 0).sum()))
                ]
                self.offered += len(self.proposed[index])

    def draft(self, request):
        drafts = self.proposed.get(index_of(self.running, request), [])
        return (
            drafts
            if self.rng.random() < 0.7
            else drafts[: self.rng.randrange(DRAFTS + 1)]
        )

    def guess(self, shown, **_):
        draft = super().draft
        guesses = (
            foreseen(request) if self.rng.random() < 0.5 else draft(request)
            for request in map(self.running.__getitem__, shown.idx_mapping.tolist())
        )
        return torch.tensor([one + [0] * (DRAFTS - len(one)) for one in guesses])

    def logits(self, rows):
        return torch.stack(
            [likely(self.running[index], position) for index, position in rows]
        )

    def takes(self, draft, logits):
        return draft == int(logits.argmax())

    def finish(self):
        for request in [*self.there(), *self.preempted, *self.done]:
            assert request.tokens == likeliest(request)[: len(request.tokens)]


def index_of(running, request):
    return next(index for index, one in running.items() if one is request)


def likely(request, position):
    """The logits of a request behind so many drafts."""
    seed = request.number * 1000 + len(request.tokens) + position
    return torch.randn(WIDTH, generator=torch.Generator().manual_seed(seed))


def foreseen(request):
    """What comes next."""
    longer = SimpleNamespace(
        **{**vars(request), "tokens": [*request.tokens, *range(DRAFTS)]}
    )
    return likeliest(longer)[len(request.tokens) :]


def likeliest(request):
    """Its output without drafts."""
    output = SimpleNamespace(number=request.number, tokens=[])
    matcher = None if request.spec is None else start(COMPILER, request.spec)
    while len(output.tokens) < len(request.tokens) and END not in output.tokens:
        logits = likely(output, 0)
        if matcher is not None:
            fits = allowed(matcher)
            masked = torch.full_like(logits, -torch.inf)
            masked[fits] = logits[fits]
            logits = masked
        output.tokens.append(int(logits.argmax()))
        if matcher is not None:
            matcher.accept(output.tokens[-1])
    return output.tokens
