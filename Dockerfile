# `underpaint serve` in a container. Two targets; the last one is what `docker build .` makes.
#
#   cuda  exported models on a GPU by batches or by TensorRT for RTX, and live models of transformers
#   cpu   exported and shipped models by ONNX Runtime, without PyTorch
#
# docs/how-to/serve-a-model.md says how to build and run them.

FROM python:3.11.13-slim-bookworm AS wheels
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY underpaint underpaint
COPY algos algos
COPY artifacts artifacts
COPY sim sim
COPY models models
COPY training training
COPY export export
COPY runtime runtime
COPY zoo zoo
COPY serve serve
COPY cli cli
COPY distributions distributions
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels . ./distributions/zoo

FROM python:3.11.13-slim-bookworm AS base
RUN useradd --create-home --uid 10001 underpaint
ENV PYTHONUNBUFFERED=1
WORKDIR /home/underpaint
EXPOSE 8000
# A start loads weights: of a large model for minutes, in which a failed probe does not count.
HEALTHCHECK --start-period=10m --interval=10s --timeout=5s CMD \
    ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/ready', timeout=4)"]
ENTRYPOINT ["underpaint", "serve", "--host", "0.0.0.0", "--port", "8000"]

FROM base AS cuda
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
# Triton compiles a stub of C for each kernel that it launches.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY constraints.txt /tmp/constraints.txt
COPY --from=wheels /wheels /wheels
RUN python -m pip install --no-cache-dir --constraint /tmp/constraints.txt \
    /wheels/underpaint_zoo-*.whl "$(echo /wheels/underpaint-*.whl)[serve,serve-ray,cpu,device,live,tensorrt-rtx]"
USER 10001

FROM base AS cpu
COPY constraints.txt /tmp/constraints.txt
COPY --from=wheels /wheels /wheels
RUN python -m pip install --no-cache-dir --constraint /tmp/constraints.txt \
    /wheels/underpaint_zoo-*.whl "$(echo /wheels/underpaint-*.whl)[serve,serve-ray,cpu]"
USER 10001
