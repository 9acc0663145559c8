/* gpumem.h: the C interface of libgpumem, the library that a worker links to hold GPU memory that gpumemd owns.
 *
 * Rules of this interface
 *  - Sizes are bytes. Device addresses are gpumem_device_ptr (CUdeviceptr): addresses of this process, chosen by it.
 *  - Structs that callers fill or read begin with `struct_size`: set it with the matching GPUMEM_*_INIT. A library
 *    newer than the header reads only what the caller's struct has; an older one refuses a larger struct by name.
 *  - Functions return 0 (GPUMEM_OK) or a gpumem_reason, and describe it in *status when that is not NULL. On failure
 *    outputs are untouched, except where said.
 *  - Thread-safe: any function on any thread, except that freeing an object (close, release, detach, free) must not run
 *    beside another call on the same object. No background threads; each call works on the caller's thread.
 *  - fork: a forked child finds every object dead (GPUMEM_FORKED). It may connect anew; it must not reuse the parent's.
 *  - Nothing here throws, exits, aborts, or changes the process's signal dispositions.
 *  - libcuda is found with dlopen; the CUDA driver's state is the caller's: the library creates no context, but calls
 *    cuInit(0). Mapping needs no context. Streams are CUstream.
 */
#ifndef GPUMEM_GPUMEM_H_
#define GPUMEM_GPUMEM_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define GPUMEM_API __attribute__((visibility("default")))
#else
#define GPUMEM_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define GPUMEM_VERSION_MAJOR 0
#define GPUMEM_VERSION_MINOR 1
#define GPUMEM_VERSION_PATCH 0

/* "0.1.0", of the library that is loaded. */
GPUMEM_API const char* gpumem_version(void);

typedef uint64_t gpumem_device_ptr;
typedef void* gpumem_stream; /* CUstream; NULL is the legacy default stream */

typedef struct gpumem_client gpumem_client;   /* one session with the daemon */
typedef struct gpumem_lease gpumem_lease;     /* private memory, or a segment that is being built */
typedef struct gpumem_segment gpumem_segment; /* an attached, sealed segment */

/* The numbers are those of proto/gpumem/v1/reasons.def and never change. */
typedef int32_t gpumem_reason;
enum {
  GPUMEM_OK = 0,
#define GPUMEM_REASON(name, number, code, retry, text) GPUMEM_##name = number,
#include "gpumem/reasons.def"
#undef GPUMEM_REASON
};

enum { GPUMEM_RETRY_NO = 0, GPUMEM_RETRY_LATER = 1, GPUMEM_RETRY_NEW = 2 };

typedef struct gpumem_status {
  size_t struct_size;
  gpumem_reason reason; /* GPUMEM_OK or why */
  int32_t code;         /* canonical gRPC code, 0..16 */
  int32_t retry;        /* GPUMEM_RETRY_* */
  int32_t cuda_error;   /* CUresult when a driver call failed, else 0 */
  uint64_t asked_bytes; /* numbers of a refusal, 0 where they do not apply */
  uint64_t limit_bytes;
  uint64_t available_bytes;
  char message[512]; /* one sentence or two for a person; NUL-terminated */
} gpumem_status;
#define GPUMEM_STATUS_INIT                            \
  {                                                   \
    sizeof(gpumem_status), 0, 0, 0, 0, 0, 0, 0, { 0 } \
  }

/* "QUOTA" for GPUMEM_QUOTA; "OK" for 0; "UNKNOWN" for a number not in the table. Never NULL. */
GPUMEM_API const char* gpumem_reason_name(gpumem_reason reason);

/* --- connecting --------------------------------------------------------------------------------------------- */

typedef struct gpumem_options {
  size_t struct_size;
  const char* socket_dir;   /* NULL: $GPUMEM_SOCKET_DIR, else /run/gpumemd; has control.sock and handles.sock */
  const char* client_name;  /* for displays; NULL: the program's name */
  const char* libcuda_path; /* NULL: $GPUMEM_LIBCUDA, else "libcuda.so.1" by the loader's search */
  uint32_t timeout_ms;      /* bound of each call to the daemon; 0: 30000 */
} gpumem_options;
#define GPUMEM_OPTIONS_INIT \
  { sizeof(gpumem_options), NULL, NULL, NULL, 0 }

/* Opens a session: loads the driver, connects both sockets, and agrees on versions and on the driver kind. */
GPUMEM_API gpumem_reason gpumem_connect(const gpumem_options* options, gpumem_client** client, gpumem_status* status);

/* Ends the session: unmaps and lets go of everything that the client still has, without asking the daemon, then closes
 * the sockets. The caller has synchronised its GPU work. Objects of the client are dead afterwards but must still be
 * freed. Works with a daemon that is gone or stopped. NULL is ignored. */
GPUMEM_API void gpumem_close(gpumem_client* client);

typedef struct gpumem_session_info {
  size_t struct_size;
  uint64_t session_id;
  char instance[33]; /* the daemon instance, 32 hex digits */
  char daemon_version[32];
  char driver[8]; /* "cuda" or "sim" */
  char tenant[64];
} gpumem_session_info;
#define GPUMEM_SESSION_INFO_INIT                         \
  {                                                      \
    sizeof(gpumem_session_info), 0, {0}, {0}, {0}, { 0 } \
  }
GPUMEM_API gpumem_reason gpumem_session(gpumem_client* client, gpumem_session_info* info, gpumem_status* status);

typedef struct gpumem_device_info {
  size_t struct_size;
  char uuid[48];
  char name[96];
  int32_t ordinal; /* in this process, for cuDeviceGet; -1 when the device is not visible here */
  uint32_t state;  /* gpumem.v1.DeviceState */
  uint64_t granularity_bytes;
  uint64_t capacity_bytes;
  uint64_t available_bytes; /* when the session began */
} gpumem_device_info;
#define GPUMEM_DEVICE_INFO_INIT \
  { sizeof(gpumem_device_info), {0}, {0}, -1, 0, 0, 0, 0 }
GPUMEM_API size_t gpumem_device_count(gpumem_client* client);
GPUMEM_API gpumem_reason gpumem_device(gpumem_client* client, size_t index, gpumem_device_info* info,
                                       gpumem_status* status);

/* --- holders and leases ----------------------------------------------------------------------------------------- */

enum {
  GPUMEM_ROLE_WEIGHTS = 1,
  GPUMEM_ROLE_KV_CACHE = 2,
  GPUMEM_ROLE_WORKSPACE = 3,
  GPUMEM_ROLE_COMMUNICATION = 4,
  GPUMEM_ROLE_DRAFT_MODEL = 5,
  GPUMEM_ROLE_OTHER = 6
};
GPUMEM_API gpumem_reason gpumem_register_holder(gpumem_client* client, const char* name, int32_t role,
                                                uint64_t* holder_id, gpumem_status* status);

typedef struct gpumem_chunk_spec {
  const char* device_uuid;
  uint64_t chunk_bytes; /* rounded up to the device's granularity */
  uint32_t count;
} gpumem_chunk_spec;

/* All specs or nothing. The chunks are imported before it returns (so the memory is this process's from then on), and
 * not mapped. */
GPUMEM_API gpumem_reason gpumem_allocate(gpumem_client* client, uint64_t holder_id, const gpumem_chunk_spec* specs,
                                         size_t spec_count, gpumem_lease** lease, gpumem_status* status);

typedef struct gpumem_memory_info {
  size_t struct_size;
  uint64_t lease_id;
  uint64_t bytes; /* of all chunks, as charged and as mapped */
  uint32_t chunk_count;
  uint32_t access;           /* GPUMEM_ACCESS_*; NONE when not mapped */
  gpumem_device_ptr address; /* 0 when not mapped */
} gpumem_memory_info;
#define GPUMEM_MEMORY_INFO_INIT \
  { sizeof(gpumem_memory_info), 0, 0, 0, 0, 0 }
GPUMEM_API gpumem_reason gpumem_lease_info(gpumem_lease* lease, gpumem_memory_info* info, gpumem_status* status);

enum { GPUMEM_ACCESS_NONE = 0, GPUMEM_ACCESS_READ_ONLY = 1, GPUMEM_ACCESS_READ_WRITE = 2 };

/* Maps all chunks end to end. `wanted` 0: anywhere; else exactly there or GPUMEM_ADDRESS_TAKEN. Each chunk is made
 * accessible to its own device. */
GPUMEM_API gpumem_reason gpumem_lease_map(gpumem_lease* lease, gpumem_device_ptr wanted, int32_t access,
                                          gpumem_device_ptr* address, gpumem_status* status);

/* Waits for `streams`, refuses while one of them is capturing, then unmaps. Work on other streams that may still touch
 * the memory is the caller's to wait for: unmapping does not. The chunks stay imported and charged. */
GPUMEM_API gpumem_reason gpumem_lease_unmap(gpumem_lease* lease, const gpumem_stream* streams, size_t stream_count,
                                            gpumem_status* status);

/* Unmaps as above if mapped, lets the handles go, tells the daemon what became of each chunk, and frees the object.
 * On CAPTURING and on CUDA (the driver could not wait or unmap) nothing was given back and the object lives. With every
 * other reason the object is freed: a daemon that does not answer does not stop the local part (what it missed is said
 * again before the next grant), and after CUDA_FATAL the memory stays until this process ends. In a forked child, and
 * for INVALID_ARGUMENT, nothing happens. */
GPUMEM_API gpumem_reason gpumem_lease_release(gpumem_lease* lease, const gpumem_stream* streams, size_t stream_count,
                                              gpumem_status* status);

/* --- segments --------------------------------------------------------------------------------------------------- */

typedef struct gpumem_tensor {
  size_t struct_size;
  const char* name;
  const char* dtype; /* safetensors' spelling: "F32", "BF16", … */
  const uint64_t* shape;
  size_t shape_count;
  uint64_t offset_bytes; /* from the segment's start */
  uint64_t size_bytes;
} gpumem_tensor;
#define GPUMEM_TENSOR_INIT \
  { sizeof(gpumem_tensor), NULL, NULL, NULL, 0, 0, 0 }

/* Begins a segment [namespace/…]name: memory to map read-write and fill. Not visible to anyone until sealed. A builder
 * that releases it or dies leaves nothing. */
GPUMEM_API gpumem_reason gpumem_segment_build(gpumem_client* client, uint64_t holder_id, const char* name,
                                              const gpumem_chunk_spec* specs, size_t spec_count, gpumem_lease** lease,
                                              gpumem_status* status);

/* Waits for `streams`, gives the read-write mapping and the handles back, then publishes. On success the lease object
 * is freed and `sealed_name` (if not NULL, at least 256 bytes) has the name with its version. When the daemon refuses
 * (a bad manifest, say) the lease lives on, unmapped; its memory can only be released. */
GPUMEM_API gpumem_reason gpumem_segment_seal(gpumem_lease* lease, const gpumem_tensor* tensors, size_t tensor_count,
                                             const gpumem_stream* streams, size_t stream_count, char* sealed_name,
                                             size_t sealed_name_size, gpumem_status* status);

/* `name` with @version, or without for the newest. Imports all chunks; maps nothing. */
GPUMEM_API gpumem_reason gpumem_segment_attach(gpumem_client* client, uint64_t holder_id, const char* name,
                                               gpumem_segment** segment, gpumem_status* status);
GPUMEM_API gpumem_reason gpumem_segment_info(gpumem_segment* segment, gpumem_memory_info* info, gpumem_status* status);
/* The full name; owned by the object. NULL for a dead object. */
GPUMEM_API const char* gpumem_segment_name(gpumem_segment* segment);
/* Read-only, always: a store through it is a fault of the process that stores. */
GPUMEM_API gpumem_reason gpumem_segment_map(gpumem_segment* segment, gpumem_device_ptr wanted,
                                            gpumem_device_ptr* address, gpumem_status* status);
GPUMEM_API size_t gpumem_segment_tensor_count(gpumem_segment* segment);
/* Strings and shape stay valid as long as the object. */
GPUMEM_API gpumem_reason gpumem_segment_tensor(gpumem_segment* segment, size_t index, gpumem_tensor* tensor,
                                               gpumem_status* status);
/* As gpumem_lease_release. */
GPUMEM_API gpumem_reason gpumem_segment_detach(gpumem_segment* segment, const gpumem_stream* streams,
                                               size_t stream_count, gpumem_status* status);

typedef struct gpumem_segment_entry {
  size_t struct_size;
  char name[256];
  uint32_t state; /* gpumem.v1.SegmentState: 1 building, 2 sealed, 3 lost */
  uint32_t readers;
  uint32_t tensors;
  uint64_t bytes;
} gpumem_segment_entry;
/* Calls `each` for every segment whose name begins with `prefix` (NULL: all) until it returns non-zero. */
GPUMEM_API gpumem_reason gpumem_list_segments(gpumem_client* client, const char* prefix,
                                              int (*each)(const gpumem_segment_entry* entry, void* user), void* user,
                                              gpumem_status* status);

/* --- faults ----------------------------------------------------------------------------------------------------- */

enum {
  GPUMEM_FAULT_NONE = 0,    /* CUDA_SUCCESS, or an error that says nothing about the process */
  GPUMEM_FAULT_PROCESS = 1, /* the process must be replaced (illegal address, launch failure, …) */
  GPUMEM_FAULT_ECC = 2,     /* as PROCESS, and the memory itself is in doubt */
  GPUMEM_FAULT_DEVICE = 3   /* as PROCESS, and the device may be gone */
};
/* What a CUresult means for this process. Needs no client. */
GPUMEM_API int32_t gpumem_classify_error(int32_t cuda_error);

/* Tells the daemon that this process's context is dead. From then on the client makes no driver call, and every other
 * call fails with GPUMEM_CUDA_FATAL. The daemon grants nothing more, keeps what the process could write to in
 * quarantine, and settles it when the process has ended: report, then exit. */
GPUMEM_API gpumem_reason gpumem_report_fault(gpumem_client* client, int32_t cuda_error, const char* detail,
                                             gpumem_status* status);

/* --- events ----------------------------------------------------------------------------------------------------- */

enum {
  GPUMEM_EVENT_SESSION_FENCED = 1, /* this session: nothing more is granted */
  GPUMEM_EVENT_DEVICE_CHANGED = 2,
  GPUMEM_EVENT_SEGMENT_CHANGED = 3,
  GPUMEM_EVENT_DAEMON_STOPPING = 4,
  GPUMEM_EVENT_DISCONNECTED = 5, /* the daemon is gone; mapped memory stays valid */
  GPUMEM_EVENT_SESSION_ENDED = 6 /* some session of the node has settled */
};
typedef struct gpumem_event {
  size_t struct_size;
  int32_t kind;
  uint32_t state; /* DeviceState or SegmentState of the thing named */
  uint64_t sequence;
  uint64_t session_id;
  uint64_t bytes;
  char name[256]; /* device UUID or segment name */
  char detail[256];
} gpumem_event;

/* A descriptor that is readable when gpumem_next_event has something, for the application's own poll loop. Owned by the
 * client. The first call subscribes. Negative on failure. */
GPUMEM_API int gpumem_event_fd(gpumem_client* client, gpumem_status* status);
/* Never blocks. An error is given once when the daemon refuses the subscription; gpumem_event_fd then tries again. *got
 * is 1 when *event was filled, 0 when there is nothing now. */
GPUMEM_API gpumem_reason gpumem_next_event(gpumem_client* client, gpumem_event* event, int32_t* got,
                                           gpumem_status* status);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* GPUMEM_GPUMEM_H_ */
