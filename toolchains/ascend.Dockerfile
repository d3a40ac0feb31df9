# Concord on the public CANN image, for Ascend devices (docs/ascend.md). Driver and firmware are the host's.
#
#   docker build -f toolchains/ascend.Dockerfile -t concord-ascend .
#   docker run --rm -it --network host --device /dev/davinci0 --device /dev/davinci1 --device /dev/davinci_manager
#     --device /dev/devmm_svm --device /dev/hisi_hdc -v /usr/local/Ascend/driver:/usr/local/Ascend/driver:ro
#     -v /usr/local/Ascend/firmware:/usr/local/Ascend/firmware:ro -v /etc/ascend_install.info:/etc/ascend_install.info:ro
#     -v /usr/local/bin/npu-smi:/usr/local/bin/npu-smi:ro concord-ascend concord doctor --platform ascend
#
# Other chips have other images: 9.0.0-a3-... for the 910C. torch and torch_npu have to be of the same minor version.
ARG CANN_IMAGE=quay.io/ascend/cann:9.0.0-910b-ubuntu22.04-py3.11
FROM ${CANN_IMAGE}
ARG TORCH_VERSION=2.13.0
ENV DEBIAN_FRONTEND=noninteractive CC=gcc-12 CXX=g++-12
RUN apt-get update && apt-get install -y --no-install-recommends g++-12 git && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu "torch==${TORCH_VERSION}" && \
  pip install --no-cache-dir "torch_npu==${TORCH_VERSION}" numpy pyyaml
COPY . /opt/concord
WORKDIR /opt/concord
RUN apt-get update && CONCORD_TORCH=$(pip show torch | sed -n 's/^Location: //p')/torch ./run build -DPLATFORM=ascend && \
  rm -rf /var/lib/apt/lists/*
ENV PATH=/opt/concord/build/bin:${PATH} CONCORD_PLATFORM=ascend
