# vLLM's OpenAI server with the plugin switched on for every client. First `make release-check`, which writes dist/.
#   docker build -t vllm-guided . && docker run --gpus all -p 8000:8000 vllm-guided --model MODEL
ARG VLLM=v0.32.0
FROM vllm/vllm-openai:${VLLM}
COPY dist/*.whl /tmp/guided_plugin/
# What the image has already satisfies the plugin, so nothing of vLLM changes. Where this vLLM lacks a name that is relied
# on, the log says so at start, and `guided-plugin doctor` lists it.
RUN uv pip install --system --no-cache /tmp/guided_plugin/*.whl \
    && rm -r /tmp/guided_plugin
ENV GUIDED_PLUGIN='{"take_over": true}'
