/* The device table: which devices there are, and which one the calling thread uses.
 *
 * Devices are numbered 0 .. count-1 within the process, after the vendor's own visibility variable.
 * Threads: any thread, any time. The current device belongs to the calling thread.
 */
#ifndef CONCORD_PLATFORM_ABI_DEVICE_H_
#define CONCORD_PLATFORM_ABI_DEVICE_H_

#include "status.h"
#include "types.h"

#define CONCORD_DEVICE_TABLE "device"

/* The caller sets struct_size; the plugin fills what fits and zeroes nothing beyond it. Strings end with a zero
 * byte. */
typedef struct concord_device_info {
  uint32_t struct_size;
  int32_t multiprocessors;  /* cores of a cpu, SMs, AI cores; 0 if unknown */
  int64_t total_memory;     /* bytes */
  int32_t capability_major; /* CUDA's compute capability; 0 if there is none */
  int32_t capability_minor;
  char name[128];        /* as the vendor writes it: "NVIDIA H200" */
  char architecture[32]; /* "sm_90", "Ascend910B2", "aarch64" */
  char pci_bus_id[32];   /* "0000:3b:00.0"; "" if there is none */
  /* Peak of dense matrix products of this type according to the vendor, in FLOP/s, a multiply and add as two; 0 if it
   * is not known or there are none. F32 is without rounding to fewer bits (TF32). since 1.2; an older plugin writes
   * nothing here, so a caller zeroes the struct first. */
  double peak_flops_f32;
  double peak_flops_bf16;
  double peak_flops_f16;
} concord_device_info;

/* ------------------------------------------------------------------------------------------------------------------ */
/* The table a plugin fills                                                                                           */
/* ------------------------------------------------------------------------------------------------------------------ */

typedef struct concord_device_table {
  concord_table_header header;
  void* self;

  /* How many devices there are. No driver or no device: UNAVAILABLE with the reason, or OK with 0. Cheap enough to be
   * called on every plugin at start-up. required, since 1.0 */
  concord_status (*count)(void* self, int32_t* out_count);

  /* required, since 1.0 */
  concord_status (*info)(void* self, int32_t device, concord_device_info* out_info);

  /* Makes |device| the calling thread's device. required, since 1.0 */
  concord_status (*set_current)(void* self, int32_t device);

  /* The calling thread's device; 0 if none was set. required, since 1.0 */
  concord_status (*get_current)(void* self, int32_t* out_device);

  /* Waits: until all work queued on |device| by this process is done. Errors of that work may surface here.
   * required, since 1.0 */
  concord_status (*synchronize)(void* self, int32_t device);

  /* Whether |device| can read memory of |peer| directly. (optional, default: UNIMPLEMENTED) since 1.0 */
  concord_status (*can_access_peer)(void* self, int32_t device, int32_t peer, int32_t* out_can);

  /* Enables such access; a repeated call is fine. (optional, default: UNIMPLEMENTED) since 1.0 */
  concord_status (*enable_peer_access)(void* self, int32_t device, int32_t peer);
} concord_device_table;

#endif /* CONCORD_PLATFORM_ABI_DEVICE_H_ */
