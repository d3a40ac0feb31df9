# Concord on NVIDIA devices, from a wheel with the cuda plugin, which ./run package makes where there is an nvcc. CUDA's
# libraries come with torch; the driver is the host's (nvidia-container-toolkit).
#
#   ./run package && docker build -f toolchains/containers/cuda.Dockerfile -t concord:cuda .
#   docker run --rm --gpus all --ipc host -v "$PWD:/workspace" concord:cuda concord doctor --platform cuda
ARG PYTHON=3.11
FROM python:${PYTHON}-slim-bookworm
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
RUN --mount=type=bind,source=dist,target=/dist \
  pip install --no-cache-dir /dist/concord-*.whl tokenizers==0.23.3 pyarrow==26.0.1 && \
  useradd --uid 10001 --create-home concord
USER 10001
WORKDIR /workspace
ENV CONCORD_PLATFORM=cuda
CMD ["concord", "doctor"]
