# The miniature on CPUs: docker build -f k8s/docker/cpu.Dockerfile -t dspine-cpu:0.1.0 .
FROM rayproject/ray:2.60.0-py312-cpu

# PyTorch's wheels without CUDA.
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu

WORKDIR /home/ray/dspine
COPY --chown=ray:users constraints.txt ./
RUN pip install --no-cache-dir --index-url "${TORCH_INDEX_URL}" "$(grep '^torch==' constraints.txt)"
COPY --chown=ray:users pyproject.toml README.md LICENSE ./
COPY --chown=ray:users dspine_cluster ./dspine_cluster
COPY --chown=ray:users kernels ./kernels
COPY --chown=ray:users deployments ./deployments
RUN pip install --no-cache-dir -c constraints.txt ".[otlp]"
ENV OMP_NUM_THREADS=1
ENV RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=dspine_serve.proxy_guard:middlewares
ENV RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S=30
