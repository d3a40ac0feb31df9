/* The core table: a plugin's identity and capabilities. Data only; constant after concord_plugin_open. */
#ifndef CONCORD_PLATFORM_ABI_CORE_H_
#define CONCORD_PLATFORM_ABI_CORE_H_

#include "types.h"

#define CONCORD_CORE_TABLE "core"

/* Capability names. A capability that is listed with 0, or not listed, is unsupported, and its note says why; one that
 * is listed with another value has to work: the conformance kit tests it. */
/* clang-format off */
#define CONCORD_CAP_MEMORY_HOST_ACCESSIBLE  "memory.host_accessible"  /* the host may dereference device memory */
#define CONCORD_CAP_MEMORY_STREAM_ORDERED   "memory.stream_ordered"   /* allocate_on_stream, release_on_stream */
#define CONCORD_CAP_MEMORY_PEER_COPY        "memory.peer_copy"        /* copy_peer_on_stream */
#define CONCORD_CAP_STREAM_NULL             "stream.null"             /* a null stream is accepted */
#define CONCORD_CAP_STREAM_HOST_IS_CURRENT  "stream.host_is_current"  /* libtorch computes on the calling thread */
#define CONCORD_CAP_STREAM_PRIORITIES       "stream.priorities"       /* priority_range is more than one value */
#define CONCORD_CAP_STREAM_HOST_FUNCTIONS   "stream.host_functions"   /* launch_host */
#define CONCORD_CAP_EVENT_TIMING            "event.timing"            /* elapsed */
#define CONCORD_CAP_COMM_SPLIT              "comm.split"              /* 1: from the first communicator; 2: from any */
#define CONCORD_CAP_COMM_ABORT              "comm.abort"              /* abort ends work of 1: this rank; 2: all ranks */
#define CONCORD_CAP_COMM_DETERMINISTIC      "comm.deterministic"      /* the same bits on every rank and in every run */
#define CONCORD_CAP_COMM_SHARED_DEVICE      "comm.shared_device"      /* several ranks may share one device */
#define CONCORD_CAP_COMM_P2P_SELF           "comm.p2p_self"           /* a rank may send to itself within one batch */
#define CONCORD_CAP_COMM_DETECTS_LOSS       "comm.detects_loss"       /* PEER_LOST when a peer's process exits */
#define CONCORD_CAP_COMM_DETECTS_MISMATCH   "comm.detects_mismatch"   /* INVALID_ARGUMENT when ranks' calls disagree */
#define CONCORD_CAP_COMM_TIMEOUT            "comm.timeout"            /* TIMEOUT after concord_comm_config.timeout_ms */
#define CONCORD_CAP_COMM_BYTES              "comm.bytes"              /* memory that one communicator takes on a rank */
#define CONCORD_CAP_TORCH_FP8               "torch.fp8"               /* libtorch has FP8 on the device */
#define CONCORD_CAP_TORCH_BF16              "torch.bf16"              /* bf16 is at least as fast as fp32 there */
/* clang-format on */

/* ------------------------------------------------------------------------------------------------------------------ */
/* The table a plugin fills                                                                                           */
/* ------------------------------------------------------------------------------------------------------------------ */

/* Owns: the plugin owns every string and array, forever. All since 1.0. */
typedef struct concord_core_table {
  concord_table_header header;
  void* self;

  const char* name;    /* the name for CONCORD_PLATFORM: "cpu". Lower case, no spaces. required */
  const char* version; /* human-readable version: "0.1.0 (NCCL 2.28.9)". required */
  const char* vendor;  /* "NVIDIA", "Huawei", "any". required */
  const char* label;   /* the label of results obtained here; "sim-npu" on a simulator. required */

  /* Rank among the plugins that report a device, when the user chose none: the highest wins. cpu is 0. Negative: never
   * chosen automatically. */
  int32_t priority;
  int32_t reserved; /* 0 */

  const concord_capability* capabilities; /* may be null when capability_count is 0 */
  int64_t capability_count;

  /* The libtorch side: device type as c10 names it ("cpu", "cuda", "privateuseone"), the name it is given there ("npu";
   * else null), and the libraries to load globally before the first tensor, ended by a null entry (null: none). torch.h
   * says how one of them can take part. */
  const char* torch_device_type; /* required */
  const char* torch_device_name;
  const char* const* torch_libraries;

  /* The environment variable by which this vendor hides devices ("CUDA_VISIBLE_DEVICES"); null if there is none. */
  const char* visible_devices_variable;
} concord_core_table;

#endif /* CONCORD_PLATFORM_ABI_CORE_H_ */
