/* gpumem.h is C: this file is compiled as strict C11, and its initialisers must not warn. */
#include "gpumem/gpumem.h"

int gpumem_header_c11(void);

int gpumem_header_c11(void) {
  const gpumem_status status = GPUMEM_STATUS_INIT;
  const gpumem_options options = GPUMEM_OPTIONS_INIT;
  const gpumem_session_info session = GPUMEM_SESSION_INFO_INIT;
  const gpumem_device_info device = GPUMEM_DEVICE_INFO_INIT;
  const gpumem_memory_info memory = GPUMEM_MEMORY_INFO_INIT;
  const gpumem_tensor tensor = GPUMEM_TENSOR_INIT;
  return status.struct_size == sizeof(status) && options.struct_size == sizeof(options) &&
                 session.struct_size == sizeof(session) && device.struct_size == sizeof(device) &&
                 memory.struct_size == sizeof(memory) && tensor.struct_size == sizeof(tensor) && device.ordinal == -1
             ? GPUMEM_OK
             : GPUMEM_INTERNAL;
}
