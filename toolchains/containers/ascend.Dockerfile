# Concord on Ascend devices, on the public CANN image (docs/ascend.md). Driver and firmware are the host's. The image is an
# Ubuntu 22.04, and a wheel needs the glibc that its name has: make it on such a system, or in this image.
#
#   ./run package && docker build -f toolchains/containers/ascend.Dockerfile -t concord:ascend .
#   docker run --rm -it --network host --device /dev/davinci0 --device /dev/davinci1 --device /dev/davinci_manager
#     --device /dev/devmm_svm --device /dev/hisi_hdc -v /usr/local/Ascend/driver:/usr/local/Ascend/driver:ro
#     -v /usr/local/Ascend/firmware:/usr/local/Ascend/firmware:ro -v /etc/ascend_install.info:/etc/ascend_install.info:ro
#     -v /usr/local/bin/npu-smi:/usr/local/bin/npu-smi:ro concord:ascend concord doctor --platform ascend
#
# Other chips have other images: 9.0.0-a3-... for the 910C. torch and torch_npu have to be of the same minor version. The
# group HwHiAiUser of the host, whose number may differ, owns the devices.
ARG CANN_IMAGE=quay.io/ascend/cann:9.0.0-910b-ubuntu22.04-py3.11
FROM ${CANN_IMAGE}
# The index of CPU builds of torch; without it pip installs the build with CUDA's libraries, several GB more.
ARG TORCH_INDEX_URL
ARG HOST_GROUP=1000
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
RUN --mount=type=bind,source=dist,target=/dist \
  PIP_INDEX_URL="${TORCH_INDEX_URL}" pip install --no-cache-dir torch==2.13.0 && \
  pip install --no-cache-dir torch_npu==2.13.0 numpy==2.4.6 pyyaml==6.0.3 && \
  pip install --no-cache-dir /dist/concord-*.whl tokenizers==0.23.3 pyarrow==26.0.1 && \
  { getent group "${HOST_GROUP}" || groupadd --gid "${HOST_GROUP}" HwHiAiUser; } && \
  useradd --uid 10001 --create-home --groups "${HOST_GROUP}" concord
USER 10001
WORKDIR /workspace
ENV CONCORD_PLATFORM=ascend
CMD ["concord", "doctor"]
