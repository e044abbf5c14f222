# NVIDIA GPUs: docker build -f k8s/docker/gpu.Dockerfile -t dspine-gpu:0.1.0 .
FROM rayproject/ray:2.60.0-py312-cu130

# `flash-attn flash-linear-attention` prefill faster; building flash-attn takes an image with nvcc, and long.
ARG EXTRA_PACKAGES=""

WORKDIR /home/ray/dspine
COPY --chown=ray:users pyproject.toml constraints.txt README.md LICENSE ./
COPY --chown=ray:users dspine_cluster ./dspine_cluster
COPY --chown=ray:users kernels ./kernels
COPY --chown=ray:users deployments ./deployments
# triton comes with PyTorch's CUDA wheels.
RUN pip install --no-cache-dir -c constraints.txt ".[otlp]" ${EXTRA_PACKAGES}
ENV RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=dspine_serve.proxy_guard:middlewares
ENV RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S=30
