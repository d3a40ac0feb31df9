# Concord on CPUs, from the wheel that ./run package has made in dist/ with the same Python.
#
#   ./run package && docker build -f toolchains/containers/cpu.Dockerfile --build-arg TORCH_INDEX_URL=... -t concord:cpu .
#   docker run --rm -v "$PWD:/workspace" concord:cpu concord train --output_dir first-run
# TORCH_INDEX_URL is the index of CPU builds of torch; without it pip installs the build with CUDA's libraries, several GB more.
ARG PYTHON=3.11
FROM python:${PYTHON}-slim-bookworm
ARG TORCH_INDEX_URL
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
RUN --mount=type=bind,source=dist,target=/dist \
  PIP_INDEX_URL="${TORCH_INDEX_URL}" pip install --no-cache-dir torch==2.13.0 && \
  pip install --no-cache-dir /dist/concord-*.whl tokenizers==0.23.3 pyarrow==26.0.1 && \
  useradd --uid 10001 --create-home concord
USER 10001
WORKDIR /workspace
CMD ["concord", "doctor"]
